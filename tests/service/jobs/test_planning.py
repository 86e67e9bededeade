"""Planning trainings and previews: refusals before anything is written, delta, and forecasts."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from obscura.wire.wording import show_epsilon
from obscura.wire.words import DatasetState, JobState
from privacy.accounting.filter import open_filter
from privacy.plans.moments import SEEN
from privacy.plans.registry import RECIPES
from service import jobs, ledger
from service.db.dataset_tables import Dataset
from service.db.job_tables import Preview
from service.errors import InvalidInput, StaleAttempt
from service.jobs import kinds
from service.jobs.kinds.preview import forecast_sentence
from service.jobs.planning import TrainingSet
from tests.service.jobs.shop import UNREADY


def test_a_plan_costs_at_most_what_was_offered_and_writes_nothing(shop):
    made = shop.plan()
    budget = ledger.filter_of(shop.read(ledger.get_account, shop.account_id))
    assert 0 < made.cost_nano <= budget.nano_of(1.0)
    assert made.cost_nano == sum(stage.cost_nano for stage in made.stages)
    assert made.cost_nano == sum(budget.cost_nano(stage.event) for stage in made.stages)
    shop.assert_nothing_written()


def test_a_plan_needs_no_content_and_no_budget(shop):
    dataset_id = shop.declare(account_id=shop.open_account(name="nothing yet"), **UNREADY)
    assert shop.plan(dataset_id=dataset_id, epsilon=20.0).cost_nano > 0


@pytest.mark.parametrize("epsilon", [0, 0.0, -1.0, math.nan, math.inf, -math.inf, True, "1", None, 1e9])
def test_an_epsilon_that_is_no_budget_is_refused(shop, epsilon):
    for ask in (shop.plan, shop.train, shop.sweep_of):
        with pytest.raises(InvalidInput, match="epsilon"):
            ask(epsilon=epsilon)
    shop.assert_nothing_written()


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": "alchemy"},
        {"options": {"no_such_option": 1}},
        {"options": {"k": 10**6}},
        {"options": {"x": math.nan}},
        {"options": {"x": object()}},
        {"options": {"x": "y" * 20_000}},
    ],
)
def test_what_no_recipe_can_do_is_refused_and_changes_nothing(shop, change):
    for ask in (shop.plan, partial(shop.train, key="k"), partial(shop.sweep_of, key="k")):
        with pytest.raises(InvalidInput):
            ask(**change)
    shop.assert_nothing_written()


def test_the_remaining_epsilon_is_affordable_as_it_is_shown():
    """Of a spent nano-unit, three digits show nothing."""
    privacy_filter = open_filter(2.0, 1e-5)
    account = ledger.Account(name="a", capacity_nano=privacy_filter.capacity_nano, spent_nano=1, reserved_nano=0)
    trained = TrainingSet(Dataset(), account, privacy_filter, 100)
    assert show_epsilon(privacy_filter.epsilon_of(account.left_nano), up=False) == "2.0"
    assert trained.budget_nano(2.0) == account.left_nano
    assert trained.budget_nano(2.01) > account.left_nano


def test_delta_above_one_over_the_records_is_refused_with_both(shop):
    exact, above = (
        shop.declare(account_id=shop.open_account(name=f"{count} people"), records_declared=count)
        for count in (100_000, 100_001)
    )
    shop.plan(dataset_id=exact)
    with pytest.raises(InvalidInput, match="delta 1e-05, which is above 1/100001") as caught:
        shop.train(dataset_id=above)
    assert caught.value.numbers == {"delta": 1e-5, "delta_max": 1 / 100_001, "records_declared": 100_001}
    shop.assert_nothing_written()


def test_delta_is_compared_with_all_that_was_declared_in_the_account(shop):
    """Two datasets of 60,000 records are one population of 120,000, and delta is for all of it."""
    shop.plan()
    waiting = shop.declare(account_id=shop.account_id, records_declared=50_000, **UNREADY)
    shop.declare(account_id=shop.account_id, records_declared=90_000, state=DatasetState.DELETED)
    shop.declare(account_id=shop.open_account(name="others"), records_declared=90_000)
    shop.plan()  # neither content that never came, nor what was deleted untouched, nor another account's counts
    second = shop.declare(account_id=shop.account_id, records_declared=40_000)
    shop.plan(dataset_id=second)  # 100,000 in all
    with pytest.raises(InvalidInput, match="above 1/150000") as caught:
        shop.plan(dataset_id=waiting)
    assert caught.value.numbers == {"delta": 1e-5, "delta_max": 1 / 150_000, "records_declared": 150_000}
    third = shop.declare(account_id=shop.account_id, records_declared=1)
    for dataset_id in (shop.dataset_id, second, third):
        with pytest.raises(InvalidInput, match="above 1/100001"):
            shop.train(dataset_id=dataset_id)
    shop.assert_nothing_written()


def test_what_was_published_about_a_deleted_dataset_still_counts(shop):
    shop.released()
    shop.declare(account_id=shop.account_id, records_declared=40_001)
    shop.change(Dataset, shop.dataset_id, state=DatasetState.DELETED)
    new = shop.declare(account_id=shop.account_id, records_declared=10)
    with pytest.raises(InvalidInput, match="above 1/100011"):
        shop.plan(dataset_id=new)


@pytest.mark.parametrize(("records", "remarked"), [(10_000, False), (10_001, True), (100_000, True)])
def test_a_delta_above_a_tenth_of_one_over_n_is_remarked_on(shop, records, remarked):
    dataset_id = shop.declare(account_id=shop.open_account(name="some"), records_declared=records)
    few = {"teachers": 100}
    notes = [note for note in shop.plan(dataset_id=dataset_id, options=few).notes if "tenth" in note]
    assert bool(notes) is remarked
    assert all(f"choose at most 1/{10 * records}" in note for note in notes)
    stored = shop.job(shop.train(dataset_id=dataset_id, options=few)).plan["notes"]
    assert [note for note in stored if "tenth" in note] == notes


def test_a_subject_account_counts_subjects(shop):
    """n is the number of subjects: for delta, and for the teachers that they support."""

    def declared(subjects: int | None) -> str:
        account_id = shop.open_account(name=f"families {subjects}", unit="subject")
        return shop.declare(account_id=account_id, records_declared=900_000, subjects_declared=subjects)

    made = shop.plan(dataset_id=declared(100_000))
    assert made.facts["protects"] == "all records of one subject"
    assert made.facts["units_declared"] == 100_000
    with pytest.raises(InvalidInput, match=r"above 1/100001 .* for the 100001 subjects declared") as caught:
        shop.train(dataset_id=declared(100_001))
    assert caught.value.numbers == {"delta": 1e-5, "delta_max": 1 / 100_001, "subjects_declared": 100_001}
    with pytest.raises(InvalidInput, match="400 declared subjects support at most 100 teachers"):
        shop.train(dataset_id=declared(400), options={"teachers": 101})
    with pytest.raises(InvalidInput, match="has no subject ids"):
        shop.train(dataset_id=declared(None))
    shop.assert_nothing_written()


def test_a_recipe_that_bounds_records_only_is_refused_where_subjects_are_protected(shop, monkeypatch):
    """Such as a clipped gradient for each record: a subject with fifty of them has fifty times the say."""
    record_only = replace(RECIPES["datalens"], units=frozenset({"record"}))
    monkeypatch.setitem(RECIPES, "clipped_gradients", record_only)
    shop.plan(recipe="clipped_gradients")
    account_id = shop.open_account(name="families", unit="subject")
    dataset_id = shop.declare(account_id=account_id, subjects_declared=20_000)
    with pytest.raises(InvalidInput, match="protects all records of one subject") as caught:
        shop.train(dataset_id=dataset_id, recipe="clipped_gradients")
    assert "This recipe needs an account whose unit is the record" in caught.value.message
    offered = caught.value.message.rpartition("choose one of ")[2].rstrip(".").split(", ")
    assert set(offered) == set(RECIPES) - {"clipped_gradients"}
    shop.assert_nothing_written()


# --- previews ---------------------------------------------------------------------------------------------------------


LARGE = {"height": 1024, "width": 1024, "channels": 3}
FOUND = {"accuracy": 0.5, "real": 0.9, "chance": 0.1, "stand_in": "generated patterns"}


def ask(shop: Any, **changes: Any) -> str:
    order = {"dataset_id": shop.dataset_id, "recipe": "datalens", "epsilon": 1.0, "options": {}}
    return str(shop.ask("preview", **order | {"stand_in_dataset_id": None, **changes}))


def test_a_preview_needs_no_budget_and_writes_nothing_to_the_ledger(shop):
    logged = shop.kinds()
    job_id = ask(shop, epsilon=100.0)
    assert (shop.job(job_id).kind, shop.job(job_id).hold_id) == ("preview", None)
    assert shop.kinds() == logged
    assert shop.balance().reserved_nano == 0


def test_what_was_found_is_kept_once(shop):
    claim = shop.claimed(ask(shop))
    for _ in range(2):
        shop.tell(kinds.preview.KIND.finish, claim, results=FOUND, grid=b"png", now=shop.now)
    assert shop.job(claim.job_id).state is JobState.SUCCEEDED
    with pytest.raises(StaleAttempt):
        shop.tell(kinds.preview.KIND.finish, claim, results=FOUND | {"accuracy": 0.6}, grid=b"png", now=shop.now)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"recipe": "class_histogram"}, "publishes counts"),
        ({"epsilon": 0.0}, "must be positive and finite"),
        ({"recipe": "nothing"}, "cannot be planned"),
        ({"named": "own"}, "must be a public dataset"),
        ({"named": "narrow"}, "has 1 classes"),
        ({"named": "large"}, "needs .* GiB"),
    ],
)
def test_what_cannot_be_previewed_is_refused_in_words(shop, changes, says):
    datasets = {
        "own": {"stand_in_dataset_id": shop.dataset_id},
        "narrow": {"stand_in_dataset_id": shop.declare(account_id=None, classes=["one"])},
        "large": {
            "dataset_id": shop.declare(account_id=shop.account_id, records_declared=2000, **LARGE),
            "recipe": "moments",
            "options": {"components": 20},  # more would make too large a generator
        },
    }
    changes = datasets.get(changes.get("named", ""), changes)
    before = shop.counts()
    with pytest.raises(InvalidInput, match=says):
        ask(shop, **changes)
    assert shop.counts() == before


@pytest.mark.parametrize(
    ("accuracy", "says"),
    [(0.85, None), (0.5, "much is lost in the noise"), (0.2, "nearly everything is lost in the noise")],
)
def test_a_forecast_warns_where_there_is_little_to_see(accuracy, says):
    sentence = forecast_sentence(**FOUND | {"accuracy": accuracy})
    assert "guessing: 10%" in sentence
    assert "trained on the stand-in's own images: 90%" in sentence
    assert ("noise" in sentence) == (says is not None)
    assert says is None or says in sentence


def test_where_a_balance_is_stated_the_mean_over_classes_and_the_least_ones_are_told():
    found = FOUND | {"accuracy": 0.999, "real": 0.999, "balanced": 0.5, "real_balanced": 0.8, "stated": True}
    found |= {"by_class": {"normal": 1.0, "sick": 0.0}}
    sentence = forecast_sentence(**found)
    assert "right on 50% of a class of generated patterns, on average over the classes" in sentence
    assert "trained on the stand-in's own images: 80%" in sentence
    assert "Worst classes: sick 0%, normal 100%." in sentence
    assert "99.9%" not in sentence
    assert "much is lost in the noise" in sentence
    assert "99.9%" in forecast_sentence(**found | {"stated": False})


def test_the_result_of_a_preview_does_not_repeat_what_its_plan_expects(shop):
    claim = shop.claimed(ask(shop, epsilon=8.0, recipe="moments"))
    shop.tell(kinds.preview.KIND.finish, claim, results=FOUND, grid=b"png", now=shop.now)
    job = shop.job(claim.job_id)
    verdict = kinds.preview.show(shop.read(jobs.made_by, Preview, job.id), job).verdict
    assert verdict == forecast_sentence(**FOUND)
    assert job.plan["notes"][0] == SEEN[job.plan["facts"]["expected_detail"]]
