"""A DataLens plan fits its budget for every filter, says what it was asked, and refuses the rest by name."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privacy.accounting.filter import Filter, open_filter
from privacy.errors import InvalidParameter
from privacy.plans import datalens
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import plan_from_json

FACTS = PublicFacts(tuple("abcdefghij"), 28, 28, 1, 60_000, "record")
ACCOUNT = open_filter(1.0, 1e-5)


def plan(options: dict[str, Any], privacy_filter: Filter = ACCOUNT, facts: PublicFacts = FACTS) -> Plan:
    return datalens.plan_from_options(options, privacy_filter, privacy_filter.capacity_nano, facts)


def assert_fits(made: Plan, privacy_filter: Filter) -> None:
    """What the ledger relies on: prices add up, stay in the budget, and every stage is a priced event."""
    assert made.cost_nano == sum(stage.cost_nano for stage in made.stages) <= made.budget_nano
    assert made.cost_nano > 0
    assert len({stage.name for stage in made.stages}) == len(made.stages)
    for stage in made.stages:
        assert stage.cost_nano == privacy_filter.cost_nano(stage.event) > 0


@pytest.mark.parametrize("epsilon", [0.05, 0.2, 1.0, 10.0, 300.0])
@pytest.mark.parametrize("options", [{"preset": preset} for preset in datalens.PRESETS], ids=str)
def test_a_plan_uses_its_budget_and_never_exceeds_it(options: dict[str, Any], epsilon: float) -> None:
    privacy_filter = open_filter(epsilon, 1e-5)
    made = plan(options, privacy_filter)
    assert_fits(made, privacy_filter)
    releases = sum(stage.event.count for stage in made.stages)
    assert made.budget_nano - made.cost_nano <= releases + len(made.stages)  # less than a nano-unit of each is lost


def test_noise_can_be_chosen_instead_of_images() -> None:
    privacy_filter = open_filter(1.0, 1e-5)
    options = {"stddev": 5000.0, "top_k": 80, "images_per_iteration": 30}
    made = plan(options, privacy_filter)
    assert_fits(made, privacy_filter)
    votes = made.stage(datalens.VOTES)
    assert made.facts["noise_stddev"] == {datalens.VOTES: 5000.0}
    assert votes.event.count == made.facts["images_to_aggregate"] == 30 * made.facts["iterations"]
    papers = {"stddev": 5000.0, "top_k": 200, "images_per_iteration": 2}
    assert plan(papers).facts["images_to_aggregate"] == 2216  # the filter allows 2217, and an iteration has two
    one_more = privacy_filter.cost_nano(dataclasses.replace(votes.event, count=votes.event.count + 30))
    assert one_more > made.budget_nano


@pytest.mark.parametrize("missing", ["recipe", "config", "stages", "cost_nano", "budget_nano", "notes", "facts"])
def test_an_incomplete_document_is_no_plan(missing: str) -> None:
    document = plan({}).to_json()
    del document[missing]
    with pytest.raises(KeyError, match=missing):
        plan_from_json(document)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"teachers": 15_001}, "60000 declared records support at most 15000 teachers"),
    ({"top_k": 785}, "k is at most 784"),
    ({"votes_share": 0.5}, "teacher_network"),  # the message lists what is known
    ({"preset": "warm"}, "kernel, published"),
]


def test_refusals_teach() -> None:
    for options, words in REFUSED:
        with pytest.raises(InvalidParameter, match=words):
            plan(options)
    plan({"teachers": 15_000})
    few = dataclasses.replace(FACTS, records_declared=datalens.UNITS_PER_TEACHER_MIN)
    assert plan({}, facts=few).facts["teachers"] == 1
    with pytest.raises(InvalidParameter, match="at most 1 teachers"):
        plan({"teachers": 2}, facts=few)
    for budget_nano in (0, 1, 3, 40, 599):
        with pytest.raises(InvalidParameter, match="budget_nano"):
            datalens.plan_from_options({}, ACCOUNT, budget_nano, FACTS)


@pytest.mark.parametrize(
    ("options", "classes", "lower"),
    [
        ({"teacher_network": "convolutional"}, 10, "teachers or teacher_hidden;"),
        ({"teacher_network": "linear"}, 1000, "lower teachers;"),
    ],
    ids=str,
)
def test_more_teachers_than_fit_in_memory_are_refused(options: dict[str, Any], classes: int, lower: str) -> None:
    facts = dataclasses.replace(FACTS, classes=tuple(map(str, range(classes))), records_declared=1_000_000)
    each = datalens.config_from_options(options, 0.5, facts).parameters_per_teacher(facts)
    fit = datalens.TEACHER_PARAMETERS_MAX // each
    plan({**options, "teachers": fit}, facts=facts)
    with pytest.raises(InvalidParameter, match=lower) as refusal:
        plan({**options, "teachers": fit + 1}, facts=facts)
    assert refusal.value.name == "teachers"
    assert f"{(fit + 1) * each:,} together" in refusal.value.why
    assert f"{fit:,} teachers of this size would fit" in refusal.value.why


SUBJECTS = dataclasses.replace(FACTS, unit="subject", subjects_declared=2_000)


def test_subjects_are_what_the_number_of_teachers_is_judged_by() -> None:
    with pytest.raises(InvalidParameter, match="2000 declared subjects support at most 500 teachers"):
        plan({"teachers": 501}, facts=SUBJECTS)
    made = plan({"teachers": 500}, facts=SUBJECTS)
    assert made.facts["protects"] == "all records of one subject"
    assert made.facts["units_declared"] == 2_000
    assert any("share no subject" in note for note in made.notes)
    for_records = plan({"teachers": 500})
    assert for_records.facts["protects"] == "one record"
    assert for_records.facts["units_declared"] == 60_000
    assert made.stages == for_records.stages  # the same sensitivities, hence the same noise and price


@pytest.mark.parametrize("changes", [{"unit": "subject"}, {"subjects_declared": 5}, {"unit": "family"}], ids=str)
def test_facts_that_do_not_say_how_many_units_there_are_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        dataclasses.replace(FACTS, **changes)


NONSENSE: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.text(max_size=3), st.floats(), st.integers(), st.just(10**30), st.just([])
)


@st.composite
def some_options(draw: st.DrawFn) -> dict[str, Any]:
    """A few options around their defaults, now and then one that is nonsense."""
    options: dict[str, Any] = {
        "preset": draw(st.sampled_from(sorted(datalens.PRESETS))),
        "teachers": draw(st.sampled_from([1, 50, 100, 4000])),
        "top_k": draw(st.sampled_from([1, 3, 20])),
    }
    for name in draw(st.lists(st.sampled_from(list(datalens.DataLensConfig.model_fields)), max_size=4, unique=True)):
        field = datalens.DataLensConfig.model_fields[name]
        if isinstance(field.default, bool):
            options[name] = draw(st.booleans())
        elif isinstance(field.default, int):
            options[name] = draw(st.sampled_from([1, 2, field.default // 2, field.default, 3 * field.default]))
        elif isinstance(field.default, float):
            options[name] = field.default * draw(st.floats(0.01, 3.0))
        else:
            options[name] = draw(st.floats(2.5, 1e9))
        if draw(st.integers(0, 9)) == 0:
            options[name] = draw(NONSENSE)
    return options


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    options=some_options(),
    epsilon=st.sampled_from([0.01, 1.0, 50.0]),
    fraction=st.sampled_from([1e-6, 0.01, 1.0]),
    facts=st.builds(
        PublicFacts,
        st.sampled_from([("a",), ("a", "b", "c")]),
        st.sampled_from([1, 8, 28]),
        st.sampled_from([1, 9, 32]),
        st.sampled_from([1, 3]),
        st.sampled_from([3, 400, 60_000]),
        st.just("record"),
    ),
)
def test_any_options_give_a_plan_that_fits_or_a_refusal(options, epsilon, fraction, facts):
    privacy_filter = open_filter(epsilon, 1e-5)
    budget_nano = int(privacy_filter.capacity_nano * fraction)
    try:
        made = datalens.plan_from_options(options, privacy_filter, budget_nano, facts)
    except InvalidParameter:
        return
    assert_fits(made, privacy_filter)
    read = plan_from_json(json.loads(json.dumps(made.to_json(), allow_nan=False)))
    assert read == made
    config = read.config_of(datalens.DataLensConfig)
    for stage in read.stages:  # a recipe rebuilds its events from stored noise, and the ledger compares them
        assert config.topagg(facts, read.noise_stddev[stage.name]).event(stage.event.count) == stage.event
