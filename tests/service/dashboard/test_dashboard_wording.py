"""Numbers in words, rounded so that they never flatter; and colours that can be told apart."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import service.dashboard
from privacy.accounting.filters import open_filter
from privacy.accounting.odds import sure_at_most
from service.dashboard import wording
from service.dashboard.accounts import HEIGHT, WIDTH, spend_chart
from service.dashboard.queries import SpendPoint

STYLE = Path(service.dashboard.__file__).parent / "static" / "dashboard.css"


@pytest.mark.parametrize(
    ("epsilon", "sure"), [(0.5, "65.7%"), (1, "77.5%"), (2, "91.5%"), (3, "97%"), (8, "99.99%"), (30, "over 99.99%")]
)
def test_limits_are_shown_as_odds(epsilon, sure):
    assert wording.show_sure(sure_at_most(open_filter("gdp", epsilon, 1e-5))) == sure


@given(st.floats(0.5, 1.0))
def test_odds_are_rounded_up_and_never_certain(sure):
    shown = wording.show_sure(sure)
    assert not shown.startswith("100")
    if not shown.startswith("over"):
        assert float(shown.rstrip("%")) >= 100 * sure - 1e-6


def test_odds_sentences_name_the_unit_and_how_often_they_may_fail():
    assert "a picture was used" in wording.odds_sentence(0.775, 1e-5, "record")
    assert "a person's pictures" in wording.odds_sentence(0.775, 1e-5, "subject")
    assert "except with a chance of 1 in 100,000." in wording.odds_sentence(0.775, 1e-5, "record")
    assert "promises almost nothing" in wording.odds_sentence(0.999999, 1e-5, "record")


@pytest.mark.parametrize(
    ("delta", "chance", "power"),
    [
        (1e-5, "1 in 100,000", "10⁻⁵"),
        (3e-6, "1 in 333,333", "3 × 10⁻⁶"),
        (2.5e-10, "1 in 4,000,000,000", "2.5 × 10⁻¹⁰"),
    ],
)
def test_delta_is_shown_as_a_chance(delta, chance, power):
    assert wording.show_delta(delta) == chance
    assert wording.show_power(delta) == power


@given(st.floats(0, 1))
def test_shares_round_in_the_safe_direction(share):
    up, down = wording.show_percent(share, up=True), wording.show_percent(share, up=False)
    assert float(down[:-1]) - 1e-7 <= 100 * share <= float(up[:-1]) + 1e-7
    assert float(up[:-1]) - float(down[:-1]) < 0.11


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59, "59 s"), (214, "3 min 34 s"), (3600, "1 h"), (90_000, "1 d 1 h"), (-5, "0 s")],
)
def test_durations(seconds, words):
    assert wording.show_duration(timedelta(seconds=seconds)) == words


@pytest.mark.parametrize(("count", "words"), [(0, "0 bytes"), (999, "999 bytes"), (30_700_000, "30.7 MB")])
def test_sizes(count, words):
    assert wording.show_bytes(count) == words


def test_numbers_and_names_of_plans():
    assert [wording.show_number(value) for value in (4000, 0.123456, True, "text", [1, 2])] == [
        "4,000",
        "0.1235",
        "yes",
        "text",
        "1, 2",
    ]
    assert wording.show_words("warm_start") == "Warm start"
    assert wording.show_words("cnn") == "CNN"


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 0.5), st.floats(0, 0.7)), min_size=1, max_size=30),
    st.integers(0, 100),
)
def test_the_chart_stays_in_its_box(rows, later):
    begin = datetime(2030, 1, 1, tzinfo=UTC)
    points = [SpendPoint(begin + timedelta(seconds=at), spent, held) for at, spent, held in sorted(rows)]
    chart = spend_chart(points, points[-1].at + timedelta(seconds=later))
    if chart is None:
        assert all(point.spent == point.held == 0 for point in points)
        return
    for path in (chart.spent_line, chart.spent_area, chart.held_area):
        for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path):
            assert 0 <= float(x) <= WIDTH
            assert 0 <= float(y) <= HEIGHT


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_meet_wcag_aa_in_both_schemes(scheme):
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part)) for part in STYLE.read_text().split("@media")[:2]
    )
    colours = light | (dark if scheme == "dark" else {})
    text = [(ink, ground) for ink in ("ink", "soft", "accent") for ground in ("paper", "raised", "wash")]
    text += [(name, f"{name}-wash") for name in ("good", "bad", "busy", "warn")] + [
        ("accent-ink", "accent"),
        ("soft", "wash"),
    ]
    for ink, ground in text:
        assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    shapes = [("edge", "paper"), ("edge", "raised"), ("focus", "paper"), ("focus", "raised"), ("spent", "left-base")]
    shapes += [("spent", "raised"), ("held-mark", "held-base"), ("left-mark", "left-base")]
    for shape, ground in shapes:
        minimum = 2.0 if shape == "left-mark" else 3.0  # the dots are texture; the bar's edge and text carry "left"
        assert contrast(colours[shape], colours[ground]) >= minimum, (shape, ground)
