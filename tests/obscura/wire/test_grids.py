"""Values to try and shares of classes are read as people write them, or refused where they stand."""

import pytest

from obscura.wire.class_fractions import read_class_fractions
from obscura.wire.grids import GridRefused, trials_of


@pytest.mark.parametrize(
    ("grids", "found"),
    [
        (["a=1,2"], [{"a": 1}, {"a": 2}]),
        (
            ["a=0, 0.5", " b = x , true"],
            [{"a": 0, "b": "x"}, {"a": 0, "b": True}, {"a": 0.5, "b": "x"}, {"a": 0.5, "b": True}],
        ),
        (['a=["x,y", null]'], [{"a": "x,y"}, {"a": None}]),
        (["a=" + "[" * 5000 + ",x"], [{"a": "[" * 5000}, {"a": "x"}]),
    ],
)
def test_grids_give_every_combination(grids, found):
    assert trials_of(grids, {}) == [{"options": options} for options in found]


def test_what_is_tried_stands_in_for_what_is_fixed_and_epsilon_is_no_option():
    assert trials_of(["epsilon=0.5,1", "a=3"], {"a": 1, "b": 2}) == [
        {"options": {"a": 3, "b": 2}, "epsilon": 0.5},
        {"options": {"a": 3, "b": 2}, "epsilon": 1},
    ]


@pytest.mark.parametrize(
    ("grids", "position", "said"),
    [
        (["a=1"], None, "give 1 trial; a search has 2 to 64"),
        (["a"], 0, "Write the values of a"),
        (["b=1,2", "a="], 1, "Write the values of a"),
        (["=1,2"], 0, "which option"),
        (["a=1,2", "a=3,4"], 1, "a is there already"),
        (["a=" + ",".join("0" * 65)], None, "65 trials"),
        ([f"{name}=" + ",".join("0" * 900) for name in "abcd"], None, "656,100,000,000 trials"),
        (["a=[]"], None, "0 trials"),
        ([], None, "1 trial"),
    ],
)
def test_grids_that_are_no_search_are_refused(grids, position, said):
    with pytest.raises(GridRefused, match=said) as refused:
        trials_of(grids, {})
    assert refused.value.position == position


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
