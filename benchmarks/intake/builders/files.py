"""Folders of random images, tables beside them, and changes to files that other steps wrote."""

from __future__ import annotations

import gzip as gzips
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.intake.inputs import COUNT, WORDS, run_steps, step


def grey(rng: np.random.Generator, height: int = 16, width: int = 16) -> np.ndarray[Any, Any]:
    """Return random grey pixels, uint8 (height, width)."""
    return rng.integers(0, 256, (height, width), dtype=np.uint8)


def place(folder: Path, path: str) -> Path:
    """Return the path in a folder, which is created; {folder} is the folder itself."""
    file = folder / path.replace("{folder}", str(folder))
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


@step
def files(folder: Path, rng: np.random.Generator, *paths: str) -> None:
    """Write random grey images; "normal*3" is normal/000.png, normal/001.png and normal/002.png."""
    for path in paths:
        inside, several, last = path.rpartition("*")
        names = [f"{inside}/{number:03d}.png" for number in range(int(last))] if several else [path]
        for name in names:
            Image.fromarray(grey(rng)).save(place(folder, name.removeprefix("/")))


@step
def zipped(folder: Path, rng: np.random.Generator, *paths: str, name: str = "a", **steps: Any) -> None:
    """Zip random images, or the files that other steps build."""
    run_steps(steps or {"files": list(paths)}, folder / "inside", rng)
    shutil.make_archive(str(folder / name), "zip", folder / "inside")


@step
def table(
    folder: Path,
    rng: np.random.Generator,
    head: str,
    line: str,
    labels: Sequence[str] = WORDS,
    *,
    file: str = "labels.csv",
    images: str = "{stem}.png",
    count: int = COUNT,
    encoding: str = "utf-8",
) -> None:
    """Write numbered images, unless `images` is "", and a table with a line for each.

    Both may name the values below.
    """
    rows = []
    for n in range(count):
        values = {
            "n": n,
            "next": 1 + n % 2,
            "half": n // 2,
            "odd": n % 2,
            "stem": f"{n:03d}",
            "file": f"{n:03d}.png",
            "label": labels[n % len(labels)],
            "subject": f"P{n // 2}",
            "other": n % 3 // 2,
        }
        if images:
            files(folder, rng, images.format(**values))
        rows.append(line.format(**values))
    lines = [*([head] if head else []), *rows, ""]
    place(folder, file).write_bytes("\n".join(lines).encode(encoding))


@step
def ids(folder: Path, rng: np.random.Generator, *names: str) -> None:
    """Write images of two classes and a table of their subjects, two images of each, one after the other."""
    paths = [f"{number:03d}.png" for number in range(2 * len(names))]
    files(folder, rng, *paths)
    rows = [f"{path},{WORDS[number % 2]},{names[number % len(names)]}" for number, path in enumerate(paths)]
    (folder / "labels.csv").write_text("\n".join(["file,label,subject", *rows, ""]), encoding="utf-8")


@step
def text(folder: Path, _: np.random.Generator, file: str, content: str, encoding: str = "utf-8") -> None:
    """Write a text file."""
    place(folder, file).write_bytes(content.encode(encoding))


@step
def data(folder: Path, _: np.random.Generator, file: str, content: str, zeros: int = 0) -> None:
    """Write bytes, given as hexadecimal digits, and zeros behind them."""
    place(folder, file).write_bytes(bytes.fromhex(content) + bytes(zeros))


@step
def link(folder: Path, _: np.random.Generator, target: str, *paths: str) -> None:
    """Write symbolic links."""
    for path in paths:
        place(folder, path).symlink_to(target)


@step
def copy(folder: Path, _: np.random.Generator, source: str, *paths: str) -> None:
    """Copy a file to each path."""
    for path in paths:
        shutil.copy(folder / source, place(folder, path))


@step
def resave(folder: Path, _: np.random.Generator, pattern: str, target: str) -> None:
    """Save images again, perhaps as another type."""
    for path in sorted(folder.glob(pattern)):
        with Image.open(path) as image:
            image.save(place(folder, target.format(stem=path.stem)))


@step
def delete(folder: Path, _: np.random.Generator, *paths: str) -> None:
    """Delete files."""
    for path in paths:
        (folder / path).unlink()


@step
def rename(folder: Path, _: np.random.Generator, **paths: str) -> None:
    """Rename files or folders."""
    for old, new in paths.items():
        (folder / old).rename(folder / new)


@step
def cut(folder: Path, _: np.random.Generator, pattern: str, length: float) -> None:
    """Keep so many bytes of each file; a fraction is a share, and a negative number is cut off at the end."""
    for path in sorted(folder.glob(pattern)):
        content = path.read_bytes()
        path.write_bytes(content[: length if isinstance(length, int) else int(len(content) * length)])


@step
def gzip(folder: Path, _: np.random.Generator, *paths: str) -> None:
    """Replace files by gzipped ones."""
    for path in paths:
        (folder / f"{path}.gz").write_bytes(gzips.compress((folder / path).read_bytes()))
        (folder / path).unlink()


@step
def coco(
    folder: Path,
    rng: np.random.Generator,
    file: str = "annotations/instances.json",
    images: str = "images",
    count: int = COUNT,
    more: Sequence[Mapping[str, int]] = (),
) -> None:
    """Write images and annotations as COCO has them."""
    files(folder, rng, f"{images}*{count}")
    document = {
        "images": [{"id": n, "file_name": f"{n:03d}.png"} for n in range(count)],
        "annotations": [{"id": n, "image_id": n, "category_id": n % 2} for n in range(count)] + list(more),
        "categories": [{"id": n, "name": word} for n, word in enumerate(WORDS)],
    }
    place(folder, file).write_text(json.dumps(document))
