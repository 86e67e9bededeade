"""What becomes of the images of a folder: what was stated or is fixed, and said in one line when it is done."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.intake.ways import images_of
from obscura.preparing import Arrays, BrokenImages, Choices, PackingError, prepare
from obscura.preparing.preparation import _convert
from obscura.preparing.sources import Record, Source, Tally
from obscura.preparing.survey import survey
from tests.obscura.preparing.conftest import assert_refused
from tests.pictures import write_files

Colours = Callable[..., np.ndarray]


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
        "13 images: 2 cropped to 48 x 48, 1 laid on white, 1 turned upright by their EXIF, 1 turned to colour, "
        "1 brought to 8 bits, 1 turned from CMYK to RGB, 1 cut down to their first frame; "
        "left out 4 hidden or system files, 1 other file (.txt) and 1 empty class folder."
    )
    package = prepare(motley, Choices(size="24x48", grey=True))
    assert package.channels == 1
    assert "13 cropped to 24 x 48, 1 laid on white" in package.summary
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
    assert prepare(folder_of(tmp_path / "grey", grey, grey), usual).channels == 3
    mixed = folder_of(tmp_path / "mixed", grey, colours())
    package = prepare(mixed, same)
    assert (package.channels, package.summary) == (3, "2 images: 1 turned to colour.")
    package = prepare(mixed, Choices(size=48, grey=True))
    assert (package.channels, package.summary) == (1, "2 images: 1 turned to grey.")
    assert {pixels.shape for _, pixels in images_of(package)} == {(48, 48)}


WRONG = {"size": ["big", "7", "257x64", "64x"], "frames": ["some"], "slices": ["top"], "every": [0], "depth": ["1.5"]}


@pytest.mark.parametrize("wrong", [{name: value} for name, values in WRONG.items() for value in values], ids=str)
def test_words_that_are_not_understood(wrong):
    with pytest.raises(PackingError, match=f"--{next(iter(wrong))}"):
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
