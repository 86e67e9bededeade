"""Folders of images as people have them, DICOM files with tags that must not leave the machine, and refusals."""

import io
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.intake.builders.volumes import radiograph
from obscura.preparing import Arrays, ChoiceNeeded, Choices, PackingError, prepare
from tests.pictures import png, png_chunk, saved, write_files

Array = np.ndarray
CANARIES = {
    "PatientName": "CANARYNAME^ANNA",
    "PatientBirthDate": "19010203",
    "InstitutionName": "CANARY HOSPITAL",
    "ReferringPhysicianName": "CANARYDOCTOR",
    "AccessionNumber": "CANARY7714",
    "StudyDescription": "CANARYSTUDY",
}


def dicom_file(values: np.ndarray, **tags: Any) -> bytes:
    """A file of (h, w) numbers, (frames, h, w), or (h, w, 3) with PhotometricInterpretation="RGB"."""
    file = radiograph(values, **{"BitsStored": 8 * values.dtype.itemsize, **CANARIES, **tags})
    target = io.BytesIO()
    file.save_as(target, enforce_file_format=True)
    return target.getvalue()


def deep_png(values: Array) -> bytes:
    """A PNG with 16 bits a channel, which Pillow cannot write in colour. values: (h, w, 3) up to 65,535."""
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return png(values.shape[1::-1], png_chunk(b"IDAT", zlib.compress(rows)), bits=16, colour_type=2)


def flags_asked(act: Callable[..., object], *args: Any, **kwargs: Any) -> tuple[str, ...]:
    with pytest.raises(ChoiceNeeded) as asked:
        act(*args, **kwargs)
    return asked.value.flags


def assert_refused(path: Path | Arrays, match: str, *choices: Choices, **given: Any) -> None:
    with pytest.raises(PackingError, match=match):
        prepare(path, *choices, **given)


@pytest.fixture
def colours() -> Callable[..., Array]:
    rng = np.random.default_rng(7)

    def make(height: int = 48, width: int = 48) -> Array:
        return rng.integers(0, 255, (height, width, 3), dtype=np.uint8)

    return make


@pytest.fixture
def motley(tmp_path: Path, colours: Callable[..., Array]) -> Path:
    """Mixed sizes, modes, transparency, orientation, depths and frames, with what systems leave behind: 13 images."""
    image, lying = Image.fromarray(colours()), Image.Exif()
    lying[0x0112] = 6
    opaque, clear = (np.dstack([colours(), np.full((48, 48), 255, np.uint8)]) for _ in range(2))
    clear[:10, :, 3] = 100
    frames = [Image.fromarray(colours()).convert("P") for _ in range(3)]
    root = write_files(
        tmp_path / "motley",
        {
            **{f"cat/plain.{suffix}": image for suffix in ("png", "jpg", "bmp")},
            "cat/plain.webp": saved(image, "WEBP", lossless=True),
            "cat/wide.jpeg": colours(60, 90),
            "cat/lying.jpg": saved(colours(64, 40), "JPEG", exif=lying),
            "cat/grey.png": image.convert("L"),
            "dog/printed.jpg": image.convert("CMYK"),
            "dog/palette.gif": image.convert("P"),
            "dog/clear.png": clear,
            "dog/deep.png": deep_png(colours().astype(np.uint16) * 257),
            "dog/moving.gif": saved(frames[0], "GIF", save_all=True, append_images=frames[1:]),
            "dog/opaque.png": opaque,
            "dog/notes.txt": "a note",
            **dict.fromkeys(["cat/.DS_Store", "dog/Thumbs.db", ".hidden", "__MACOSX/cat/._plain.png"], b"junk"),
        },
    )
    (root / "empty").mkdir()
    return root
