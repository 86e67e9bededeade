"""Numbers in words, rounded so that they never flatter."""

from datetime import timedelta
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obscura.wire import formats, wording
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
