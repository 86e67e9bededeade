"""Both formats of a sample are read alike, and a folder appears as a whole or not at all."""

import json
import stat
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from obscura.client import DownloadCorrupt
from obscura.client.contents import ClassesDiffer, PlaceTaken, combine, read_images, unpack
from tests.pictures import archive, picture, saved
from workers.train.packing import describe_folders

LABELS = np.array([2, 0, 2, 0], dtype=np.int64)
NAMES = ["cat", "1", "dog"]  # no image of label 1


@pytest.mark.parametrize("shape", [(4, 5, 6), (4, 5, 6, 3)])
def test_both_formats_say_the_same(tmp_path, shape):
    pixels = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    np.savez(tmp_path / "arrays", images=pixels, labels=LABELS, classes=np.array(NAMES))
    lines = [
        {"file_name": f"{NAMES[label]}/{number}.png", "label": label, "class": NAMES[label]}
        for number, label in enumerate(LABELS.tolist())
    ]
    members = [(line["file_name"], saved(image)) for line, image in zip(lines, pixels, strict=True)]
    content = archive(*members, ("metadata.jsonl", "\n".join(map(json.dumps, lines))))
    (tmp_path / "folders.zip").write_bytes(content)
    for file_name, format in (("arrays.npz", "npz"), ("folders.zip", "imagefolder")):
        found = read_images(tmp_path / file_name, format, 4)
        assert np.array_equal(found.pixels, pixels)
        assert np.array_equal(found.labels, LABELS)
        assert found.classes == tuple(NAMES)


def test_a_folder_appears_as_a_whole_or_not_at_all(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.zip").write_bytes(archive(("x/1.png", "content")))
    assert unpack(tmp_path / "a.zip", tmp_path / "empty", 1) == tmp_path / "empty"
    assert (tmp_path / "empty" / "x" / "1.png").read_text() == "content"
    (tmp_path / "broken.zip").write_bytes((tmp_path / "a.zip").read_bytes()[:40])
    with pytest.raises(DownloadCorrupt):
        unpack(tmp_path / "broken.zip", tmp_path / "new", 1)
    with pytest.raises(PlaceTaken):
        unpack(tmp_path / "a.zip", tmp_path / "empty", 1)
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "a.zip", "broken.zip"}


def sample_of(path: Path, classes: list[str], *numbers: int) -> tuple[Path, int]:
    """The zip of a sample with one image of each number, of the class that the number names, and their count."""
    lines = [
        {"file_name": f"{classes[number]}/000000{number}.png", "label": number, "class": classes[number]}
        for number in numbers
    ]
    members = {str(line["file_name"]): f"{path.stem} {line['label']}" for line in lines} | {
        "metadata.jsonl": "".join(json.dumps(line) + "\n" for line in lines),
        "privacy_card.json": json.dumps({"account_id": path.stem}),
        "croissant.json": describe_folders("a release", {"epsilon": 1.0, "delta": 1e-5}, classes),
    }
    path.write_bytes(archive(*members.items()))
    return path, len(numbers)


def test_samples_are_combined_into_one_folder_or_archive(tmp_path):
    names = ["boot", "coat", "shirt"]
    samples = {"smp_a": sample_of(tmp_path / "a.zip", names, 0, 1), "smp_b": sample_of(tmp_path / "b.zip", names, 0, 2)}
    folder = combine(samples, tmp_path / "both")
    assert (folder / "boot" / "smp_a-0000000.png").read_text() == "a 0"
    assert (folder / "boot" / "smp_b-0000000.png").read_text() == "b 0"
    lines = [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]
    assert {line["file_name"]: (line["label"], line["class"]) for line in lines} == {
        str(path.relative_to(folder)): (names.index(path.parent.name), path.parent.name) for path in folder.glob("*/*")
    }
    assert len(lines) == 4
    cards = {path.name: json.loads(path.read_text())["account_id"] for path in folder.glob("*.privacy_card.json")}
    assert cards == {"smp_a.privacy_card.json": "a", "smp_b.privacy_card.json": "b"}
    with zipfile.ZipFile(combine(samples, tmp_path / "both.zip")) as made:
        packed = {name: made.read(name) for name in made.namelist() if not name.endswith("/")}
    assert packed == {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for taken in ("both", "both.zip"):
        with pytest.raises(PlaceTaken):
            combine(samples, tmp_path / taken)


@pytest.mark.parametrize("others", [["boot", "shirt", "coat"], ["boot", "coat"], ["boot", "coat", "shirt", "hat"]])
def test_samples_of_other_classes_are_not_combined(tmp_path, others):
    """Also where the classes that were drawn are the same: an added or swapped class gives labels another meaning."""
    first = sample_of(tmp_path / "a.zip", ["boot", "coat", "shirt"], 0)
    second = sample_of(tmp_path / "b.zip", others, 0)
    with pytest.raises(ClassesDiffer, match=f"smp_b has {', '.join(others)}"):
        combine({"smp_a": first, "smp_b": second}, tmp_path / "both")
    assert {path.name for path in tmp_path.iterdir()} == {"a.zip", "b.zip"}


@pytest.mark.parametrize("name", ["metadata.jsonl", "croissant.json"])
@pytest.mark.parametrize("content", ["7", "{}", '{"file_name": 7}', "not JSON", '{"recordSet": [{"@id": "classes"}]}'])
def test_a_damaged_sample_is_not_combined(tmp_path, name, content):
    path, count = sample_of(tmp_path / "a.zip", ["boot"], 0)
    with zipfile.ZipFile(path) as made:
        files = {each: made.read(each) for each in made.namelist()}
    (tmp_path / "b.zip").write_bytes(archive(*(files | {name: content}).items()))
    with pytest.raises(DownloadCorrupt):
        combine({"smp_a": (path, count), "smp_b": (tmp_path / "b.zip", count)}, tmp_path / "both")
    assert {path.name for path in tmp_path.iterdir()} == {"a.zip", "b.zip"}


def entry(name: str, mode: int = 0) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)
    made.external_attr = mode << 16
    return made


HOSTILE = {
    "a parent": [(entry("../outside.png"), b"x")],
    "a parent in the middle": [(entry("a/../../outside.png"), b"x")],
    "an absolute name": [(entry("/absolute.png"), b"x")],
    "a drive": [(entry("C:/absolute.png"), b"x")],
    "a backslash": [(entry("..\\outside.png"), b"x")],
    "a control character": [(entry("a\x1b[2J.png"), b"x")],
    "a name that is too long": [(entry("a" * 300 + ".png"), b"x")],
    "a name twice": [(entry("a.png"), b"x"), (entry("a.png"), b"y")],
    "a file and a folder": [(entry("a"), b"x"), (entry("a/b.png"), b"y")],
    "a symbolic link": [(entry("a.png", stat.S_IFLNK | 0o777), b"/etc/passwd")],
    "a device": [(entry("a.png", stat.S_IFCHR | 0o666), b"")],
    "too many entries": [(entry(f"{number}.png"), b"") for number in range(1100)],
    "a bomb": [(entry("a.png"), bytes(10_000_000))],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing(tmp_path, kind):
    for info, _ in HOSTILE[kind]:
        info.compress_type = zipfile.ZIP_DEFLATED
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (tmp_path / "a.zip").write_bytes(archive(*HOSTILE[kind]))
    with pytest.raises(DownloadCorrupt):
        unpack(tmp_path / "a.zip", tmp_path / "in" / "side", 10)
    assert {path.name for path in tmp_path.rglob("*")} == {"a.zip", "in"}


def test_a_hostile_description_is_refused(tmp_path):
    image, huge = picture(size=(8, 8)), picture(mode="1", size=(4000, 4000), value=0)
    for line, content in (
        ({"file_name": "a.png", "label": 10**15, "class": "a"}, image),
        ({"file_name": "a.png", "label": "a", "class": "a"}, image),
        ({"file_name": "b.png", "label": 0, "class": "a"}, image),
        ({"label": 0}, image),
        ({"file_name": "a.png", "label": 0, "class": "a"}, huge),
        ({"file_name": "a.png", "label": 0, "class": "a"}, b"no image"),
    ):
        (tmp_path / "a.zip").write_bytes(archive(("metadata.jsonl", json.dumps(line)), ("a.png", content)))
        with pytest.raises(DownloadCorrupt):
            read_images(tmp_path / "a.zip", "imagefolder", 1)
