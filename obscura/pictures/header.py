"""Format and size of a picture, from its first bytes: read before any decoder sees the rest.

Decoders allocate by what a header says; Pillow's decoder of WEBP does so on opening, before its own size check. Only
the four accepted formats are recognised. The client reads headers as well: nothing here needs the server's packages.
"""

from __future__ import annotations

import struct

from obscura.pictures.parts import jpeg_segments
from obscura.wire.faults import Fault, Refused

_ARCHIVES = (
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"\x1f\x8b",
    b"BZh",
    b"\xfd7zXZ\x00",
    b"7z\xbc\xaf\x27\x1c",
    b"Rar!",
    b"\x28\xb5\x2f\xfd",
)
_TAR_MAGIC_OFFSET = 257
CHANNEL_BITS_MAX = 8  # what is stored; a picture with more could not be kept exactly
# Start-of-frame markers: C0 ... CF without DHT (C4), JPG (C8) and DAC (CC). ITU-T T.81, table B.1.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def picture_header(data: bytes) -> tuple[str, int, int]:
    """Return (Pillow's name of the format, width, height).

    Raises:
        Refused: ARCHIVE_NESTED for an archive, IMAGE_FORMAT for anything that is not one of the four formats,
            IMAGE_MODE for more than eight bits a channel, IMAGE_PARTS for a JPEG of too many segments, IMAGE_BROKEN
            when the header is cut short.
    """
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            return "PNG", *_png(data)
        if data.startswith(b"\xff\xd8\xff"):
            return "JPEG", *_jpeg(data)
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return "WEBP", *_webp(data)
        if data.startswith(b"BM"):
            return "BMP", *_bmp(data)
    except (struct.error, IndexError):
        raise Refused(Fault.IMAGE_BROKEN) from None
    if data.startswith(_ARCHIVES) or data[_TAR_MAGIC_OFFSET : _TAR_MAGIC_OFFSET + 5] == b"ustar":
        raise Refused(Fault.ARCHIVE_NESTED)
    raise Refused(Fault.IMAGE_FORMAT)


def _png(data: bytes) -> tuple[int, int]:
    kind, width, height, bits = struct.unpack_from(">4s2IB", data, 12)
    if kind != b"IHDR":
        raise Refused(Fault.IMAGE_BROKEN)
    if bits > CHANNEL_BITS_MAX:
        raise Refused(Fault.IMAGE_MODE)  # Pillow would cut colours off to eight bits, and say nothing
    return width, height


def _bmp(data: bytes) -> tuple[int, int]:
    (header_bytes,) = struct.unpack_from("<I", data, 14)
    if header_bytes == 12:
        width, height = struct.unpack_from("<2H", data, 18)
    else:
        width, height = struct.unpack_from("<2i", data, 18)
    return abs(width), abs(height)  # a negative height means rows from top to bottom


def _jpeg(data: bytes) -> tuple[int, int]:
    for marker, at in jpeg_segments(data):
        if marker in _JPEG_FRAMES:
            bits, height, width = struct.unpack_from(">B2H", data, at + 4)
            if bits > CHANNEL_BITS_MAX:
                raise Refused(Fault.IMAGE_MODE)
            return width, height
    raise Refused(Fault.IMAGE_BROKEN)


def _webp(data: bytes) -> tuple[int, int]:
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
