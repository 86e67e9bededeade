"""Shares of classes are read as people write them; what cannot stand in a proportion is refused in words."""

import pytest

from obscura.wire.class_fractions import read_class_fractions

CLASSES = ("normal", "sick", "a=b, c", "7")
FOUR = {"normal": 90.0, "sick": 5.0, "a=b, c": 4.0, "7": 1.0}


@pytest.mark.parametrize(
    "text", ["90,5,4,1", " 90 , 5.0,4e0,1 ", "normal=90,sick=5,a=b, c=4,7=1", "7 = 1, a=b, c = 4 ,sick=5, normal= 9e1"]
)
def test_numbers_and_names_say_the_same(text):
    read = read_class_fractions(text, CLASSES)
    assert read == FOUR
    assert list(read) == list(CLASSES)


def test_some_classes_are_enough_where_the_others_may_be_left_out():
    assert read_class_fractions("sick=2,normal=1", CLASSES, every=False) == {"normal": 1.0, "sick": 2.0}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1,2", "2 numbers for 4 classes: .* normal, sick"),
        ("normal=1,well=2", "'well=2' is not NAME=NUMBER of a declared class"),
        ("normal=1", "no number for sick, a=b, c, 7"),
        ("normal=1,normal=2", "normal is named twice"),
        ("normal=x", "'normal=x' is not"),
        ("", "'' is not|no number"),
        ("1,2,3,0", "7=0 is not a number from"),
        ("1,2,3,-4", "7=-4 is not a number from"),
        ("1,2,3,1e99", "is not a number from"),
        ("1,2,3,nan", "is not NAME=NUMBER"),
        ("90%,5%,4%,1%", "is not NAME=NUMBER"),
    ],
)
def test_what_cannot_be_read_is_refused_in_words(text, says):
    with pytest.raises(ValueError, match=says):
        read_class_fractions(text, CLASSES)


def test_names_in_a_refusal_are_bounded():
    many = [f"class {number}" for number in range(1000)]
    with pytest.raises(ValueError, match="and 987 more") as refused:
        read_class_fractions("class 5=1", many[:5] + many[6:])
    assert len(str(refused.value)) < 400
