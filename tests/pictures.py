"""Encoded pictures and arrays, archives and folders of them, as uploads hold them."""

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image


def saved(image: Image.Image | npt.NDArray[Any], kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(file, kind, **options)
    return file.getvalue()


def picture(
    kind: str = "PNG", mode: str = "L", size: tuple[int, int] = (6, 4), value: Any = 7, **options: Any
) -> bytes:
    """Encode a picture of one colour."""
    return saved(Image.new(mode, size, value), kind, **options)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(size: tuple[int, int], *chunks: bytes, bits: int = 8, colour_type: int = 0) -> bytes:
    """A PNG whose header says this, with any chunks between header and end."""
    header = png_chunk(b"IHDR", struct.pack(">2I5B", *size, bits, colour_type, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + png_chunk(b"IEND", b"")


def archive(*members: tuple[str | zipfile.ZipInfo, str | bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, data in members:
            file.writestr(name, data)
    return buffer.getvalue()


def write_files(root: Path, files: Mapping[str, str | bytes | Image.Image | npt.NDArray[Any]]) -> Path:
    """Write files by their paths below a folder, images in the format that the path names."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str | bytes):
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        else:
            (Image.fromarray(content) if isinstance(content, np.ndarray) else content).save(path)
    return root


def idx_file(values: npt.NDArray[Any], magic: int) -> bytes:
    """An IDX file; the magic number says type and dimensions."""
    return struct.pack(f">{1 + values.ndim}I", magic, *values.shape) + values.tobytes()


def write_folders(root: Path, counts: dict[str, int], shape: tuple[int, ...] = (8, 8)) -> Path:
    """Write so many pictures of noise into each folder, other ones each time, and return the root."""
    rng = np.random.default_rng()
    for folder, count in counts.items():
        (root / folder).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 256, shape, dtype=np.uint8)
            (root / folder / f"{number}.png").write_bytes(saved(pixels))
    return root
