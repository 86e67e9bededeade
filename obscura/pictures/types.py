"""The types of pictures: one table for whoever prepares pictures and for the service, which reads them once more.

To add one is a row of `TYPES`, and a file where Pillow does not read it. Nothing here needs the server's packages.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from obscura.pictures.header import bmp_size, jpeg_size, png_size, webp_size
from obscura.pictures.parts import PNG_MAGIC, count_chunks, count_runs, count_scans
from obscura.wire.faults import Fault, Refused

if TYPE_CHECKING:
    from PIL import Image

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
TIFF_MAGICS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_JPEG_2000 = (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
# What people have beside others, as pictures, volumes or films: named where it is left out, never passed over.
_OTHERS = (
    ".jxl", ".jls", ".tga", ".psd", ".svg", ".exr", ".webm", ".raw", ".dng", ".nef", ".cr2", ".cr3", ".arw", ".svs",
    ".ndpi", ".czi", ".mha", ".mhd", ".nrrd", ".mgz", ".mp4", ".avi", ".mov", ".mkv", ".wmv",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PictureType:
    """One type of picture files.

    Attributes:
        name: As Pillow calls it.
        suffixes: What its files' names end in; the first is how a prepared one is named.
        begins: Whether a file is of this type, by its first bytes; for what the service takes or Pillow does not read.
        size: Reads width and height before any decoder sees the file. The service takes the types that have it; all
            others are prepared into PNG.
        require_few_parts: Refuses what takes longer to decode than its pixels and its bytes account for.
        decode: Reads a type that Pillow does not know; None where Pillow does.
        readable: Whether it can be read here. What cannot is named rather than passed over.
    """

    name: str
    suffixes: tuple[str, ...]
    begins: Callable[[bytes], bool] = lambda _: False
    size: Callable[[bytes], tuple[int, int]] | None = None
    require_few_parts: Callable[[bytes], None] = lambda _: None
    decode: Callable[[bytes], Image.Image] | None = None
    readable: bool = True

    def open(self, data: bytes) -> Image.Image:
        """Open a picture of this type; its name stands in the image's `format`."""
        if self.decode is None:
            return _open(data, [self.name])
        image = self.decode(data)
        image.format = self.name
        return image


TYPES = (
    PictureType("PNG", (".png",), lambda data: data.startswith(PNG_MAGIC), png_size, count_chunks),
    PictureType(
        "JPEG", (".jpg", ".jpeg", ".jfif"), lambda data: data.startswith(b"\xff\xd8\xff"), jpeg_size, count_scans
    ),
    PictureType("WEBP", (".webp",), lambda data: data.startswith(b"RIFF") and data[8:12] == b"WEBP", webp_size),
    PictureType("BMP", (".bmp",), lambda data: data.startswith(b"BM"), bmp_size, count_runs),
    PictureType("GIF", (".gif",), lambda data: data.startswith(b"GIF8")),
    PictureType("TIFF", (".tif", ".tiff"), lambda data: data.startswith(TIFF_MAGICS)),
    PictureType("PPM", (".ppm", ".pgm", ".pbm", ".pnm", ".pfm")),
    PictureType("JPEG2000", (".jp2", ".j2k", ".jpx", ".jpc"), lambda data: data.startswith(_JPEG_2000)),
    PictureType("DICOM", (".dcm", ".dicom", ".ima"), readable=False),  # but by obscura.preparing.dicom
    PictureType("HEIC", (".heic", ".heif"), readable=False),
    PictureType("AVIF", (".avif",), readable=False),
    PictureType("pictures of other kinds", _OTHERS, readable=False),
)


def picture_header(data: bytes) -> tuple[PictureType, int, int]:
    """Return (type, width, height) of a picture that the service takes.

    Raises:
        Refused: ARCHIVE_NESTED for an archive, IMAGE_FORMAT for anything that is of no type that is taken, IMAGE_MODE
            for more than eight bits a channel, IMAGE_PARTS for a JPEG of too many segments, IMAGE_BROKEN when the
            header is cut short.
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


def is_picture(head: bytes) -> bool:
    """Whether a file is of a readable type, by its first 16 bytes."""
    return any(kind.readable and kind.begins(head) for kind in TYPES if kind.name != "BMP")  # two letters are little


def require_few_parts(data: bytes) -> None:
    """Let a picture pass that is made of as many parts as pictures are. What is no picture passes as well.

    Raises:
        Refused: IMAGE_SCANS for a JPEG of many scans, IMAGE_PARTS for a picture of many other parts.
    """
    for kind in TYPES:
        if kind.begins(data):
            kind.require_few_parts(data)
            return


def open_picture(data: bytes) -> Image.Image:
    """Open a picture of any readable type.

    Raises:
        PIL.UnidentifiedImageError: It is of none.
    """
    for kind in TYPES:
        if kind.decode is not None and kind.begins(data):
            return kind.open(data)
    return _open(data, [kind.name for kind in TYPES if kind.readable and kind.decode is None])


def _open(data: bytes, names: list[str]) -> Image.Image:
    from PIL import Image  # the web process knows the table, and needs no decoder

    return Image.open(io.BytesIO(data), formats=names)


def taken_suffixes() -> dict[str, str]:
    """Return the endings of the types that the service takes as they are, by name."""
    return {kind.name: kind.suffixes[0] for kind in TYPES if kind.size is not None}


def picture_suffixes() -> frozenset[str]:
    """Return what the names of pictures end in, those that cannot be read among them."""
    return frozenset(suffix for kind in TYPES for suffix in kind.suffixes)


def names_of(*, taken: bool, last: str) -> str:
    """Return the names of the types that the service takes, or of all that can be read: "this, that and another"."""
    *first, end = [kind.name for kind in TYPES if (kind.size is not None if taken else kind.readable)]
    return f"{', '.join(first)} {last} {end}"
