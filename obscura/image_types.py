"""Image file types: their limits, and their headers, which are checked before a decoder reads the file.

The client, which prepares images, and the service, which reads them again, share this module. A small file can keep a
decoder busy for minutes: decoders reread all pixels for each scan of a JPEG, unpack every colour profile of a PNG, and
visit each segment, chunk or run. Decoders also allocate the memory that the header states. So the size and the number
of parts are checked before decoding. To add a type that Pillow reads, add a row to `TYPES`.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from obscura.wire.uploads import Fault, Refused

if TYPE_CHECKING:
    from PIL import Image

PIXELS_MAX = 80_000_000  # 320 MB decoded; the largest photograph of a full-frame camera has about 60 million
SCANS_MAX = 100  # scans of a JPEG; cameras and programs write one, or about ten
SEGMENTS_MAX = 2_000  # segments of a JPEG; a profile of 32 MB needs 512
CHUNKS_MAX = 20_000  # chunks of a PNG; 32 MB of pixels need 4,096 chunks of 8 kB
PROFILES_MAX = 1  # colour profiles of a PNG; its standard allows one (section 11.3.2.3)
_RUN_BYTES_MAX = 4  # per pixel of a run-length BMP, which needs two if every run is one pixel
_RUN_SLACK_BYTES = 2**14  # for headers and palette
_RUNS = frozenset({1, 2})  # BI_RLE8 and BI_RLE4
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_JPEG_BARE = frozenset(range(0xD0, 0xD9)) | {0x01}  # markers without a length
_START_OF_SCAN, _END = 0xDA, 0xD9
_NEXT_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")  # not a stuffed byte, a restart or a fill byte


def count_scans(data: bytes) -> None:
    """Raise Refused for a JPEG with too many scans (IMAGE_SCANS) or segments (IMAGE_PARTS)."""
    scans = 0
    for marker, _ in jpeg_segments(data):
        scans += marker == _START_OF_SCAN
        if scans > SCANS_MAX:
            raise Refused(Fault.IMAGE_SCANS)


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (marker, offset) of each JPEG segment; raise Refused if segments and fill bytes are too many."""
    at, parts = 2, 0
    while (found := _NEXT_MARKER.search(data, at)) is not None:
        parts += 1 + (found.start() - at) * (data[at : at + 2] == b"\xff\xff")  # decoders visit each fill byte
        if parts > SEGMENTS_MAX:
            raise Refused(Fault.IMAGE_PARTS)
        at = found.start()
        marker = data[at + 1]
        yield marker, at
        if marker == _END:
            return
        at += 2
        if marker not in _JPEG_BARE and len(data) >= at + 2:
            at += max(2, struct.unpack_from(">H", data, at)[0])


def count_chunks(data: bytes) -> None:
    """Raise Refused (IMAGE_PARTS) for a PNG with too many chunks or colour profiles."""
    at, chunks, profiles = len(PNG_MAGIC), 0, 0
    while len(data) >= at + 8:
        length, kind = struct.unpack_from(">I4s", data, at)
        chunks, profiles = chunks + 1, profiles + (kind == b"iCCP")
        if chunks > CHUNKS_MAX or profiles > PROFILES_MAX:
            raise Refused(Fault.IMAGE_PARTS)
        at += length + 12


def count_runs(data: bytes) -> None:
    """Raise Refused (IMAGE_PARTS) for a run-length encoded BMP with far more runs than its pixels need."""
    if len(data) < 34 or struct.unpack_from("<I", data, 14)[0] == 12:  # the old header has no run-length encoding
        return
    width, height, compression = struct.unpack_from("<2i4xI", data, 18)
    if compression in _RUNS and len(data) > _RUN_BYTES_MAX * abs(width * height) + _RUN_SLACK_BYTES:
        raise Refused(Fault.IMAGE_PARTS)


CHANNEL_BITS_MAX = 8  # that are stored; more bits would be lost
# Start-of-frame markers: C0 ... CF without DHT (C4), JPG (C8) and DAC (CC). ITU-T T.81, table B.1.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def png_size(data: bytes) -> tuple[int, int]:
    kind, width, height, bits = struct.unpack_from(">4s2IB", data, 12)
    if kind != b"IHDR":
        raise Refused(Fault.IMAGE_BROKEN)
    if bits > CHANNEL_BITS_MAX:
        raise Refused(Fault.IMAGE_MODE)  # Pillow would silently truncate colours to eight bits
    return width, height


def bmp_size(data: bytes) -> tuple[int, int]:
    (header_bytes,) = struct.unpack_from("<I", data, 14)
    if header_bytes == 12:
        width, height = struct.unpack_from("<2H", data, 18)
    else:
        width, height = struct.unpack_from("<2i", data, 18)
    return abs(width), abs(height)  # a negative height means rows from top to bottom


def jpeg_size(data: bytes) -> tuple[int, int]:
    for marker, at in jpeg_segments(data):
        if marker in _JPEG_FRAMES:
            bits, height, width = struct.unpack_from(">B2H", data, at + 4)
            if bits > CHANNEL_BITS_MAX:
                raise Refused(Fault.IMAGE_MODE)
            return width, height
    raise Refused(Fault.IMAGE_BROKEN)


def webp_size(data: bytes) -> tuple[int, int]:
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


_ARCHIVES = (
    b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"7z\xbc\xaf\x27\x1c", b"Rar!",
    b"\x28\xb5\x2f\xfd",
)  # fmt: skip
_TAR_MAGIC_OFFSET = 257
TIFF_MAGICS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_JPEG_2000 = (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
# Suffixes of other images, volumes and films. Such files are skipped and reported.
_OTHERS = (
    ".jxl", ".jls", ".tga", ".psd", ".svg", ".exr", ".webm", ".raw", ".dng", ".nef", ".cr2", ".cr3", ".arw", ".svs",
    ".ndpi", ".czi", ".mha", ".mhd", ".nrrd", ".mgz", ".mp4", ".avi", ".mov", ".mkv", ".wmv",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ImageType:
    """A type of image file.

    Attributes:
        name: Pillow's name, if Pillow reads the type.
        suffixes: Suffixes of files. Prepared files use the first.
        begins: Returns whether a file starts like this type. Required for types that the service accepts.
        size: Returns (width, height) from the header. None if the service does not accept the type.
        require_few_parts: Raises Refused if the number of parts would make decoding far slower than usual.
        readable: True if this package can read the type. Files of unreadable types are skipped and reported.
    """

    name: str
    suffixes: tuple[str, ...]
    begins: Callable[[bytes], bool] = lambda _: False
    size: Callable[[bytes], tuple[int, int]] | None = None
    require_few_parts: Callable[[bytes], None] = lambda _: None
    readable: bool = True


TYPES = (
    ImageType("PNG", (".png",), lambda data: data.startswith(PNG_MAGIC), png_size, count_chunks),
    ImageType(
        "JPEG", (".jpg", ".jpeg", ".jfif"), lambda data: data.startswith(b"\xff\xd8\xff"), jpeg_size, count_scans
    ),
    ImageType("WEBP", (".webp",), lambda data: data.startswith(b"RIFF") and data[8:12] == b"WEBP", webp_size),
    ImageType("BMP", (".bmp",), lambda data: data.startswith(b"BM"), bmp_size, count_runs),
    ImageType("GIF", (".gif",), lambda data: data.startswith(b"GIF8")),
    ImageType("TIFF", (".tif", ".tiff"), lambda data: data.startswith(TIFF_MAGICS)),
    ImageType("PPM", (".ppm", ".pgm", ".pbm", ".pnm", ".pfm")),
    ImageType("JPEG2000", (".jp2", ".j2k", ".jpx", ".jpc"), lambda data: data.startswith(_JPEG_2000)),
    ImageType("DICOM", (".dcm", ".dicom", ".ima"), readable=False),  # read by obscura.preparing.dicom instead
    ImageType("HEIC", (".heic", ".heif"), readable=False),
    ImageType("AVIF", (".avif",), readable=False),
    ImageType("images of other kinds", _OTHERS, readable=False),
)


def image_header(data: bytes) -> tuple[ImageType, int, int]:
    """Return (type, width, height) of an image that the service accepts.

    Raises:
        Refused: ARCHIVE_NESTED for an archive, IMAGE_FORMAT for any other type, IMAGE_MODE for over eight bits per
            channel, IMAGE_PARTS for excess segments, IMAGE_BROKEN for a truncated header.
    """
    for kind in TYPES:
        if kind.size is not None and kind.begins(data):
            try:
                return kind, *kind.size(data)
            except (struct.error, IndexError):
                raise Refused(Fault.IMAGE_BROKEN) from None
    if data.startswith(_ARCHIVES) or data[_TAR_MAGIC_OFFSET : _TAR_MAGIC_OFFSET + 5] == b"ustar":
        raise Refused(Fault.ARCHIVE_NESTED)
    raise Refused(Fault.IMAGE_FORMAT)


def is_image(head: bytes) -> bool:
    """Return whether a file's first 16 bytes show a readable type; False for BMP, whose signature is too weak."""
    return any(kind.readable and kind.begins(head) for kind in TYPES if kind.name != "BMP")


def require_few_parts(data: bytes) -> None:
    """Raise Refused (IMAGE_SCANS or IMAGE_PARTS) for an image with too many parts."""
    for kind in TYPES:
        if kind.begins(data):
            kind.require_few_parts(data)
            return


def open_image(data: bytes, kind: ImageType | None = None) -> Image.Image:
    """Open an image of one type, or of any readable type; raise PIL.UnidentifiedImageError for others."""
    from PIL import Image  # the web process imports this file, but no decoder

    kinds = [known for known in TYPES if known.readable] if kind is None else [kind]
    return Image.open(io.BytesIO(data), formats=[known.name for known in kinds])


def taken_suffixes() -> dict[str, str]:
    """Return the suffix of each type that the service accepts, keyed by the type's name."""
    return {kind.name: kind.suffixes[0] for kind in TYPES if kind.size is not None}


def image_suffixes() -> frozenset[str]:
    """Return all image suffixes, including those of types that cannot be read."""
    return frozenset(suffix for kind in TYPES for suffix in kind.suffixes)


def names_of(*, taken: bool, last: str) -> str:
    """List all readable types, or only those that the service accepts (`taken`): "PNG, JPEG and BMP"."""
    *first, end = [kind.name for kind in TYPES if (kind.size is not None if taken else kind.readable)]
    return f"{', '.join(first)} {last} {end}"
