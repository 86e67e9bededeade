"""CelebA on a small copy of its folder and lists."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from obscura.preparing import ChoiceNeeded, Choices, PackingError, prepare, read_choices
from tests.obscura.preparing.layouts.received import received

NAMES = ("Bald", "Black_Hair", "Blond_Hair", "Brown_Hair", "Male")
FACES = (  # what each has, its part, whose it is
    ("Black_Hair Male", 0, 7),
    ("Blond_Hair", 0, 8),
    ("Brown_Hair Black_Hair", 0, 7),
    ("Bald Male", 0, 9),
    ("Brown_Hair", 0, 9),
    ("Black_Hair Male", 2, 5),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Six faces, each of one brightness, and two of the lists."""
    at = tmp_path / "celeba"
    (at / "img_align_celeba").mkdir(parents=True)
    attributes, parts = [f"{len(FACES)}", " ".join(NAMES) + " "], []
    for number, (has, part, _) in enumerate(FACES, start=1):
        file = f"{number:06}.jpg"
        Image.new("RGB", (178, 218), (20 * number,) * 3).save(at / "img_align_celeba" / file)
        attributes.append(" ".join([file, *(" 1" if name in has.split() else "-1" for name in NAMES)]))
        parts.append(f"{file} {part}")
    (at / "list_attr_celeba.txt").write_text("\n".join(attributes) + "\n")
    (at / "list_eval_partition.txt").write_text("\n".join(parts) + "\n")
    return at


def name_people(root: Path) -> None:
    people = [f"{number:06}.jpg {person}" for number, (_, _, person) in enumerate(FACES, start=1)]
    (root / "identity_CelebA.txt").write_text("\n".join(people) + "\n")


def faces(root: Path, **choices: str) -> list[tuple[str, int]]:
    """(class, number of the face) of each that is sent."""
    found = received(prepare(root, read_choices(size="32", **choices)))
    return [(label, round(np.mean(pixels) / 20)) for label, pixels in found]


def test_the_attribute_is_asked_for_and_the_size_is_fixed(root):
    with pytest.raises(ChoiceNeeded) as error:
        prepare(root)
    assert error.value.flags == ("--attribute Male",)
    usual = prepare(root, read_choices(attribute="Male"))
    assert (usual.width, usual.height, usual.channels) == (32, 32, 3)
    package = prepare(root, read_choices(attribute="Male", size="64"))
    assert package.classes == ("not Male", "Male")
    assert package.summary == "CelebA, train (not test; --split chooses): 5 pictures: 5 cropped to 64 x 64."


def test_one_attribute_makes_two_classes(root):
    assert faces(root, attribute="Male") == [
        ("Male", 1), ("not Male", 2), ("not Male", 3), ("Male", 4), ("not Male", 5),
    ]  # fmt: skip
    assert faces(root, attribute="Male", split="test") == [("Male", 6)]


def test_several_attributes_make_a_class_each_and_faces_with_just_one_count(root):
    hair = "Black_Hair,Blond_Hair,Brown_Hair"
    assert faces(root, attribute=hair) == [("Black_Hair", 1), ("Blond_Hair", 2), ("Brown_Hair", 5)]
    package = prepare(root, read_choices(attribute=hair, size="32"))
    assert package.classes == ("Black_Hair", "Blond_Hair", "Brown_Hair")
    assert package.summary.endswith("left out 2 pictures with none or several of the attributes.")


def test_whose_faces_they_are(root):
    name_people(root)
    package = prepare(root, read_choices(attribute="Male", size="32"), subjects=True)
    assert (package.private_records, package.private_subjects) == (5, 3)
    with pytest.raises(PackingError, match=r"The file identity_CelebA\.txt says whose .* --unit subject"):
        prepare(root, read_choices(attribute="Male", size="32"), subjects=False)
    assert prepare(root, read_choices(attribute="Male", size="32"), subjects=None).private_subjects is None
    (root / "identity_CelebA.txt").unlink()
    with pytest.raises(PackingError, match="identity_CelebA"):
        prepare(root, read_choices(attribute="Male", size="32"), subjects=True)


def test_without_the_list_of_parts_all_are_taken(root):
    (root / "list_eval_partition.txt").unlink()
    assert len(faces(root, attribute="Male")) == 6
    with pytest.raises(PackingError, match="list_eval_partition"):
        prepare(root, read_choices(attribute="Male", split="test"))


def test_what_cannot_be(root):
    with pytest.raises(PackingError, match=r"no attribute 'male'\. It has Bald, Black_Hair"):
        prepare(root, Choices(attributes=("male",)))
    (root / "img_align_celeba" / "000002.jpg").unlink()
    with pytest.raises(ChoiceNeeded, match=r"000002\.jpg .*--skip-broken"):
        prepare(root, Choices(attributes=("Male",)))
    (root / "list_attr_celeba.txt").write_text("1\nBald Male\n000001.jpg 1\n")
    with pytest.raises(PackingError, match="too short"):
        prepare(root, Choices(attributes=("Male",)))
