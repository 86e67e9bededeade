"""Previews: which are accepted, and their forecasts."""

from typing import Any

import pytest

from obscura.wire.words import JobState
from privacy.plans.moments import SEEN
from service import jobs
from service.db.job_tables import Preview
from service.errors import InvalidInput, StaleAttempt
from service.jobs import kinds
from service.jobs.kinds.preview import forecast_sentence

LARGE = {"height": 1024, "width": 1024, "channels": 3}
FOUND = {"accuracy": 0.5, "real": 0.9, "chance": 0.1, "stand_in": "generated patterns"}


def ask(shop: Any, **changes: Any) -> str:
    order = {"dataset_id": shop.dataset_id, "recipe": "datalens", "epsilon": 1.0, "options": {}}
    return str(shop.ask("preview", **order | {"stand_in_dataset_id": None, **changes}))


def test_a_preview_needs_no_budget_and_writes_nothing_to_the_ledger(shop):
    logged = shop.log_kinds()
    job_id = ask(shop, epsilon=100.0)
    assert (shop.job(job_id).kind, shop.job(job_id).hold_id) == ("preview", None)
    assert shop.log_kinds() == logged
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
        ({"epsilon": 0.0}, "above 0"),
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
    [(0.85, None), (0.5, "much of it is lost in noise"), (0.2, "nearly everything is lost in the noise")],
)
def test_a_forecast_warns_where_there_is_little_to_see(accuracy, says):
    sentence = forecast_sentence(**FOUND | {"accuracy": accuracy})
    assert "guessing: 10%" in sentence
    assert "real ones: 90%" in sentence
    assert ("noise" in sentence) == (says is not None)
    assert says is None or says in sentence


def test_where_a_balance_is_stated_the_mean_over_classes_and_the_least_ones_are_told():
    found = FOUND | {"accuracy": 0.999, "real": 0.999, "balanced": 0.5, "real_balanced": 0.8, "stated": True}
    found |= {"by_class": {"normal": 1.0, "sick": 0.0}}
    sentence = forecast_sentence(**found)
    assert "right on 50% of a class of generated patterns, on average over the classes" in sentence
    assert "real ones: 80%" in sentence
    assert "Least: sick 0%, normal 100%." in sentence
    assert "99.9%" not in sentence
    assert "much of it is lost in noise" in sentence
    assert "99.9%" in forecast_sentence(**found | {"stated": False})


def test_what_people_will_see_is_said_with_the_forecast(shop):
    claim = shop.claimed(ask(shop, epsilon=8.0, recipe="moments"))
    shop.tell(kinds.preview.KIND.finish, claim, results=FOUND, grid=b"png", now=shop.now)
    job = shop.job(claim.job_id)
    verdict = kinds.preview.show(shop.read(jobs.made_by, Preview, job.id), job).verdict
    assert verdict == f"{forecast_sentence(**FOUND)} {SEEN[job.plan['facts']['expected_detail']]}"
