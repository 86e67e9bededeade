"""Class folders, what is passed over in them, parts such as train/ and test/, tables of labels, and zips of it all."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from obscura.preparing import BrokenImages, ChoiceNeeded, Choices, PackingError, prepare
from tests.obscura.preparing.conftest import shades

Fill = Callable[..., Path]


@pytest.fixture
def fill(tmp_path: Path) -> Fill:
    """Put images of 16 x 16 pixels at paths below a folder."""

    def make(*paths: str, root: str = "images") -> Path:
        for number, path in enumerate(paths):
            file = tmp_path / root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (16, 16), (number, 20, 30)).save(file)
        return tmp_path / root

    return make


def names(root: Path, **choices: object) -> list[str]:
    return shades(prepare(root, Choices(**choices)))


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
    assert summary.startswith("2 images: 2 scaled to 32 x 32; left out ")
    for part in (
        "5 hidden or system files", "1 empty class folder", "1 image outside of the class folders",
        "1 other file (.md)",
    ):  # fmt: skip
        assert part in summary


def test_of_train_and_test_train_is_taken_and_said(fill):
    root = fill("train/a/1.png", "train/b/1.png", "test/a/1.png", "test/b/1.png", "test/b/2.png")
    assert names(root) == ["a 0", "b 1"]
    assert prepare(root).summary == "train/ (not test/; --split chooses): 2 images: 2 scaled to 32 x 32."
    assert names(root, split="test") == ["a 2", "b 3", "b 4"]
    with pytest.raises(PackingError, match="test, train"):
        prepare(root, Choices(split="val"))


def test_a_table_of_labels(fill, tmp_path):
    root = fill("1.png", "2.png", "deep/er/3.png", "4.png")
    with pytest.raises(ChoiceNeeded) as error:
        prepare(root)
    assert error.value.flags == ("--labels labels.csv",)
    table = root / "labels.csv"
    table.write_text("\ufefffile,label,age\n1.png,boat,3\n./2.png,car,4\ndeep\\er\\3.png,boat,5\n", encoding="utf-8")
    assert names(root, labels="labels.csv") == ["boat 0", "boat 2", "car 1"]
    summary = prepare(root, Choices(labels=table)).summary
    assert summary.startswith("labels from labels.csv: 3 images: 3 scaled to 32 x 32; left out ")
    assert "1 image not named in the table" in summary


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,label\n1.png,\n", "have no class"),
        ("file,label\n,a\n", "names no file"),
        ("file,label\n1.png,a\tb\n", "cannot be the name of a class"),
    ],
)
def test_tables_that_will_not_do(fill, text, message):
    root = fill("1.png", "2.png")
    (root / "labels.csv").write_text(text)
    with pytest.raises(PackingError, match=message):
        prepare(root, Choices(labels="labels.csv"))


def test_linked_class_folders_count(fill, tmp_path):
    root = fill("a/1.png")
    (root / "b").symlink_to(fill("2.png", "3.png", root="elsewhere"))
    assert [name[0] for name in names(root)] == ["a", "b", "b"]


def test_what_is_said_of_nothing(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "notes.txt").write_text("")
    with pytest.raises(PackingError, match="no class folders with images"):
        prepare(tmp_path)
    with pytest.raises(PackingError, match="--attribute is for tables"):
        prepare(tmp_path, Choices(attribute="Male"))


def test_an_image_that_is_no_image_of_this_size_is_not_read_whole(fill, monkeypatch):
    root = fill("a/1.png")
    with (root / "a" / "huge.png").open("wb") as file:
        file.truncate(2**40)  # a hole of a terabyte
    with pytest.raises(BrokenImages, match="larger than 256 MiB"):
        prepare(root)


@pytest.mark.parametrize("name", ["cat\u202e", "c\u200bat", "c\x85at", " cat", "cat\u00a0", "cat\u200d"])
def test_a_folder_whose_name_no_class_can_have_is_refused_before_anything_is_sent(fill, name):
    with pytest.raises(PackingError, match=r"cannot be the name of a class: .* 1 to 100 characters"):
        prepare(fill(f"{name}/1.png", "b/2.png"))


def test_a_class_whose_name_is_spelt_in_two_ways_is_one_class(fill):
    assert names(fill("café/1.png", "cafe\u0301/2.png", "b/3.png")) == ["b 2", "café 0", "café 1"]


def test_class_names_of_any_script_are_sent(fill):
    persian, hindi = "می\u200cخواهم", "क्\u200dष"
    assert names(fill(f"{persian}/1.png", f"{hindi}/2.png", "日本/3.png")) == sorted(
        [f"{persian} 0", f"{hindi} 1", "日本 2"]
    )


def test_classes_that_are_numbers_are_in_their_order(fill):
    root = fill(*(f"{name}.png" for name in range(12)))
    (root / "labels.csv").write_text("\n".join(["file,label", *(f"{name}.png,{name}" for name in range(12))]))
    assert prepare(root, Choices(labels="labels.csv")).classes == tuple(map(str, range(12)))
