"""Expectations agree with published tables, with what people saw, and with the plans that they advise."""

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from obscura.wire.job_schemas import Expectation
from privacy.accounting.filter import open_filter
from privacy.errors import InvalidParameter
from privacy.plans.expectations import CURVE_POINTS, MEASURED, expect
from privacy.plans.moments import SEEN
from privacy.plans.plan import PublicFacts
from privacy.plans.registry import RECIPES, build_plan
from tests.privacy.plans.test_moments_plan import NINE, ROWS, TEN

DOCS = Path(__file__).resolve().parents[3] / "docs"
LIMIT = open_filter(20.0, 1e-5)
DIGITS = PublicFacts(TEN, 28, 28, 1, 1437, "record")


def expected(facts: PublicFacts, epsilon: float, recipe: str = "moments", **options: object) -> Expectation:
    plan = build_plan(recipe, options, LIMIT, LIMIT.nano_of(epsilon), facts)
    return expect(plan, options, LIMIT, facts, LIMIT.capacity_nano)


@pytest.mark.parametrize(("classes", "side", "channels", "records", "epsilon", "seen"), ROWS)
def test_the_band_is_what_was_seen_and_the_curve_agrees(classes, side, channels, records, epsilon, seen):
    found = expected(PublicFacts(classes, side, side, channels, records, "record"), float(epsilon))
    assert (found.band, found.recognisable) == (seen, seen in ("shapes", "detail"))
    assert found.summary[0] == SEEN[seen]
    nearest = max((point for point in found.curve if point.epsilon <= epsilon), key=lambda point: point.epsilon)
    bands = list(SEEN)
    assert bands.index(nearest.band or "") <= bands.index(seen)


def test_every_measured_row_is_published():
    """Tables have ε in their columns: `| clothes, 3,000 records | 0.700 | ...`, or one row for each ε."""
    folders = (DOCS / "research" / "small_folders.md").read_text("utf-8")
    pages = "".join(
        (DOCS / page).read_text("utf-8") for page in ("explanation/results.md", "how-to/choose-a-recipe.md")
    )
    rows = re.findall(r"\| \w+ \| ([\d,]+) \| (\d+) \|[^|]*\|[^|]*\| \**([\d.]+)\** \|", folders)
    in_folders = {(int(n.replace(",", "")), float(epsilon), float(accuracy)) for n, epsilon, accuracy in rows}
    assert len(MEASURED) >= 8
    for *_, records, accuracies in MEASURED:
        for epsilon, accuracy in accuracies.items():
            assert (records, epsilon, accuracy) in in_folders or f"{accuracy:.3f}" in pages, (records, epsilon)


@pytest.mark.parametrize("row", MEASURED, ids=str)
def test_the_expected_range_contains_the_published_accuracy(row):
    recipe, _, channels, classes, records, accuracies = row
    side, names = {3178: 64, 50_000: 32}.get(records, 28), tuple(f"c{number}" for number in range(classes))
    for epsilon, accuracy in accuracies.items():
        facts = PublicFacts(names, side, side, channels, records, "record")
        low, high = expected(facts, epsilon, recipe).accuracy or (1.0, 0.0)
        assert low - 0.02 <= accuracy <= high + 0.001  # sets of different sizes differ by up to 0.017 at one signal
        assert high - low < 0.25


@pytest.mark.parametrize(
    ("facts", "epsilon"),
    [
        (DIGITS, 0.05),
        (DIGITS, 1.0),
        (DIGITS, 12.0),
        (PublicFacts(NINE, 64, 64, 3, 3178, "record"), 0.1),
        (PublicFacts(NINE, 64, 64, 3, 3178, "record"), 1.0),
        (PublicFacts(("a", "b"), 32, 32, 1, 9000, "subject", 900), 0.3),
    ],
    ids=str,
)
def test_what_is_advised_reaches_the_next_band(facts, epsilon):
    found, bands = expected(facts, epsilon), list(SEEN)
    assert found.next_band in bands[bands.index(found.band or "") + 1 :]
    if found.next_epsilon is not None:
        assert expected(facts, found.next_epsilon * 1.001).band == found.next_band
        assert expected(facts, found.next_epsilon * 0.85).band == found.band
    assert found.next_units is not None
    times = found.next_units / facts.units_declared
    subjects = None if facts.subjects_declared is None else found.next_units
    more = dataclasses.replace(
        facts, records_declared=round(facts.records_declared * times), subjects_declared=subjects
    )
    assert expected(more, epsilon).band == found.next_band


def test_an_epsilon_above_the_rest_of_the_budget_is_not_advised():
    plan = build_plan("moments", {}, LIMIT, LIMIT.nano_of(1.0), DIGITS)
    found = expect(plan, {}, LIMIT, DIGITS, LIMIT.nano_of(2.0))
    assert (found.next_band, found.next_epsilon) == ("shapes", None)
    assert found.summary[-1] == "For recognisable shapes: about 9,400 records at this epsilon."
    assert expect(plan, {}, LIMIT, DIGITS, 0).curve == []


def test_nothing_is_claimed_where_nothing_comparable_was_measured():
    many = tuple(f"class {number}" for number in range(100))
    assert expected(dataclasses.replace(DIGITS, classes=many, records_declared=60_000), 3.0).accuracy is None
    assert expected(dataclasses.replace(DIGITS, records_declared=300), 1.0).accuracy is None
    colour = PublicFacts(TEN, 32, 32, 3, 50_000, "record")
    assert "no budget makes images in colour recognisable" in expected(colour, 3.0).summary[-1]
    for recipe in set(RECIPES) - {"moments", "select_public"}:
        found = expected(dataclasses.replace(DIGITS, records_declared=3000), 2.0, recipe)
        assert (found.band, found.recognisable, found.accuracy, found.next_band) == (None,) * 4
        assert ("counts, not images" if recipe == "class_histogram" else "A preview shows") in found.summary[0]


def test_the_curve_rises_to_all_that_is_left():
    curve = expected(DIGITS, 1.0).curve
    costs = [point.cost_nano for point in curve]
    assert costs == sorted(set(costs))
    assert (costs[0], costs[-1]) == (0, LIMIT.capacity_nano)
    assert len(curve) > CURVE_POINTS
    assert list(dict.fromkeys(point.band for point in curve)) == ["noise", "outlines", "shapes"]
    assert curve[-1].epsilon == pytest.approx(20.0)


RECIPES_MEASURED = sorted({row[0] for row in MEASURED})


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(RECIPES_MEASURED),
    st.sampled_from([1, 3]),
    st.sampled_from([28, 32, 64]),
    st.integers(2, 20),
    st.integers(400, 100_000),
    st.floats(0.05, 1.0),
    st.floats(0.1, 19.0),
)
def test_more_budget_never_promises_less(recipe, channels, side, classes, records, share, epsilon):
    facts = PublicFacts(tuple(f"c{number}" for number in range(classes)), side, side, channels, records, "record")
    plan = build_plan(recipe, {}, LIMIT, LIMIT.nano_of(epsilon), facts)
    found = expect(plan, {}, LIMIT, facts, LIMIT.capacity_nano, max(1, round(share * records)))
    ranges = [point.accuracy for point in found.curve]
    known = [each for each in ranges if each is not None]
    assert known == ranges[len(ranges) - len(known) :], "an accuracy that is known stays known"
    for edge in (0, 1):
        assert [each[edge] for each in known] == sorted(each[edge] for each in known)
    bands = [list(SEEN).index(point.band) for point in found.curve if point.band is not None]
    assert bands == sorted(bands)
    (here,) = (point for point in found.curve if point.cost_nano == plan.cost_nano)
    assert (here.band, here.accuracy) == (found.band, found.accuracy), "curve and text agree"


@pytest.mark.parametrize("facts", [DIGITS, PublicFacts(NINE, 64, 64, 3, 3178, "record")], ids=["grey", "colour"])
def test_an_accuracy_beside_unrecognisable_images_is_explained(facts):
    told = "A classifier can tell the classes apart where people cannot."
    found = [expected(facts, epsilon) for epsilon in (0.05, 0.3, 1.0, 3.0, 10.0, 19.0)]
    assert {each.band for each in found if each.accuracy} >= {"outlines"}
    for each in found:
        assert each.accuracy is None or each.band != "noise"
        assert (told in each.summary) == (each.accuracy is not None and not each.recognisable)


def test_an_expected_number_replaces_the_limit_in_the_forecast_alone():
    large = dataclasses.replace(DIGITS, records_declared=2000)
    plan = build_plan("moments", {}, LIMIT, LIMIT.nano_of(10.0), large)
    assumed, stated = (expect(plan, {}, LIMIT, large, LIMIT.capacity_nano, number) for number in (None, 1200))
    assert (assumed.band, stated.band) == ("shapes", "outlines")
    assert "This assumes the limit of 2,000 records; with fewer, expect less." in assumed.summary
    assert "This assumes 1,200 records, as you stated for this forecast." in stated.summary
    assert stated.next_epsilon is not None
    assert stated.next_epsilon > 10
    few = expect(plan, {}, LIMIT, large, LIMIT.capacity_nano, 900)
    assert few.accuracy is None, "measurements had options that suit their number of records"
    assert any("limit near 900 gives better" in sentence for sentence in few.summary)
    with pytest.raises(InvalidParameter, match="the dataset's limit is 2,000 records"):
        expect(plan, {}, LIMIT, large, LIMIT.capacity_nano, 2001)
