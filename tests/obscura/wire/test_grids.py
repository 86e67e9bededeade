"""Values to try give the trials of a search, or are refused where they stand."""

import pytest

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
