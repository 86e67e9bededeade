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
    with pytest.raises(PackingError, match="leave --split out"):
        prepare(fill("a/1.png", "b/1.png", root="other"), Choices(split="train"))
    inside = fill("set/train/a/1.png", "set/test/a/1.png", "set/test/b/1.png", root="inside")
    assert names(inside, split="test") == ["a 1", "b 2"]
    with pytest.raises(PackingError, match=r"outside of the folders of subjects.*class/subject/image"):
        prepare(fill("train/NORMAL/1.png", "train/PNEUMONIA/1.png", root="nobody"), subjects=True)


@pytest.mark.parametrize("around", ["", "chest_xray/", "archive/chest_xray/"])
@pytest.mark.parametrize("part", ["train/", "Training/", "train2017/", ""])
def test_folders_around_everything_and_one_part_alone_are_passed_through_and_said(fill, around, part):
    root = fill(f"{around}{part}a/1.png", f"{around}{part}b/1.png")
    package = prepare(root)
    assert package.classes == ("a", "b")
    assert package.summary == f"{around}{part}: 2 images: 2 scaled to 32 x 32.".removeprefix(": ")
    owned = fill(f"{around}{part}a/P1/1.png", f"{around}{part}b/P2/study/1.png", root="owned")
    package = prepare(owned, subjects=True)
    assert (package.classes, package.private_subjects, package.private_records) == (("a", "b"), 2, 2)


def test_a_class_that_loses_all_its_files_stops_and_is_counted(fill):
    root = fill("normal/1.png", "normal/2.png", "torn/1.png")
    (root / "torn" / "1.png").write_bytes(b"\x89PNG")
    (root / "sick").mkdir()
    (root / "sick" / "1.xyz").write_bytes(b"no image")
    (root / "empty").mkdir()
    with pytest.raises(BrokenImages, match=r"No image of 2 classes \(sick, torn\)") as error:
        prepare(root)
    assert error.value.flags == ("--skip-broken",)
    package = prepare(root, Choices(skip_broken=True, classes="normal,sick,torn"))
    assert package.private_counts == {"normal": 2, "sick": 0, "torn": 0}


def test_images_that_repeat_and_people_in_names_of_files_are_told_their_owner(fill):
    root = fill("a/1.png", "b/2.png")
    for copy in ("a/3.png", "a/4.png", "b/5.png"):
        (root / copy).write_bytes((root / "a" / "1.png").read_bytes())
    (note,) = prepare(root).private_notes
    assert note.startswith("4 images occur more than once: 1 different, one of them 4 times; 1 in several classes")
    named = fill(
        *(f"{label}/person{number // 2}_x_{number}.png" for label in "ab" for number in range(6)), root="named"
    )
    (note,) = prepare(named).private_notes
    assert note.startswith("File names suggest people")


def test_public_images_may_lie_in_folders_of_people(fill):
    root = fill("a/P1/1.png", "a/P2/2.png", "b/P1/3.png", "b/4.png")
    package = prepare(root, subjects=None)
    assert (package.private_records, package.private_subjects, package.classes) == (4, None, ("a", "b"))


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
        ("image,kind\n1.png,a\n", "Its columns are image, kind"),
        ("file,label\n", "holds no rows"),
        ("file,label\n1.png,\n", "have no class"),
        ("file,label\n1.png,a\n1.png,b\n", "several labels in 'label'"),
        ("file,label\n../secret.png,a\n", "outside of the folder"),
        ("file,label\n,a\n", "names no file"),
        ("file,label\n1.png,a\tb\n", "cannot be the name of a class"),
    ],
)
def test_tables_that_will_not_do(fill, text, message):
    root = fill("1.png", "2.png")
    (root / "labels.csv").write_text(text)
    with pytest.raises(PackingError, match=message):
        prepare(root, Choices(labels="labels.csv"))


def test_a_table_that_names_what_is_not_there(fill):
    root = fill("1.png")
    (root / "labels.csv").write_text("file,label\n1.png,a\n2.png,a\n")
    with pytest.raises(BrokenImages, match=r"2\.png .*cannot be opened"):
        prepare(root, Choices(labels="labels.csv"))
    with pytest.raises(PackingError, match="cannot be read"):
        prepare(root, Choices(labels="missing.csv"))


def test_whose_images_a_table_tells_is_not_ignored(fill):
    root = fill("1.png", "2.png", "p/patient00001/study1/view1.png")
    table = root / "labels.csv"
    table.write_text("file,label,subject\n1.png,a,anna\n2.png,b,anna\n")
    with pytest.raises(PackingError, match=r"The column 'subject' of labels\.csv identifies subjects.*--unit subject"):
        prepare(root, Choices(labels=table))
    assert prepare(root, Choices(labels=table), subjects=None).private_subjects is None
    table.write_text("file,label\np/patient00001/study1/view1.png,a\n2.png,b\n")
    with pytest.raises(PackingError, match=r"such as patient00001/, identifies subjects.*--unit subject"):
        prepare(root, Choices(labels=table))


def test_one_person_with_a_large_share_is_told_to_the_owner_of_the_images(fill):
    root = fill(*(f"{number}.png" for number in range(12)))
    rows = "".join(f"{n}.png,{'ab'[n % 2]},{'most' if n < 6 else f'P{n}'}\n" for n in range(12))
    (root / "labels.csv").write_text(f"file,label,subject\n{rows}")
    _, note = prepare(root, Choices(labels="labels.csv"), subjects=True).private_notes
    assert note.startswith("One subject (most) has 6 of the 12 images.")


def test_images_of_subjects_and_records_of_nobody(fill):
    with pytest.raises(PackingError, match="single records"):
        prepare(fill("a/x/y/anna/1.png", "a/1.png", "b/1.png"))
    root = fill("a/anna/1.png", "a/anna/study1/left/2.png", "b/carl/3.png", root="owned")
    package = prepare(root, subjects=True)
    assert (package.private_records, package.private_subjects) == (3, 2)


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


@pytest.mark.parametrize(
    ("subjects", "paths"),
    [
        (False, ["train/a/1.png", "train/b/image_2.png", "train/b/label_2.png"]),
        (False, ["a/1.png", "a/masks/1.png", "b/2.png"]),
        (True, ["a/P1/1.png", "a/P1/1_gt.png", "b/P2/2.png"]),
        (None, ["a/1.png", "b/2.png", "b/2_mask.png"]),
    ],
)
def test_masks_inside_class_folders_are_asked_about(fill, subjects, paths):
    root = fill(*paths)
    with pytest.raises(ChoiceNeeded, match="their masks") as needed:
        prepare(root, subjects=subjects)
    assert needed.value.flags == ("--labels labels.csv",)
