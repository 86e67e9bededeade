"""Class folders, what is passed over in them, parts such as train/ and test/, tables of labels, and zips of it all."""

import io
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from obscura.preparing import BrokenPictures, ChoiceNeeded, PackingError, prepare, read_choices

Fill = Callable[..., Path]


@pytest.fixture
def fill(tmp_path: Path) -> Fill:
    """Put pictures of 16 x 16 pixels at paths below a folder."""

    def make(*paths: str, root: str = "pictures") -> Path:
        for number, path in enumerate(paths):
            file = tmp_path / root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (16, 16), (number, 20, 30)).save(file)
        return tmp_path / root

    return make


def names(root: Path, **choices: object) -> list[str]:
    """Class and brightness of each picture that is sent."""
    found = []
    with zipfile.ZipFile(io.BytesIO(b"".join(prepare(root, read_choices(**choices)).open()))) as archive:  # type: ignore[arg-type]
        for name in archive.namelist():
            with Image.open(io.BytesIO(archive.read(name))) as picture:
                found.append(f"{name.split('/')[0]} {picture.getpixel((0, 0))[0]}")  # type: ignore[index]
    return sorted(found)


def test_junk_is_skipped_and_counted(fill):
    root = fill("a/1.png", "b/2.png", "loose.png")
    (root / "empty").mkdir()
    for junk in (".DS_Store", "a/._1.png", "a/Thumbs.db", "b/desktop.ini"):
        (root / junk).write_bytes(b"junk")
    (root / "__MACOSX" / "a").mkdir(parents=True)
    (root / "__MACOSX" / "a" / "1.png").write_bytes(b"junk")
    (root / "a" / "readme.md").write_text("")
    assert names(root) == ["a 0", "b 1"]
    summary = prepare(root).summary
    assert summary.startswith("2 pictures: 2 scaled to 32 x 32; left out ")
    for part in (
        "5 hidden or system files", "1 empty class folder", "1 picture outside of the class folders",
        "1 other file (.md)",
    ):  # fmt: skip
        assert part in summary


def test_of_train_and_test_train_is_taken_and_said(fill):
    root = fill("train/a/1.png", "train/b/1.png", "test/a/1.png", "test/b/1.png", "test/b/2.png")
    assert names(root) == ["a 0", "b 1"]
    assert prepare(root).summary == "train/ (not test/; --split chooses): 2 pictures: 2 scaled to 32 x 32."
    assert names(root, split="test") == ["a 2", "b 3", "b 4"]
    with pytest.raises(PackingError, match="test, train"):
        prepare(root, read_choices(split="val"))


def test_classes_called_train_and_test(fill):
    assert names(fill("train/1.png", "test/1.png")) == ["test 1", "train 0"]
    with pytest.raises(PackingError, match="leave --split out"):
        prepare(fill("train/1.png"), read_choices(split="train"))


def test_a_table_of_labels(fill, tmp_path):
    root = fill("1.png", "2.png", "deep/er/3.png", "4.png")
    with pytest.raises(ChoiceNeeded) as error:
        prepare(root)
    assert error.value.flags == ("--labels labels.csv",)
    table = root / "labels.csv"
    table.write_text("\ufefffile,label,age\n1.png,boat,3\n./2.png,car,4\ndeep\\er\\3.png,boat,5\n", encoding="utf-8")
    assert names(root, labels="labels.csv") == ["boat 0", "boat 2", "car 1"]
    summary = prepare(root, read_choices(labels=table)).summary
    assert summary.startswith("labels from labels.csv: 3 pictures: 3 scaled to 32 x 32; left out ")
    assert "1 picture not named in the table" in summary


def test_a_table_with_subjects(fill):
    root = fill("1.png", "2.png", "3.png")
    (root / "labels.csv").write_text("file,label,subject\n1.png,a,anna\n2.png,b,anna\n3.png,b,carl\n")
    package = prepare(root, read_choices(labels="labels.csv"), subjects=True)
    assert (package.private_records, package.private_subjects) == (3, 2)
    body = b"".join(package.open())
    assert b"anna" not in body
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        (first, second, third) = (name.split("/")[:2] for name in archive.namelist())
    assert first[1] == second[1] != third[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("picture,class\n1.png,a\n", "Its columns are picture, class"),
        ("file,label\n", "names no picture"),
        ("file,label\n1.png,\n", "do not tell the class"),
        ("file,label\n1.png,a\n1.png,b\n", "two things"),
        ("file,label\n../secret.png,a\n", "outside of the folder"),
        ("file,label\n,a\n", "names no file"),
        ("file,label\n1.png,a\tb\n", "cannot be the name of a class"),
    ],
)
def test_tables_that_will_not_do(fill, text, message):
    root = fill("1.png", "2.png")
    (root / "labels.csv").write_text(text)
    with pytest.raises(PackingError, match=message):
        prepare(root, read_choices(labels="labels.csv"))


def test_a_table_that_names_what_is_not_there(fill):
    root = fill("1.png")
    (root / "labels.csv").write_text("file,label\n1.png,a\n2.png,a\n")
    with pytest.raises(BrokenPictures, match=r"2\.png .*cannot be opened"):
        prepare(root, read_choices(labels="labels.csv"))
    assert names(root, labels="labels.csv", skip_broken=True) == ["a 0"]
    with pytest.raises(PackingError, match="cannot be read"):
        prepare(root, read_choices(labels="missing.csv"))


@pytest.mark.parametrize("around", [False, True])
def test_a_zip_is_a_folder(fill, tmp_path, around):
    root = fill("a/1.png", "b/2.png", "b/._2.png", root="set")
    (root / "b" / "torn.jpg").write_bytes(b"\xff\xd8\xff")
    archive = shutil.make_archive(str(tmp_path / "set"), "zip", *((tmp_path, "set") if around else (root,)))
    with zipfile.ZipFile(archive, "a") as more:
        more.writestr("__MACOSX/set/a/._1.png", b"junk")
    with pytest.raises(BrokenPictures, match=r"b/torn\.jpg"):
        prepare(Path(archive))
    assert names(Path(archive), skip_broken=True) == ["a 0", "b 1"]


def test_pictures_of_subjects_and_records_of_nobody(fill):
    with pytest.raises(PackingError, match="single records"):
        prepare(fill("a/x/y/anna/1.png", "a/1.png"))
    root = fill("a/anna/1.png", "a/anna/left/2.png", root="owned")
    assert "1 picture below the folders of subjects" in prepare(root, subjects=True).summary


def test_links_that_lead_in_circles(fill):
    root = fill("a/1.png", "b/2.png")
    (root / "labels.csv").write_text("file,label\na/1.png,x\nb/2.png,y\n")
    (root / "a" / "up").symlink_to(root)
    (root / "b" / "across").symlink_to(root / "a")
    assert names(root, labels="labels.csv") == ["x 0", "y 1"]


def test_linked_class_folders_count(fill, tmp_path):
    root = fill("a/1.png")
    (root / "b").symlink_to(fill("2.png", "3.png", root="elsewhere"))
    assert [name[0] for name in names(root)] == ["a", "b", "b"]


def test_a_class_whose_accent_is_written_in_two_ways(fill):
    package = prepare(fill("Zo\u00e9/1.png", "Zoe\u0301/2.png"))
    assert (package.classes, package.private_records) == (("Zo\u00e9",), 2)


def test_what_is_said_of_nothing(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "notes.txt").write_text("")
    with pytest.raises(PackingError, match="no class folders with pictures"):
        prepare(tmp_path)
    with pytest.raises(PackingError, match="--attribute is for CelebA"):
        prepare(tmp_path, read_choices(attribute="Male"))


def test_a_picture_that_is_no_picture_of_this_size_is_not_read_whole(fill, monkeypatch):
    root = fill("a/1.png")
    with (root / "a" / "huge.png").open("wb") as file:
        file.truncate(2**40)  # a hole of a terabyte
    with pytest.raises(BrokenPictures, match="larger than 256 MiB"):
        prepare(root)


def test_names_of_systems_stay_out_of_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.zeros((4, 16, 16), np.uint8), labels=np.arange(4) % 2)
    assert prepare(tmp_path / "a.npz").summary == "Arrays: 4 pictures, as they are."
    package = prepare(tmp_path / "a.npz", read_choices(size="8"))
    assert (package.format, package.height, package.width, package.classes) == ("zip", 8, 8, ("0", "1"))
    assert package.summary == "Arrays: 4 pictures: 4 scaled to 8 x 8."


@pytest.mark.parametrize("name", ["cat\u202e", "c\u200bat", "c\x85at", " cat", "cat\u00a0", "cat\u200d"])
def test_a_folder_whose_name_no_class_can_have_is_refused_before_anything_is_sent(fill, name):
    with pytest.raises(PackingError, match="cannot be the name of a class: a name has 1 to 100 characters"):
        prepare(fill(f"{name}/1.png", "b/2.png"))


def test_a_class_whose_name_is_spelt_in_two_ways_is_one_class(fill):
    assert names(fill("café/1.png", "cafe\u0301/2.png", "b/3.png")) == ["b 2", "café 0", "café 1"]


def test_class_names_of_any_script_are_sent(fill):
    persian, hindi = "می\u200cخواهم", "क्\u200dष"
    assert names(fill(f"{persian}/1.png", f"{hindi}/2.png", "日本/3.png")) == sorted(
        [f"{persian} 0", f"{hindi} 1", "日本 2"]
    )
