"""Packing on the owner's side: what is read off, what is sent, and that names of files stay here."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from service.cli.datasets import rounded_up
from service.cli.packing import PackingError, pack


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Two class folders with five pictures, one of them with a name that tells too much."""
    root = tmp_path / "pictures"
    for name, count in (("dog", 2), ("cat", 3)):
        (root / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (6, 4), (number, 0, 0)).save(root / name / f"CANARY-patient-{number}.png")
    (root / "cat" / "notes.txt").write_text("CANARY")
    return root


def idx(folder: Path, split: str, count: int, *, packed: bool) -> None:
    images = struct.pack(">4I", 0x803, count, 4, 6) + bytes(count * 24)
    labels = struct.pack(">2I", 0x801, count) + bytes(number % 3 for number in range(count))
    for name, body in ((f"{split}-images-idx3-ubyte", images), (f"{split}-labels-idx1-ubyte", labels)):
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(body) if packed else body)


def test_class_folders(folders: Path) -> None:
    package = pack(folders)
    assert package.format == "zip"
    assert package.classes == ("cat", "dog")
    assert (package.height, package.width, package.channels, package.records) == (4, 6, 3, 5)
    body = b"".join(package.open())
    assert b"CANARY" not in body
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        assert archive.testzip() is None
        assert sorted(name.split("/")[0] for name in archive.namelist()) == ["cat", "cat", "cat", "dog", "dog"]
    assert b"".join(package.open()) == body  # the same bytes again


@pytest.mark.parametrize("packed", [True, False])
def test_idx_pairs(tmp_path: Path, packed: bool) -> None:
    idx(tmp_path, "train", 7, packed=packed)
    package = pack(tmp_path)
    assert package.format == "idx"
    assert (package.height, package.width, package.channels, package.records) == (4, 6, 1, 7)
    assert package.classes == ("0", "1", "2")
    with zipfile.ZipFile(io.BytesIO(b"".join(package.open()))) as archive:
        assert len(archive.namelist()) == 2
    idx(tmp_path, "t10k", 5, packed=packed)
    with pytest.raises(PackingError, match="t10k, train"):
        pack(tmp_path)
    assert pack(tmp_path, split="t10k").records == 5
    (images,) = tmp_path.glob("train-images*")
    assert pack(images).records == 7


def test_npz_and_zip(tmp_path: Path, folders: Path) -> None:
    arrays = tmp_path / "a.npz"
    np.savez(arrays, images=np.zeros((9, 4, 6, 3), np.uint8), labels=np.arange(9) % 4)
    package = pack(arrays)
    assert (package.format, package.records, package.channels) == ("npz", 9, 3)
    assert package.classes == ("0", "1", "2", "3")
    assert b"".join(package.open()) == arrays.read_bytes()
    archive = tmp_path / "a.zip"
    archive.write_bytes(b"".join(pack(folders).open()))
    assert pack(archive).classes == ("cat", "dog")
    assert pack(archive).records == 5


@pytest.mark.parametrize("content", [None, b"", b"not this", b"PK\x03\x04"])
@pytest.mark.parametrize("suffix", [".npz", ".zip", ".tar", ""])
def test_what_cannot_be_packed(tmp_path: Path, suffix: str, content: bytes | None) -> None:
    path = tmp_path / f"file{suffix}"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PackingError):
        pack(path)


def test_broken_idx(tmp_path: Path) -> None:
    idx(tmp_path, "train", 7, packed=False)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03\0")
    with pytest.raises(PackingError, match="damaged"):
        pack(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(PackingError, match="complete"):
        pack(tmp_path)


@pytest.mark.parametrize(
    ("count", "declared"),
    [(1, 1), (9, 9), (10, 10), (99, 99), (101, 110), (1797, 1800), (60_000, 60_000), (60_001, 61_000)],
)
def test_counts_are_rounded_up_to_two_digits(count: int, declared: int) -> None:
    assert rounded_up(count) == declared
