"""A zip of class folders: `class/picture.png`, or `class/subject/picture.png` where the dataset has subjects.

Of a picture its pixels survive, and nothing else of the file. Decoders allocate by what a header says (Pillow's WEBP
decoder does so on opening, before its own size check), so format and size are read from the first bytes before any
decoder sees it. Only the four accepted formats are recognised.
"""

from __future__ import annotations

import io
import struct
import unicodedata
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from service.ingest.array_files import require_count, store
from service.ingest.faults import Fault, Refused
from service.ingest.request import IngestRequest
from service.ingest.zip_directory import ZipEntry, read_directory
from service.ingest.zip_member import read_whole

_PLAIN_MODES = frozenset({"1", "L", "P", "RGB"})
_ALPHA_MODES = frozenset({"LA", "PA", "RGBA"})
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
_JPEG_BARE = frozenset(range(0xD0, 0xD9)) | {0x01}


def ingest(file: BinaryIO, request: IngestRequest) -> None:
    """Write the arrays of a zip of class folders, in the order of its directory.

    One folder around all class folders is accepted, since many programs add it.

    Raises:
        Refused: With the broken rule; the target folder may then hold a part.
    """
    limits = request.limits
    entries = read_directory(file, limits, slack_bytes=limits.entry_slack_bytes)
    if any(entry.expanded_bytes > limits.entry_bytes_max for entry in entries):
        raise Refused(Fault.ARCHIVE_SIZE)
    require_count(request, len(entries))
    classes = {unicodedata.normalize("NFC", name): label for label, name in enumerate(request.classes)}
    paths = _paths(entries, classes, subjects=request.subjects_declared is not None)
    pixels = (decode_picture(read_whole(file, entry), request) for entry in entries)
    store(request, np.array(_labels(paths, classes)), (path[1] for path in paths), pixels)


def _paths(entries: list[ZipEntry], classes: dict[str, int], *, subjects: bool) -> list[list[str]]:
    """Return the entries' paths, split: (class, file) or (class, subject, file), without a folder around all of it."""
    paths = [entry.private_name.split("/") for entry in entries]
    if len({len(path) for path in paths}) != 1:
        raise Refused(Fault.LAYOUT)
    depth, expected = len(paths[0]), 3 if subjects else 2
    in_classes = [depth > level + 1 and all(path[level] in classes for path in paths) for level in (0, 1)]
    wrapped = depth > 2 and len({path[0] for path in paths}) == 1
    if not subjects and depth == 3 and in_classes[0] and not in_classes[1]:
        raise Refused(Fault.SUBJECTS_UNEXPECTED)
    if subjects and (depth == 2 or (depth == 3 and wrapped and in_classes[1] and not in_classes[0])):
        raise Refused(Fault.SUBJECTS_ABSENT)
    if wrapped and depth == expected + 1:
        return [path[1:] for path in paths]
    if depth != expected:
        raise Refused(Fault.LAYOUT)
    return paths


def _labels(paths: list[list[str]], classes: dict[str, int]) -> list[int]:
    try:
        return [classes[path[0]] for path in paths]
    except KeyError:
        raise Refused(Fault.CLASS_UNDECLARED) from None


def decode_picture(data: bytes, request: IngestRequest) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the pixels, uint8 of shape `request.record_shape`.

    A gray picture in a colour dataset is repeated over the three channels. A colour picture in a grayscale dataset is
    taken only when it is gray (red = green = blue everywhere): turning colours into gray is a choice that its owner
    should make. Opaque alpha channels are dropped. An EXIF orientation is not applied; like all metadata it is dropped.

    Raises:
        Refused: With the broken rule. The size is judged before the picture is decoded.
    """
    kind, width, height = picture_header(data)
    if width * height > request.limits.pixels_max:
        raise Refused(Fault.IMAGE_PIXELS)
    if (width, height) != (request.width, request.height):
        raise Refused(Fault.IMAGE_SIZE)
    try:
        image = Image.open(io.BytesIO(data), formats=[kind])
        if getattr(image, "n_frames", 1) != 1 or image.format != kind:  # a JPEG with several pictures becomes "MPO"
            raise Refused(Fault.IMAGE_FRAMES)
        if image.size != (width, height):
            raise Refused(Fault.IMAGE_BROKEN)
        image.load()
        return _pixels(image, request)
    except (Refused, MemoryError):
        raise
    except Exception:
        # Decoders of hostile bytes fail in many ways. All of them mean the same, and none of their texts may travel.
        raise Refused(Fault.IMAGE_BROKEN) from None


def _pixels(image: Image.Image, request: IngestRequest) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if image.mode in _ALPHA_MODES or (image.mode in _PLAIN_MODES and "transparency" in image.info):
        rgba = image.convert("RGBA")
        if rgba.getchannel("A").getextrema() != (255, 255):
            raise Refused(Fault.IMAGE_TRANSPARENT)
        image = rgba.convert("RGB")
    elif image.mode not in _PLAIN_MODES:
        raise Refused(Fault.IMAGE_MODE)
    if request.channels == 3:
        return np.asarray(image.convert("RGB"), dtype=np.uint8)  # (h, w, 3)
    if image.mode in ("1", "L"):
        return np.asarray(image.convert("L"), dtype=np.uint8)  # (h, w)
    colours = np.asarray(image.convert("RGB"), dtype=np.uint8)
    if not (colours == colours[:, :, :1]).all():
        raise Refused(Fault.IMAGE_MODE)
    return colours[:, :, 0]


def picture_header(data: bytes) -> tuple[str, int, int]:
    """Return (Pillow's name of the format, width, height).

    Raises:
        Refused: ARCHIVE_NESTED for an archive, IMAGE_FORMAT for anything that is not one of the four formats,
            IMAGE_MODE for more than eight bits a channel, IMAGE_BROKEN when the header is cut short.
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
    at = 2
    while True:
        if data[at] != 0xFF:
            raise Refused(Fault.IMAGE_BROKEN)
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
        elif marker in _JPEG_FRAMES:
            bits, height, width = struct.unpack_from(">B2H", data, at + 4)
            if bits > CHANNEL_BITS_MAX:
                raise Refused(Fault.IMAGE_MODE)
            return width, height
        elif marker in _JPEG_BARE:
            at += 2
        else:
            (length,) = struct.unpack_from(">H", data, at + 2)
            if length < 2:
                raise Refused(Fault.IMAGE_BROKEN)
            at += 2 + length


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
