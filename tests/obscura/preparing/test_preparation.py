"""Preparing on the owner's side: what becomes of images, how classes and subjects are named anew; other names stay."""

import io
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.intake.ways import images_of
from obscura.preparing import Arrays, BrokenImages, ChoiceNeeded, Choices, PackingError, prepare
from obscura.preparing.preparation import _convert
from obscura.preparing.sources import Record, Source, Tally
from obscura.preparing.survey import survey
from tests.obscura.preparing.conftest import assert_refused
from tests.obscura.preparing.layouts.test_idx_and_nifti import write_pair
from tests.pictures import write_files


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Two class folders with five images, one of them with a name that tells too much."""
    files = {
        f"{name}/CANARY-patient-{number}.png": Image.new("RGB", (12, 8), (number, 0, 0))
        for name, count in (("dog", 2), ("cat", 3))
        for number in range(count)
    }
    return write_files(tmp_path / "images", {**files, "cat/notes.txt": "CANARY"})


def sent(path: Path, **given: Any) -> bytes:
    return b"".join(prepare(path, **given).open())


def members(body: bytes) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        assert archive.testzip() is None
        return archive.namelist()


def test_class_folders(folders):
    package = prepare(folders, Choices(size=(12, 8)))
    assert (package.format, package.classes) == ("zip", ("cat", "dog"))
    assert (package.height, package.width, package.channels, package.private_records) == (8, 12, 3, 5)
    body = b"".join(package.open())
    assert b"CANARY" not in body
    assert sorted(name.split("/")[0] for name in members(body)) == ["cat", "cat", "cat", "dog", "dog"]
    assert b"".join(package.open()) == body  # the same bytes again


@pytest.mark.parametrize("content", [None, b"", b"not this", b"PK\x03\x04"])
@pytest.mark.parametrize("suffix", [".npz", ".zip", ".tar", ""])
def test_what_cannot_be_packed(tmp_path, suffix, content):
    path = tmp_path / f"file{suffix}"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PackingError):
        prepare(path)


JOINED = Choices(join_subjects=True)


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """Two classes; anna in both, written in two ways; seven images of three people."""
    files = {
        f"{folder}/CANARY-{number}.png": Image.new("L", (8, 8), 10 * number)
        for folder, count in (("cat/Zoë", 2), ("cat/CANARY-bert", 1), ("dog/Zoe\u0308", 3), ("dog/carl", 1))
        for number in range(count)
    }
    return write_files(tmp_path / "people", files)


def owners_in(body: bytes) -> Counter[tuple[str, str]]:
    return Counter((label, owner) for label, owner, _ in (name.split("/") for name in members(body)))


def test_folders_of_subjects_are_numbered_and_their_names_stay(people):
    with pytest.raises(ChoiceNeeded, match="may be the same person: 'Zoe"):
        prepare(people, subjects=True)
    package = prepare(people, JOINED, subjects=True)
    assert (package.private_records, package.private_subjects, package.classes) == (7, 3, ("cat", "dog"))
    body = b"".join(package.open())
    for name in (b"CANARY", b"carl", "Zoë".encode()):
        assert name not in body
    counted = owners_in(body)
    assert sorted(counted.values()) == [1, 1, 2, 3]
    (in_both,) = {owner for _, owner in counted if {("cat", owner), ("dog", owner)} <= set(counted)}
    assert (counted["cat", in_both], counted["dog", in_both]) == (2, 3)


def test_numbers_are_in_no_order(people):
    """Zoë is the third by name and the second to appear; over 40 preparations she has every number."""
    most = [owners_in(sent(people, choices=JOINED, subjects=True)).most_common(1) for _ in range(40)]
    assert {owner for [((_, owner), _)] in most} == {"0", "1", "2"}


def test_what_the_account_has_no_use_for_is_refused_before_anything_is_sent(people, tmp_path):
    assert_refused(people, "the account protects single records")
    (people / "dog" / "loose.png").write_bytes((people / "dog" / "carl" / "CANARY-0.png").read_bytes())
    assert_refused(people, "outside the folders of subjects", subjects=True)
    arrays = {"images": np.zeros((4, 8, 8), np.uint8), "labels": np.arange(4) % 2}
    np.savez(tmp_path / "without.npz", **arrays)
    np.savez(tmp_path / "with.npz", **arrays, subjects=np.array(["a", "b", "a", "c"]))
    np.savez(tmp_path / "blank.npz", **arrays, subjects=np.array(["a", "b", "", "c"]))
    assert prepare(tmp_path / "with.npz", subjects=True).private_subjects == 3
    assert prepare(tmp_path / "without.npz").private_subjects is None
    assert_refused(tmp_path / "without.npz", "third array 'subjects'", subjects=True)
    assert_refused(tmp_path / "with.npz", "The array 'subjects' of with.npz identifies subjects.*unit=\"subject\"")
    assert_refused(tmp_path / "blank.npz", "is a placeholder", subjects=True)
    package = prepare(tmp_path / "with.npz", subjects=None)
    assert (package.format, package.private_subjects) == ("zip", None)  # public: the ids stay here


def test_zip_and_idx_files_with_subjects(people, tmp_path):
    archive, folder = tmp_path / "a.zip", tmp_path / "idx"
    archive.write_bytes(sent(people, choices=JOINED, subjects=True))
    assert (prepare(archive, subjects=True).private_subjects, prepare(archive, subjects=True).private_records) == (3, 7)
    with zipfile.ZipFile(archive, "a") as more:
        more.writestr("cat/1.png", b"")
    assert_refused(archive, "class/subject/image", subjects=True)
    folder.mkdir()
    write_pair(folder, "train", np.zeros((4, 8, 12), np.uint8), packed=False)
    assert_refused(folder, "train-subjects-idx1-int", subjects=True)
    third = folder / "train-subjects-idx1-int"
    third.write_bytes(struct.pack(">2I4i", 0xC01, 4, 7, 7, 9, 7))
    package = prepare(folder, subjects=True)
    assert (package.private_records, package.private_subjects) == (4, 2)
    assert len(members(b"".join(package.open()))) == 3
    assert_refused(folder, "The file train-subjects-idx1-int identifies subjects")
    assert prepare(folder, subjects=None).private_subjects is None
    third.write_bytes(struct.pack(">2I4i", 0x801, 4, 7, 7, 9, 7))
    assert_refused(folder, "damaged", subjects=True)


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    return write_files(tmp_path / "animals", dict.fromkeys(["cat/a.png", "dog/a.png"], Image.new("RGB", (8, 8))))


def test_stated_classes_of_a_folder_may_be_more_than_it_has_and_not_fewer(animals):
    for place in (animals, Arrays(np.zeros((2, 8, 8), np.uint8), ["dog", "cat"])):
        assert prepare(place, Choices(classes=["dog", "cat", "eel"])).classes == ("dog", "cat", "eel")
        assert_refused(place, r"`classes` lacks classes of the data: dog\.", Choices(classes=["cat"]))


def test_labels_that_are_numbers_get_the_stated_names_in_order(tmp_path):
    images, labels = np.zeros((3, 8, 8), np.uint8), np.array([0, 1, 1])
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    stated = Choices(classes=["cat", "dog", "eel"])
    for place in (tmp_path / "a.npz", Arrays(images, labels)):
        assert prepare(place, stated).classes == ("cat", "dog", "eel")
        assert_refused(place, "1 classes, but there are more", Choices(classes=["cat"]))
    resized = prepare(tmp_path / "a.npz", Choices(classes=["cat", "dog", "eel"], size=16))
    body = b"".join(resized.open())
    assert b"cat/0000000.png" in body
    assert b"dog/0000002.png" in body


def test_new_names_are_what_is_declared_and_sent_whatever_the_files_hold(tmp_path, animals):
    table = tmp_path / "new.csv"
    table.write_text("\ufeffold,new\neel,fish\ndog,beast\ncat,beast\n", encoding="utf-8")
    package = prepare(animals, Choices(rename_classes=table))
    assert (package.classes, package.private_counts) == (("fish", "beast"), {"fish": 0, "beast": 2})
    body = b"".join(package.open())
    assert b"beast/0000001.png" in body
    assert b"cat" not in body
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 8, 8), np.uint8), labels=np.array([0, 1]))
    table.write_text("old,new\n0,normal\n1,sick\n")
    assert prepare(tmp_path / "a.npz", Choices(rename_classes=table)).classes == ("normal", "sick")


GREY = np.zeros((4, 8, 8), np.uint8)


def loaded(arrays: Arrays) -> dict[str, np.ndarray]:
    package = prepare(arrays)
    with np.load(io.BytesIO(b"".join(package.open()))) as found:
        return {"classes": np.array(package.classes), **found}


def test_numbers_and_names_as_labels():
    found = loaded(Arrays(GREY, np.array([2, 0, 0, 1])))
    assert (found["labels"].tolist(), found["classes"].tolist()) == ([2, 0, 0, 1], ["0", "1", "2"])
    found = loaded(Arrays(GREY, ["tree", "car", "car", "tree"]))
    assert (found["labels"].tolist(), found["classes"].tolist()) == ([1, 0, 0, 1], ["car", "tree"])


@pytest.mark.parametrize("images", [np.zeros((3, 9, 12, 3), np.uint8), np.zeros((3, 9, 12, 1), np.uint8)])
def test_a_size_can_be_chosen(images):
    package = prepare(Arrays(images, [0, 1, 1]), Choices(size=8))
    assert (package.height, package.width, package.channels, package.private_records) == (8, 8, images.shape[3], 3)
    assert package.classes == ("0", "1")
    assert len(b"".join(package.open())) > 100


@pytest.mark.parametrize(
    ("images", "labels", "subjects", "said"),
    [
        (GREY.astype(float), [0, 1, 0, 1], None, "scale them"),
        (GREY[0], [0], None, "of shape"),
        (GREY, [0, 1], None, "one label for each"),
        (GREY, [-1, 1, 0, 1], None, "numbers from 0"),
        (GREY, [0, 1, 0, 1], ["ann"], "1 subject ids"),
        (GREY[:0], [], None, "integers or names"),
    ],
)
def test_what_does_not_fit_is_named(images, labels, subjects, said):
    assert_refused(Arrays(images, labels, subjects), said, subjects=subjects is not None)


# --- what becomes of the images ---------------------------------------------------------------------------------------


def folder_of(root: Path, *images: Image.Image | np.ndarray) -> Path:
    return write_files(root, {f"{name}/1.png": image for name, image in zip("ab", images, strict=False)})


def test_a_motley_folder_goes_in_as_it_is(motley):
    before = sorted(motley.rglob("*"))
    package = prepare(motley)
    assert (package.classes, package.private_records, package.channels) == (("cat", "dog"), 13, 3)
    images = images_of(package)
    assert len(images) == 13
    assert {pixels.shape for _, pixels in images} == {(32, 32, 3)}
    assert sorted(motley.rglob("*")) == before


def test_the_line_says_what_was_done_to_how_many(motley):
    package = prepare(motley, Choices(size="48"))
    assert package.summary == (
        "13 images: 2 cropped to 48 x 48, 1 put on a white background, 1 turned upright by their EXIF "
        "orientation, 1 turned to colour, 1 brought to 8 bits, 1 turned from CMYK to RGB, 1 cut down to their first "
        "frame; left out 4 hidden or system files, 1 other file (.txt) and 1 empty class folder."
    )
    package = prepare(motley, Choices(size="24x48", grey=True))
    assert package.channels == 1
    assert "13 cropped to 24 x 48, 1 put on a white background" in package.summary
    assert "12 turned to grey" in package.summary


def test_broken_images_are_named_before_anything_is_done(motley):
    torn = (motley / "cat" / "plain.png").read_bytes()[:200]
    write_files(motley, {"cat/torn.png": torn, "dog/phone.heic": b"\0\0\0\x18ftypheic"})
    with pytest.raises(BrokenImages) as error:
        prepare(motley)
    assert (error.value.flags, error.value.count) == (("--skip-broken",), 2)
    for said in ("skip_broken=True", "cat/torn.png", "dog/phone.heic"):
        assert said in str(error.value)
    package = prepare(motley, Choices(skip_broken=True))
    assert package.private_records == 13
    assert "left out 2 unreadable images" in package.summary
    assert len(images_of(package)) == 13


def test_of_many_broken_images_a_few_are_named(tmp_path):
    folder = tmp_path / "a" / "b"
    broken = dict.fromkeys((f"{number:02}.png" for number in range(12)), b"?")
    write_files(folder, {**broken, "whole.png": Image.new("L", (9, 9))})
    with pytest.raises(BrokenImages, match=r"b/04\.png .* and 7 more"):
        prepare(folder.parent)
    (folder / "whole.png").unlink()
    with pytest.raises(BrokenImages, match=r"No image of the class b .*00\.png"):
        prepare(folder.parent)
    assert_refused(folder.parent, "no image", Choices(skip_broken=True))


def test_an_image_that_is_larger_than_any_is_not_read_whole(tmp_path):
    folder_of(tmp_path, Image.new("L", (9, 9)))
    with (tmp_path / "a" / "huge.png").open("wb") as file:
        file.truncate(2**40)  # a hole of a terabyte
    with pytest.raises(BrokenImages, match="larger than 256 MiB"):
        prepare(tmp_path)


@pytest.mark.parametrize("side", [7, 8, 32, 256, 257])
def test_the_size_is_the_same_whatever_the_images_are(tmp_path, colours, side):
    root = folder_of(tmp_path / "p", colours(side, side), colours(side, side))
    package = prepare(root)
    assert (package.height, package.width) == (32, 32)
    assert package.summary == ("2 images: as they are." if side == 32 else "2 images: 2 scaled to 32 x 32.")


@pytest.mark.parametrize("side", [7, 8, 256, 257])
def test_arrays_of_a_size_that_images_may_have_keep_it(colours, side):
    package = prepare(Arrays(np.stack([colours(16, side)]), ["cat"]))
    assert (package.height, package.width) == ((16, side) if 8 <= side <= 256 else (32, 32))


def test_grey_and_colour(tmp_path, colours):
    grey = Image.fromarray(colours()).convert("L")
    usual, same = Choices(), Choices(size=48)
    package = prepare(folder_of(tmp_path / "grey", grey, grey), usual)
    assert (package.channels, package.private_notes[-1].endswith("add --grey.")) == (3, True)
    mixed = folder_of(tmp_path / "mixed", grey, colours())
    package = prepare(mixed, same)
    assert (package.channels, package.summary) == (3, "2 images: 1 turned to colour.")
    package = prepare(mixed, Choices(size=48, grey=True))
    assert (package.channels, package.summary) == (1, "2 images: 1 turned to grey.")
    assert {pixels.shape for _, pixels in images_of(package)} == {(48, 48)}


WRONG = {"size": ["big", "7", "257x64", "64x"], "frames": ["some"], "slices": ["top"], "every": [0], "depth": ["1.5"]}
WRONG |= {"classes": [[], ["cat", "cat"]]}


@pytest.mark.parametrize("wrong", [{name: value} for name, values in WRONG.items() for value in values], ids=str)
def test_words_that_are_not_understood(wrong):
    with pytest.raises(PackingError, match=f"`{next(iter(wrong))}`"):
        Choices(**wrong)  # type: ignore[arg-type]


def test_an_unknown_option_is_an_error():
    with pytest.raises(TypeError, match="sise"):
        Choices(sise=64)  # type: ignore[call-arg]


def test_images_are_read_one_at_a_time_while_they_are_sent(colours):
    """After the first megabyte of ten, few have been read."""
    read = 0

    def walk(tally: Tally) -> Iterator[Record]:
        def pixels() -> np.ndarray:
            nonlocal read
            read += 1
            return colours(128, 128)

        for number in range(200):
            yield Record("a", None, str(number), pixels)

    source, choices = Source("", walk), Choices()
    found = survey(source, choices, Tally(), lambda _: None)
    assert (read, found.records) == (200, 200)
    next(_convert(source, found, choices, {}, {}))
    assert read == 201


def test_a_folder_that_changes_while_it_is_sent(motley):
    package = prepare(motley, Choices(size="32"))
    (motley / "dog" / "opaque.png").unlink()
    with pytest.raises(PackingError, match="there were 13, and now 12"):
        b"".join(package.open())
