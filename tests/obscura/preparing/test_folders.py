"""Class folders, what is passed over in them, parts such as train/ and test/, tables of labels, and zips of it all."""

import io
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from obscura.preparing import BrokenImages, ChoiceNeeded, Choices, PackingError, prepare

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
    """Class and brightness of each image that is sent."""
    found = []
    with zipfile.ZipFile(io.BytesIO(b"".join(prepare(root, Choices(**choices)).open()))) as archive:  # type: ignore[arg-type]
        for name in archive.namelist():
            with Image.open(io.BytesIO(archive.read(name))) as image:
                found.append(f"{name.split('/')[0]} {image.getpixel((0, 0))[0]}")  # type: ignore[index]
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


def test_images_in_train_and_test_are_asked_about(fill):
    root = fill("train/1.png", "test/1.png")
    with pytest.raises(ChoiceNeeded, match="like parts or copies") as error:
        prepare(root)
    assert error.value.flags == ("--classes test,train",)
    assert names(root, classes="train,test") == ["test 1", "train 0"]
    with pytest.raises(PackingError, match="leave --split out"):
        prepare(fill("a/1.png", "b/1.png", root="other"), Choices(split="train"))


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


def test_one_part_alone_of_images_without_people(fill):
    """`train` was a class, and NORMAL and PNEUMONIA two patients."""
    root = fill("train/NORMAL/1.png", "train/PNEUMONIA/1.png")
    with pytest.raises(PackingError, match=r"outside of the folders of subjects.*class/subject/image"):
        prepare(root, subjects=True)


def test_parts_of_which_none_is_the_usual_one_are_asked_about(fill):
    root = fill("images/a/1.png", "images/b/1.png", "masks/a/1.png", "masks/b/1.png")
    with pytest.raises(ChoiceNeeded, match="look like parts") as error:
        prepare(root)
    assert error.value.flags == ("--split images",)
    assert names(root, split="Images") == ["a 0", "b 1"]
    beside = fill("train/a/1.png", "val/a/1.png", "chest/train/a/1.png", root="beside")
    with pytest.raises(ChoiceNeeded) as error:
        prepare(beside)
    assert error.value.flags == ("--split train",)
    assert names(beside, split="train", classes="a") == ["a 0"]
    inside = fill("set/train/a/1.png", "set/test/a/1.png", "set/test/b/1.png", root="inside")
    assert names(inside, split="test") == ["a 1", "b 2"]


def test_one_folder_of_images_is_asked_about(fill):
    for path in ("images/1.png", "around/images/1.png", "all/1.png"):
        root = fill(path, root=path.replace("/", "-"))
        with pytest.raises(ChoiceNeeded, match="one folder"):
            prepare(root)
    assert names(root, classes="all") == ["all 0"]


def test_people_on_top_are_asked_about_or_refused(fill):
    root = fill("DOE_JANE_19610423/1.png", "ROE_JOHN_19551231/1.png")
    with pytest.raises(ChoiceNeeded, match=r"look like people: DOE_JANE_19610423 \(a date\)"):
        prepare(root)
    renames = root.parent / "new.csv"
    renames.write_text("".join(["old,new\n", *(f"{path.name},sick\n" for path in root.iterdir())]))
    assert prepare(root, Choices(rename_classes=renames)).classes == ("sick",)
    for layout in (("P0/study1/1.png", "P1/study1/1.png"), ("P0/normal/1.png", "P1/normal/1.png", "P2/normal/1.png")):
        swapped = fill(*layout, root=layout[0].replace("/", "-"))
        with pytest.raises(PackingError, match="seem to be people"):
            prepare(swapped, subjects=True)
        with pytest.raises(PackingError, match="obscura accounts create NAME --unit subject"):
            prepare(swapped)


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


def test_links_to_nothing_are_named(fill):
    root = fill("normal/1.png", "sick/1.png")
    for number in (2, 3):
        (root / "sick" / f"{number}.png").symlink_to("../../.git/annex/objects/x")
    with pytest.raises(BrokenImages, match=r"sick/2\.png \(it is a link to a file that is not there\)") as error:
        prepare(root)
    assert error.value.count == 2
    assert prepare(root, Choices(skip_broken=True)).private_counts == {"normal": 1, "sick": 1}


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


def test_a_table_with_subjects(fill):
    root = fill("1.png", "2.png", "3.png")
    (root / "labels.csv").write_text("file,label,subject\n1.png,a,anna\n2.png,b,anna\n3.png,b,carl\n")
    package = prepare(root, Choices(labels="labels.csv"), subjects=True)
    assert (package.private_records, package.private_subjects) == (3, 2)
    body = b"".join(package.open())
    assert b"anna" not in body
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        (first, second, third) = (name.split("/")[:2] for name in archive.namelist())
    assert first[1] == second[1] != third[1]


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
    assert names(root, labels="labels.csv", skip_broken=True) == ["a 0"]
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


@pytest.mark.parametrize(
    "ids", [("1", "1.0"), ("P1", "p1"), ("P7", "P07"), ("7", "07"), ("Zoë", "Zoe\u0308"), ("AB", "ＡＢ")]
)
def test_ids_that_look_like_one_persons_are_asked_about(fill, ids):
    root = fill("1.png", "2.png", "3.png")
    rows = "".join(f"{number}.png,{'ab'[number % 2]},{name}\n" for number, name in enumerate((*ids, "other"), start=1))
    (root / "labels.csv").write_text(f"file,label,subject\n{rows}", encoding="utf-8")
    with pytest.raises(ChoiceNeeded, match=r"may name one person|with decimals|leading zeros") as error:
        prepare(root, Choices(labels=Path("labels.csv")), subjects=True)
    assert error.value.flags == ("--join-subjects",)
    assert prepare(root, Choices(labels=Path("labels.csv"), join_subjects=True), subjects=True).private_subjects == 2


@pytest.mark.parametrize("blank", ["NA", "n/a", "unknown", "-", "none", "null", "?", "", "nan", "ANONYMOUS"])
def test_ids_that_stand_for_nobody_are_refused(fill, blank):
    root = fill("1.png", "2.png")
    (root / "labels.csv").write_text(f"file,label,subject\n1.png,a,anna\n2.png,b,{blank}\n")
    with pytest.raises(PackingError, match="is a placeholder"):
        prepare(root, Choices(labels="labels.csv"), subjects=True)


def test_one_person_with_a_large_share_is_told_to_the_owner_of_the_images(fill):
    root = fill(*(f"{number}.png" for number in range(12)))
    rows = "".join(f"{n}.png,{'ab'[n % 2]},{'most' if n < 6 else f'P{n}'}\n" for n in range(12))
    (root / "labels.csv").write_text(f"file,label,subject\n{rows}")
    _, note = prepare(root, Choices(labels="labels.csv"), subjects=True).private_notes
    assert note.startswith("One subject (most) has 6 of the 12 images.")


@pytest.mark.parametrize("around", [False, True])
def test_a_zip_is_a_folder(fill, tmp_path, around):
    root = fill("a/1.png", "b/2.png", "b/._2.png", root="set")
    (root / "b" / "torn.jpg").write_bytes(b"\xff\xd8\xff")
    archive = shutil.make_archive(str(tmp_path / "set"), "zip", *((tmp_path, "set") if around else (root,)))
    with zipfile.ZipFile(archive, "a") as more:
        more.writestr("__MACOSX/set/a/._1.png", b"junk")
    with pytest.raises(BrokenImages, match=r"b/torn\.jpg"):
        prepare(Path(archive))
    assert names(Path(archive), skip_broken=True) == ["a 0", "b 1"]


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


def test_a_class_whose_accent_is_written_in_two_ways(fill):
    package = prepare(fill("Caf\u00e9/1.png", "Cafe\u0301/2.png", "bar/3.png"))
    assert (package.classes, package.private_records) == (("Caf\u00e9", "bar"), 3)


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


def test_names_of_systems_stay_out_of_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.zeros((4, 16, 16), np.uint8), labels=np.arange(4) % 2)
    assert prepare(tmp_path / "a.npz").summary == "Arrays: 4 images, as they are."
    package = prepare(tmp_path / "a.npz", Choices(size="8"))
    assert (package.format, package.height, package.width, package.classes) == ("zip", 8, 8, ("0", "1"))
    assert package.summary == "Arrays: 4 images: 4 scaled to 8 x 8."


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
        (False, ["a/1.png", "a/1_mask.png", "b/2.png"]),
        (False, ["a/1.jpg", "b/2.jpg", "b/2_segmentation.png"]),
        (False, ["train/a/1.png", "train/b/image_2.png", "train/b/label_2.png"]),
        (False, ["a/1.png", "a/masks/1.png", "b/2.png"]),
        (True, ["a/P1/1.png", "a/P1/1_gt.png", "b/P2/2.png"]),
        (True, ["a/P1/images/1.png", "a/P1/masks/1.png", "b/P2/images/2.png"]),
        (None, ["a/1.png", "b/2.png", "b/2_mask.png"]),
    ],
)
def test_masks_inside_class_folders_are_asked_about(fill, subjects, paths):
    root = fill(*paths)
    with pytest.raises(ChoiceNeeded, match="their masks") as needed:
        prepare(root, subjects=subjects)
    assert needed.value.flags == ("--labels labels.csv",)


def test_a_table_leaves_masks_out(fill):
    root = fill("a/1.png", "a/1_mask.png", "b/2.png", "b/2_mask.png")
    (root / "labels.csv").write_text("file,label\na/1.png,a\nb/2.png,b\n")
    assert names(root, labels="labels.csv") == ["a 0", "b 2"]


@pytest.mark.parametrize("kinds", [("img", "seg"), ("imagesTr", "labelsTr"), ("images", "masks"), ("input", "gt")])
def test_kinds_of_images_inside_class_folders_are_asked_about(fill, kinds):
    root = fill(*(f"{label}/{kind}/1.png" for label in ("a", "b") for kind in kinds))
    with pytest.raises(ChoiceNeeded) as needed:
        prepare(root)
    assert needed.value.flags == (f"--split {kinds[0]}",)
    assert prepare(root, Choices(split=kinds[0])).private_records == 2
