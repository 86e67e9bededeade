"""Tables whose names match no image, or images of several parts, and the reason that is given."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from obscura.preparing import BrokenImages, ChoiceNeeded, Choices, PackingError, prepare


def labelled(root: Path, paths: Sequence[str], cells: Sequence[str], head: str = "file", at: str = "t.csv") -> Path:
    """Images of one shade each, and a table with a row for each cell."""
    for number, path in enumerate(paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (16, 16), number).save(root / path)
    rows = "".join(f"{cell},{'ab'[number % 2]}\n" for number, cell in enumerate(cells))
    (root / at).write_text(f"{head},label\n{rows}", encoding="utf-8")
    return root


NAMES = [f"{number:04}.png" for number in range(1, 13)]
NUMBERS = range(1, 13)


def test_zeros_that_are_lost_of_some_names_alone_are_not_left_out_as_broken(tmp_path):
    names = [f"{number:02}.png" for number in NUMBERS]
    root = labelled(tmp_path, names, [str(number) for number in NUMBERS])
    with pytest.raises(
        PackingError, match=r"9 of 12 names in column 'file' of t\.csv are not.*'1'.*'01\.png'.*zeros"
    ) as error:
        prepare(root, Choices(labels="t.csv"))
    assert not isinstance(error.value, BrokenImages)
    labelled(tmp_path / "dead", names, [*names[:-1], "gone.png"])
    with pytest.raises(BrokenImages, match=r"gone\.png"):
        prepare(tmp_path / "dead", Choices(labels="t.csv"))


@pytest.mark.parametrize("head", ["scan file", "no. of image", "Bild", "id,name on disk"])
def test_the_column_whose_cells_name_images_is_taken_or_proposed(tmp_path, head):
    cells = [("9," if "," in head else "") + name for name in [*NAMES, "gone.png"]]
    root = labelled(tmp_path, NAMES, cells, head)
    column = head.rpartition(",")[2]
    with pytest.raises(ChoiceNeeded, match=f"Column '{column}' matches image files") as error:
        prepare(root, Choices(labels="t.csv"))
    assert error.value.flags == (f"--file-column {column}",)
    chosen = Choices(labels="t.csv", file_column=column, skip_broken=True)
    assert prepare(root, chosen).private_records == 12


def test_of_a_table_above_parts_without_train_one_is_chosen(tmp_path):
    paths = [f"{part}/{number}.png" for part in ("test", "val") for number in range(4)]
    with pytest.raises(ChoiceNeeded, match="several parts") as error:
        prepare(labelled(tmp_path, paths, paths), Choices(labels="t.csv"))
    assert error.value.flags == ("--split test",)
