"""Preparing on the owner's side: what is read off and sent, how subjects are numbered anew; names stay here."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from service.client.preparing import Choices, PackingError, prepare


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Two class folders with five pictures, one of them with a name that tells too much."""
    root = tmp_path / "pictures"
    for name, count in (("dog", 2), ("cat", 3)):
        (root / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (12, 8), (number, 0, 0)).save(root / name / f"CANARY-patient-{number}.png")
    (root / "cat" / "notes.txt").write_text("CANARY")
    return root


def idx(folder: Path, split: str, count: int, *, packed: bool) -> None:
    images = struct.pack(">4I", 0x803, count, 8, 12) + bytes(count * 96)
    labels = struct.pack(">2I", 0x801, count) + bytes(number % 3 for number in range(count))
    for name, body in ((f"{split}-images-idx3-ubyte", images), (f"{split}-labels-idx1-ubyte", labels)):
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(body) if packed else body)


def test_class_folders(folders: Path) -> None:
    package = prepare(folders)
    assert package.format == "zip"
    assert package.classes == ("cat", "dog")
    assert (package.height, package.width, package.channels, package.records) == (8, 12, 3, 5)
    body = b"".join(package.open())
    assert b"CANARY" not in body
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        assert archive.testzip() is None
        assert sorted(name.split("/")[0] for name in archive.namelist()) == ["cat", "cat", "cat", "dog", "dog"]
    assert b"".join(package.open()) == body  # the same bytes again


@pytest.mark.parametrize("packed", [True, False])
def test_idx_pairs(tmp_path: Path, packed: bool) -> None:
    idx(tmp_path, "train", 7, packed=packed)
    package = prepare(tmp_path)
    assert package.format == "idx"
    assert (package.height, package.width, package.channels, package.records) == (8, 12, 1, 7)
    assert package.classes == ("0", "1", "2")
    with zipfile.ZipFile(io.BytesIO(b"".join(package.open()))) as archive:
        assert len(archive.namelist()) == 2
    idx(tmp_path, "t10k", 5, packed=packed)
    assert "not t10k" in prepare(tmp_path).summary  # train is taken, and said
    with pytest.raises(PackingError, match="t10k, train"):
        prepare(tmp_path, Choices(split="val"))
    assert prepare(tmp_path, Choices(split="t10k")).records == 5
    (images,) = tmp_path.glob("train-images*")
    assert prepare(images).records == 7


def test_npz_and_zip(tmp_path: Path, folders: Path) -> None:
    arrays = tmp_path / "a.npz"
    np.savez(arrays, images=np.zeros((9, 8, 12, 3), np.uint8), labels=np.arange(9) % 4)
    package = prepare(arrays)
    assert (package.format, package.records, package.channels) == ("npz", 9, 3)
    assert package.classes == ("0", "1", "2", "3")
    assert b"".join(package.open()) == arrays.read_bytes()
    archive = tmp_path / "a.zip"
    archive.write_bytes(b"".join(prepare(folders).open()))
    assert prepare(archive).classes == ("cat", "dog")
    assert prepare(archive).records == 5


@pytest.mark.parametrize("content", [None, b"", b"not this", b"PK\x03\x04"])
@pytest.mark.parametrize("suffix", [".npz", ".zip", ".tar", ""])
def test_what_cannot_be_packed(tmp_path: Path, suffix: str, content: bytes | None) -> None:
    path = tmp_path / f"file{suffix}"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PackingError):
        prepare(path)


def test_broken_idx(tmp_path: Path) -> None:
    idx(tmp_path, "train", 7, packed=False)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03\0")
    with pytest.raises(PackingError, match="damaged"):
        prepare(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(PackingError, match="complete"):
        prepare(tmp_path)


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """Two classes; anna in both, written in two ways; seven pictures of three people."""
    root = tmp_path / "people"
    for folder, count in (("cat/Zoë", 2), ("cat/CANARY-bert", 1), ("dog/Zoe\u0308", 3), ("dog/carl", 1)):
        (root / folder).mkdir(parents=True)
        for number in range(count):
            Image.new("L", (8, 8), 10 * number).save(root / folder / f"CANARY-{number}.png")
    return root


def owners_in(body: bytes) -> dict[tuple[str, str], int]:
    counted: dict[tuple[str, str], int] = defaultdict(int)
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        for name in archive.namelist():
            label, owner, _ = name.split("/")
            counted[label, owner] += 1
    return dict(counted)


def test_folders_of_subjects_are_numbered_and_their_names_stay(people: Path) -> None:
    package = prepare(people, subjects=True)
    assert (package.records, package.subjects, package.classes) == (7, 3, ("cat", "dog"))
    body = b"".join(package.open())
    for name in (b"CANARY", b"carl", "Zoë".encode()):
        assert name not in body
    counted = owners_in(body)
    assert sorted(counted.values()) == [1, 1, 2, 3]
    (in_both,) = {owner for _, owner in counted if {("cat", owner), ("dog", owner)} <= set(counted)}
    assert (counted["cat", in_both], counted["dog", in_both]) == (2, 3)


def test_numbers_are_in_no_order(people: Path) -> None:
    """Zoë is the third by name and the second to appear; over 40 preparations she has every number."""
    seen = {
        max(owners_in(b"".join(prepare(people, subjects=True).open())).items(), key=lambda x: x[1])[0][1]
        for _ in range(40)
    }
    assert seen == {"0", "1", "2"}


def test_what_the_account_has_no_use_for_is_refused_before_anything_is_sent(people: Path, tmp_path: Path) -> None:
    with pytest.raises(PackingError, match="the account protects single records"):
        prepare(people)
    (people / "dog" / "loose.png").write_bytes((people / "dog" / "carl" / "CANARY-0.png").read_bytes())
    with pytest.raises(PackingError, match="outside of the folders of subjects"):
        prepare(people, subjects=True)
    arrays = {"images": np.zeros((4, 8, 8), np.uint8), "labels": np.arange(4) % 2}
    np.savez(tmp_path / "without.npz", **arrays)
    np.savez(tmp_path / "with.npz", **arrays, subjects=np.array(["a", "b", " a", "c"]))
    np.savez(tmp_path / "blank.npz", **arrays, subjects=np.array(["a", "b", "", "c"]))
    assert prepare(tmp_path / "with.npz", subjects=True).subjects == 3
    assert prepare(tmp_path / "without.npz").subjects is None
    with pytest.raises(PackingError, match="third array 'subjects'"):
        prepare(tmp_path / "without.npz", subjects=True)
    with pytest.raises(PackingError, match="Leave 'subjects' out"):
        prepare(tmp_path / "with.npz")
    with pytest.raises(PackingError, match="is no id"):
        prepare(tmp_path / "blank.npz", subjects=True)


def test_zip_and_idx_files_with_subjects(people: Path, tmp_path: Path) -> None:
    archive = tmp_path / "a.zip"
    archive.write_bytes(b"".join(prepare(people, subjects=True).open()))
    assert (prepare(archive, subjects=True).subjects, prepare(archive, subjects=True).records) == (3, 7)
    with zipfile.ZipFile(archive, "a") as more:
        more.writestr("cat/1.png", b"")
    with pytest.raises(PackingError, match="class/subject/picture"):
        prepare(archive, subjects=True)
    folder = tmp_path / "idx"
    folder.mkdir()
    (folder / "train-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, 4, 8, 8) + bytes(256))
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 4) + bytes(4))
    with pytest.raises(PackingError, match="train-subjects-idx1-int"):
        prepare(folder, subjects=True)
    third = folder / "train-subjects-idx1-int"
    third.write_bytes(struct.pack(">2I4i", 0xC01, 4, 7, 7, 9, 7))
    package = prepare(folder, subjects=True)
    assert (package.records, package.subjects) == (4, 2)
    with zipfile.ZipFile(io.BytesIO(b"".join(package.open()))) as packed:
        assert len(packed.namelist()) == 3
    assert prepare(folder).subjects is None  # the pair alone is sent
    third.write_bytes(struct.pack(">2I4i", 0x801, 4, 7, 7, 9, 7))
    with pytest.raises(PackingError, match="damaged"):
        prepare(folder, subjects=True)
