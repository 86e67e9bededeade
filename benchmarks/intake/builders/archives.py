"""Archives, as systems and download pages pack them."""

from __future__ import annotations

import io
import tarfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.intake.builders.files import grey
from benchmarks.intake.inputs import COUNT, WORDS, step


def png(rng: np.random.Generator) -> bytes:
    file = io.BytesIO()
    Image.fromarray(grey(rng)).save(file, "PNG")
    return file.getvalue()


def members(rng: np.random.Generator, classes: Sequence[str] = WORDS) -> Iterator[tuple[str, str, bytes]]:
    for number in range(COUNT):
        yield classes[number % len(classes)], f"{number:03d}.png", png(rng)


def add(archive: tarfile.TarFile, path: str, content: bytes) -> None:
    info = tarfile.TarInfo(path)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


@step
def zip_of(
    folder: Path,
    rng: np.random.Generator,
    form: str = "{word}/{file}",
    extra: Mapping[str, str] | None = None,
    classes: Sequence[str] = WORDS,
) -> None:
    """Write a.zip of class folders with names of this form, and of further files."""
    with zipfile.ZipFile(folder / "a.zip", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about names that occur twice
        found = [(form.format(word=word, file=file), content) for word, file, content in members(rng, classes)]
        for path, content in (*found, *((path, text.encode()) for path, text in (extra or {}).items())):
            info = zipfile.ZipInfo("x")
            info.filename = path  # the constructor would correct it
            archive.writestr(info, content)


@step
def zip_in_code_page(folder: Path, rng: np.random.Generator, page: str, *classes: str) -> None:
    """Write a.zip with names in an encoding that it does not state."""
    longest = max(len(name.encode(page)) for name in classes)
    stand_ins = {f"{number}" * longest: name for number, name in enumerate(classes)}
    zip_of(folder, rng, classes=tuple(stand_ins))
    data = (folder / "a.zip").read_bytes()
    for stand_in, name in stand_ins.items():
        data = data.replace(stand_in.encode(), name.encode(page).ljust(longest, b"x"))
    (folder / "a.zip").write_bytes(data)


@step
def encrypt(folder: Path, _: np.random.Generator, name: str) -> None:
    """Set the flag of encryption of every entry of a zip."""
    data = bytearray((folder / name).read_bytes())
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.find(magic)
        while at >= 0:
            data[at + offset] |= 1
            at = data.find(magic, at + 4)
    (folder / name).write_bytes(data)


@step
def zip_file(folder: Path, _: np.random.Generator, name: str, *paths: str) -> None:
    """Zip files of the folder."""
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path in paths:
            archive.write(folder / path, path)


@step
def tar(
    folder: Path, rng: np.random.Generator, name: str = "a.tar", mode: Any = "w", link: str = "", target: str = ""
) -> None:
    """Write a tar of class folders; `link` ("1" is hard, "2" symbolic) adds a link to each image."""
    with tarfile.open(folder / name, mode) as archive:
        for word, file, content in members(rng):
            add(archive, f"{word}/{file}" if link else f"./{word}/{file}", content)
            if link:
                info = tarfile.TarInfo(f"{word}/{file}".replace(".png", "_link.png"))
                info.type, info.linkname = link.encode(), target.format(word=word, file=file)
                archive.addfile(info)


@step
def tar_append(folder: Path, _: np.random.Generator, name: str, **more: str) -> None:
    """Add files to a tar."""
    with tarfile.open(folder / name, "a") as archive:
        for path, text in more.items():
            add(archive, path, text.encode())
