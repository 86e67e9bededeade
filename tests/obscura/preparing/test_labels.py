"""What a label is, the same in every format: an integer or a text, never a number that was rounded to one."""

import numpy as np
import pytest

from obscura.preparing import ChoiceNeeded, Choices, PackingError
from obscura.preparing.labels import class_numbers, read_labels


@pytest.mark.parametrize(
    ("values", "read"),
    [
        ([0, 2, 1], ("0", "2", "1")),
        (np.array([[0], [1]], np.uint8), ("0", "1")),
        (np.array(["a ", "b"]), ("a", "b")),
        (np.array([b"a", "\u00e4".encode()]), ("a", "\u00e4")),
        (np.array(["a", "bc"], dtype=object), ("a", "bc")),
        (["1", "1.0"], ("1", "1.0")),
        (["a\u0308"], ("\u00e4",)),
        (["unknown", "other"], ("unknown", "other")),
    ],
)
def test_labels_stay_what_they_are(values, read):
    assert read_labels(values, len(values), "x", Choices())[0] == read


@pytest.mark.parametrize("values", [[0.0, 1.0], [0.2, 0.9], [True, False], [1j, 0], np.array([1, "a"], dtype=object)])
def test_what_is_neither_integer_nor_text_is_refused(values):
    with pytest.raises(PackingError, match="numbers or names"):
        read_labels(values, 2, "x", Choices())


def test_a_word_that_is_stated_is_a_class():
    assert read_labels(["none", "mass"], 2, "x", Choices(classes=("mass", "none"))) == (("none", "mass"), None)


@pytest.mark.parametrize(
    ("used", "stated", "used_only", "known", "numbers"),
    [
        ([0, 1, 1], None, False, 0, (0, 1)),
        ([1, 3], None, True, 0, (1, 3)),
        ([1, 3], ("a", "b", "c", "d"), False, 0, (0, 1, 2, 3)),
        ([1, 3], ("a", "b"), True, 0, (1, 3)),
        ([0, 1], None, True, 3, (0, 1)),
        ([], None, False, 0, ()),
    ],
)
def test_numbers_that_are_classes(used, stated, used_only, known, numbers):
    assert class_numbers(used, stated, used_only=used_only, known=known) == numbers


@pytest.mark.parametrize(
    ("used", "known", "gap"), [([1, 2], 0, 0), ([0, 2], 0, 1), ([0, 1], 3, 2), ([0, 10**12], 0, 1)]
)
def test_a_number_without_images_is_asked_about(used, known, gap):
    with pytest.raises(ChoiceNeeded, match=f"No image has the label {gap},") as asked:
        class_numbers(used, None, used_only=False, known=known)
    assert asked.value.flags == ("--used-classes",)


def test_fewer_names_than_classes_are_refused():
    for used, used_only in (([0, 5], False), ([0, 5, 7], True)):
        with pytest.raises(PackingError, match="labels beyond these"):
            class_numbers(used, ("a", "b"), used_only=used_only)
    with pytest.raises(PackingError, match="x names 2 classes"):
        read_labels([0, 2], 2, "x", Choices(), ("a", "b"))


def test_classes_are_called_as_the_file_says():
    skip = Choices(skip_unlabelled=True)
    assert read_labels([1, 0, -1], 3, "x", skip, ("a", "b")) == (("b", "a", None), ("a", "b"))
    assert read_labels(["b", "a", "nan"], 3, "x", skip) == (("b", "a", None), None)
