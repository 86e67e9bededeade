"""Numbers in words, rounded so that they never flatter; and values and shares that people write."""

from datetime import timedelta
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obscura.wire import formats, wording
from obscura.wire.class_fractions import read_class_fractions
from obscura.wire.grids import GridRefused, trials_of
from obscura.wire.words import SampleFormat
from privacy.accounting.filter import attacker_certainty_max, open_filter


@pytest.mark.parametrize(
    ("epsilon", "up", "down"),
    [
        (0.0, "0", "0"),
        (2.0, "2.0", "2.0"),
        (1.2, "1.2", "1.2"),
        (1.1999999995, "1.2", "1.2"),  # 1.2 converted to nano-units and back
        (1.2345, "1.24", "1.23"),
        (0.999, "0.999", "0.999"),
        (9.999, "10.0", "9.99"),
        (0.00012345, "0.000124", "0.000123"),
        (1234.5, "1240", "1230"),
    ],
)
def test_epsilons_have_three_digits(epsilon, up, down):
    assert (wording.show_epsilon(epsilon, up=True), wording.show_epsilon(epsilon, up=False)) == (up, down)


@given(st.floats(min_value=1e-6, max_value=1e4))
def test_epsilons_round_in_the_direction_asked_for(epsilon):
    slack = 1e-7 * epsilon
    assert float(wording.show_epsilon(epsilon, up=False)) <= epsilon + slack
    assert float(wording.show_epsilon(epsilon, up=True)) >= epsilon - slack
    assert float(wording.show_epsilon(epsilon, up=True)) <= epsilon * 1.011


@pytest.mark.parametrize(
    ("epsilon", "sure"), [(0.5, "68%"), (1, "79.3%"), (2, "92.2%"), (3, "97.3%"), (8, "99.99%"), (30, "over 99.99%")]
)
def test_limits_are_shown_as_odds(epsilon, sure):
    assert wording.show_sure(attacker_certainty_max(open_filter(epsilon, 1e-5))) == sure


@given(st.floats(0.5, 1.0))
def test_odds_are_rounded_up_and_never_certain(sure):
    shown = wording.show_sure(sure)
    assert not shown.startswith("100")
    if not shown.startswith("over"):
        assert float(shown.rstrip("%")) >= 100 * sure - 1e-6


@given(st.floats(0, 1))
def test_shares_round_in_the_safe_direction(share):
    up, down = wording.show_percent(share, up=True), wording.show_percent(share, up=False)
    assert float(down[:-1]) - 1e-7 <= 100 * share <= float(up[:-1]) + 1e-7
    assert float(up[:-1]) - float(down[:-1]) < 0.11


def of_seconds(seconds: int) -> str:
    return wording.show_duration(timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("show", "shown"),
    [
        (wording.show_delta, [(1e-5, "1 in 100,000"), (3e-6, "1 in 333,333"), (2.5e-10, "1 in 4,000,000,000")]),
        (wording.show_power, [(1e-5, "10⁻⁵"), (3e-6, "3 × 10⁻⁶"), (2.5e-10, "2.5 × 10⁻¹⁰")]),
        (of_seconds, [(0, "0 min"), (59, "0 min"), (214, "3 min"), (3600, "1 h"), (90_000, "1 d 1 h"), (-5, "0 min")]),
        (wording.show_bytes, [(0, "0 bytes"), (999, "999 bytes"), (30_700_000, "30.7 MB")]),
        (wording.show_number, [(4000, "4,000"), (0.123456, "0.1235"), (True, "yes"), ("a", "a"), ([1, 2], "1, 2")]),
        (wording.show_number, [({"class_means": 18_008.4, "votes": 1e-5}, "class means 18,008; votes 10⁻⁵")]),
        (wording.show_words, [("warm_start", "Warm start"), ("cnn", "CNN")]),
        (wording.show_time, [("2030-01-02T04:04:05+01:00", "2 Jan 2030, 03:04 UTC")]),
        (wording.show_percent, [(0.5, "50%"), (0.123456, "12.3%"), (0.0, "0%")]),
    ],
)
def test_values_are_shown_in_words(show, shown):
    assert [(value, show(value)) for value, _ in shown] == shown


def test_every_list_of_sample_formats_is_the_same():
    assert [*formats.PACKINGS] == [*get_args(formats.SampleFormat)] == [word.value for word in SampleFormat]


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
        (["a=1"], None, "give 1 trial; a sweep has 2 to 64"),
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
