"""Size of a picture, from its first bytes: read before any decoder sees the rest.

Decoders allocate by what a header says; Pillow's decoder of WEBP does so on opening, before its own size check. Each
function raises IMAGE_MODE for more than eight bits a channel, and IMAGE_BROKEN or struct.error for a header that is cut
short.
"""

from __future__ import annotations

import struct

from obscura.pictures.parts import jpeg_segments
from obscura.wire.faults import Fault, Refused

CHANNEL_BITS_MAX = 8  # what is stored; a picture with more could not be kept exactly
# Start-of-frame markers: C0 ... CF without DHT (C4), JPG (C8) and DAC (CC). ITU-T T.81, table B.1.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def png_size(data: bytes) -> tuple[int, int]:
    """Read width and height of a PNG."""
    kind, width, height, bits = struct.unpack_from(">4s2IB", data, 12)
    if kind != b"IHDR":
        raise Refused(Fault.IMAGE_BROKEN)
    if bits > CHANNEL_BITS_MAX:
        raise Refused(Fault.IMAGE_MODE)  # Pillow would cut colours off to eight bits, and say nothing
    return width, height


def bmp_size(data: bytes) -> tuple[int, int]:
    """Read width and height of a BMP."""
    (header_bytes,) = struct.unpack_from("<I", data, 14)
    if header_bytes == 12:
        width, height = struct.unpack_from("<2H", data, 18)
    else:
        width, height = struct.unpack_from("<2i", data, 18)
    return abs(width), abs(height)  # a negative height means rows from top to bottom


def jpeg_size(data: bytes) -> tuple[int, int]:
    """Read width and height of a JPEG."""
    for marker, at in jpeg_segments(data):
        if marker in _JPEG_FRAMES:
            bits, height, width = struct.unpack_from(">B2H", data, at + 4)
            if bits > CHANNEL_BITS_MAX:
                raise Refused(Fault.IMAGE_MODE)
            return width, height
    raise Refused(Fault.IMAGE_BROKEN)


def webp_size(data: bytes) -> tuple[int, int]:
    """Read width and height of a WEBP."""
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    elif kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 ":
        width, height = (side & 0x3FFF for side in struct.unpack_from("<2H", data, 26))
    else:
        raise Refused(Fault.IMAGE_BROKEN)
    return width, height
