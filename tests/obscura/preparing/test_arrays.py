"""Images in memory: what they become, and what is said of those that do not fit."""

import io
from typing import Any

import numpy as np
import pytest

from obscura.preparing import Arrays, Choices, PackingError, prepare

GREY = np.zeros((4, 8, 8), np.uint8)


def sent(arrays: Arrays, **choices: Any) -> dict[str, np.ndarray]:
    package = prepare(arrays, Choices(**choices), subjects=arrays.subjects is not None)
    with np.load(io.BytesIO(b"".join(package.open()))) as found:
        return {"classes": np.array(package.classes), **found}


def test_numbers_and_names_as_labels():
    found = sent(Arrays(GREY, np.array([2, 0, 0, 1])))
    assert found["labels"].tolist() == [2, 0, 0, 1]
    assert found["classes"].tolist() == ["0", "1", "2"]
    found = sent(Arrays(GREY, ["tree", "car", "car", "tree"]))
    assert found["labels"].tolist() == [1, 0, 0, 1]
    assert found["classes"].tolist() == ["car", "tree"]


def test_ids_of_subjects_stay_here():
    subjects = sent(Arrays(GREY, [0, 1, 0, 1], ["ann", "bob", "ann", "cy"]))["subjects"]
    assert set(subjects.tolist()) == {0, 1, 2}
    assert subjects[0] == subjects[2]


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
        (GREY, [0, 1], None, "as many labels"),
        (GREY, [-1, 1, 0, 1], None, "begin at 0"),
        (GREY, [0, 1, 0, 1], ["ann"], "1 subjects"),
        (GREY[:0], [], None, "numbers or names"),
    ],
)
def test_what_does_not_fit_is_named(images, labels, subjects, said):
    with pytest.raises(PackingError, match=said):
        prepare(Arrays(images, labels, subjects), subjects=subjects is not None)
