"""Places365 on small copies of its layouts: the official one, one folder for each category, and the validation."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from obscura.preparing import Choices, PackingError, prepare, read_choices
from tests.obscura.preparing.layouts.received import received

HIERARCHY = """\
,Level 1,,,Level 2,
category,indoor,"outdoor, natural","outdoor, man-made","shopping and dining","home or hotel"
'/a/abbey',0,0,1,0,0
'/a/alcove',1,0,0,0,1
'/a/apartment_building/outdoor',0,0,1,0,0
'/b/beach',0,1,0,0,0
'/b/berth',1,0,1,0,0
"""
TRAIN = ("a/abbey", "a/alcove", "a/apartment_building/outdoor", "b/beach", "b/berth", "z/zoo")
KEPT = [("outdoor-man-made", 1), ("indoor", 2), ("outdoor-man-made", 3), ("outdoor-natural", 4)]


def picture(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (256, 256), (20 * number,) * 3).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The official layout: six categories of one picture, and a validation part of three."""
    at = tmp_path / "places"
    for number, category in enumerate(TRAIN, start=1):
        picture(at / "data_256" / category / "00000001.jpg", number)
    for number in (1, 2, 3):
        picture(at / "val_256" / f"Places365_val_0000000{number}.jpg", number)
    (at / "Scene hierarchy - Places365.csv").write_text(HIERARCHY)
    (at / "categories_places365.txt").write_text("".join(f"/{name} {i}\n" for i, name in enumerate(TRAIN)))
    (at / "places365_val.txt").write_text("".join(f"Places365_val_0000000{i}.jpg {5 - i}\n" for i in (1, 2, 3)))
    return at


def places(root: Path, **choices: str) -> list[tuple[str, int]]:
    found = received(prepare(root, read_choices(size="32", **choices)))
    return [(label, round(np.mean(pixels) / 20)) for label, pixels in found]


def test_three_classes_by_the_hierarchy(root):
    assert places(root) == KEPT
    package = prepare(root, read_choices(size="64"))
    assert package.classes == ("indoor", "outdoor-natural", "outdoor-man-made")
    assert package.summary == (
        "Places365, train (not val; --split chooses): 4 pictures: 4 scaled to 64 x 64; "
        "left out 2 pictures of a category in none or several of the classes."
    )


def test_the_validation_part_has_a_list(root):
    assert places(root, split="val") == [("outdoor-natural", 2), ("outdoor-man-made", 3)]  # the first is a berth
    (root / "places365_val.txt").unlink()
    with pytest.raises(PackingError, match="places365_val"):
        prepare(root, read_choices(size="32", split="val"))


def test_one_folder_a_category(root):
    easy = root.with_name("easy")
    for number, category in enumerate(TRAIN, start=1):
        name = category.split("/", 1)[1].replace("/", "-")
        picture(easy / "train" / name / "1.jpg", number)
        picture(easy / "val" / name / "1.jpg", number)
    (easy / "scene_hierarchy_places365.csv").write_text(HIERARCHY)
    assert sorted(places(easy)) == sorted(KEPT)
    assert sorted(places(easy, split="val")) == sorted(KEPT)


def test_the_hierarchy_is_asked_for(root):
    table = root / "Scene hierarchy - Places365.csv"
    table.write_text("category,indoor\n'/a/abbey',1\n")
    with pytest.raises(PackingError, match="must have the columns"):
        prepare(root)
    table.unlink()
    with pytest.raises(PackingError, match="category hierarchy: put 'Scene hierarchy"):
        prepare(root)
    table.write_text(HIERARCHY)
    with pytest.raises(PackingError, match="does not say whose"):
        prepare(root, Choices(), subjects=True)
