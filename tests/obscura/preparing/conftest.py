"""Folders of images as people have them, and the images that are sent."""

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

Array = np.ndarray


def saved(image: Image.Image | Array, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(file, kind, **options)
    return file.getvalue()


def deep_png(values: Array) -> bytes:
    """A PNG with 16 bits a channel, which Pillow cannot write in colour. values: (h, w, 3) up to 65,535."""
    height, width, _ = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    chunks = ((b"IHDR", struct.pack(">2I5B", width, height, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)))
    body = b"\x89PNG\r\n\x1a\n"
    for kind, data in (*chunks, (b"IEND", b"")):
        body += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return body


@pytest.fixture
def colours() -> Callable[..., Array]:
    """Random colour pixels (height, width, 3)."""
    rng = np.random.default_rng(7)

    def make(height: int = 48, width: int = 48) -> Array:
        return rng.integers(0, 255, (height, width, 3), dtype=np.uint8)

    return make


@pytest.fixture
def motley(tmp_path: Path, colours: Callable[..., Array]) -> Path:
    """Mixed sizes, modes, transparency, orientation, depths and frames, with what systems leave behind: 13 images."""
    root = tmp_path / "motley"
    cat, dog = root / "cat", root / "dog"
    for folder in (cat, dog, root / "empty", root / "__MACOSX" / "cat"):
        folder.mkdir(parents=True)
    image = Image.fromarray(colours())
    image.save(cat / "plain.png")
    image.save(cat / "plain.jpg")
    image.save(cat / "plain.webp", lossless=True)
    image.save(cat / "plain.bmp")
    Image.fromarray(colours(60, 90)).save(cat / "wide.jpeg")
    lying = Image.Exif()
    lying[0x0112] = 6
    Image.fromarray(colours(64, 40)).save(cat / "lying.jpg", exif=lying)
    image.convert("L").save(cat / "grey.png")
    image.convert("CMYK").save(dog / "printed.jpg")
    image.convert("P").save(dog / "palette.gif")
    clear = np.dstack([colours(), np.full((48, 48), 255, np.uint8)])
    clear[:10, :, 3] = 100
    Image.fromarray(clear).save(dog / "clear.png")
    (dog / "deep.png").write_bytes(deep_png(colours().astype(np.uint16) * 257))
    frames = [Image.fromarray(colours()).convert("P") for _ in range(3)]
    frames[0].save(dog / "moving.gif", save_all=True, append_images=frames[1:])
    opaque = np.dstack([colours(), np.full((48, 48), 255, np.uint8)])
    Image.fromarray(opaque).save(dog / "opaque.png")
    for junk in (cat / ".DS_Store", dog / "Thumbs.db", root / ".hidden", root / "__MACOSX" / "cat" / "._plain.png"):
        junk.write_bytes(b"junk")
    (dog / "notes.txt").write_text("a note")
    return root
