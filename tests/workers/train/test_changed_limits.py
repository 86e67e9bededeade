"""A limit that changes while a training waits, runs or was lost: its release is certified as it was paid for."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from privacy.accounting.filter import Filter
from service import ledger
from service.inspection import inspect_ledger
from service.reports import DATA
from tests.service.people import raise_limit
from tests.workers.conftest import on_either_database
from tests.workers.small_trainings import published_by
from workers.recipes.registry import TRAINERS
from workers.supervise.attempts import ExitStatus

# Steps on samples, whose price depends on the account's rate.
STEPS: dict[str, Any] = {"recipe": "dp_classifier", "architecture": "cnn", "expected_batch": 30, "epochs": 0.2}


def filter_now(workshop: Any) -> Filter:
    return ledger.filter_of(workshop.do(ledger.get_account, workshop.account_id))


def lost_on_the_way(run: Any) -> Any:
    """The recipe in a process that is gone once it has paid, as after kill -9."""

    def progress(**said: Any) -> bool:
        if run.budget.charged_nano:
            raise SystemExit
        return bool(run.progress(**said))

    return TRAINERS[run.plan.recipe](replace(run, progress=progress))


LOST = dict.fromkeys(TRAINERS, lost_on_the_way)


@on_either_database
def test_a_limit_that_is_raised_while_a_training_runs_and_is_resumed_leaves_it_its_price(workshop):
    """Raised between its attempts, and again in the second one; the next training is priced at the new rate."""
    before, job_id = filter_now(workshop), workshop.train(**STEPS)
    with pytest.raises(SystemExit):
        workshop.work(job_id, LOST)
    workshop.do(raise_limit, workshop.account_id, 30.0, datetime.now(UTC))
    workshop.give_back(job_id)

    def raised_again(run: Any) -> Any:
        workshop.do(raise_limit, workshop.account_id, 50.0, datetime.now(UTC))  # while the hold is armed
        return TRAINERS["dp_classifier"](run)

    published_by(workshop, job_id, {"dp_classifier": raised_again})
    card, hold, job = workshop.release_of(job_id).card, workshop.hold(job_id), workshop.job(job_id)
    assert card["cost_nano"] == hold.captured_nano == job.plan["cost_nano"]
    assert (card["rate"], card["base"], card["capacity_nano"]) == (before.rate, before.base, before.capacity_nano)
    assert card["epsilon"] == before.epsilon_of(hold.captured_nano) <= job.epsilon
    assert inspect_ledger(workshop.settings, workshop.factory, thorough=True).findings == ()
    later, present = workshop.train(**STEPS), filter_now(workshop)
    assert workshop.work(later) == ExitStatus.ENDED
    assert workshop.release_of(later).card["rate"] == present.rate < before.rate


@pytest.mark.parametrize("recipe", [STEPS, {"images": 120}], ids=["sampled steps", "votes"])
def test_a_limit_that_is_lowered_below_what_a_training_charges_lets_it_publish(workshop, recipe):
    """The account is frozen, but what was armed is resumed: nothing of what was paid for is lost."""
    before, job_id = filter_now(workshop), workshop.train(**{"epsilon": 3.0, **recipe})
    with pytest.raises(SystemExit):
        workshop.work(job_id, LOST)
    facts = {"account_id": workshop.account_id, "epsilon": 0.1, "reason": "enough"}
    workshop.do(ledger.limits.lower_limit, **facts, now=datetime.now(UTC))
    workshop.give_back(job_id)
    published_by(workshop, job_id)
    balance, card = workshop.balance(), workshop.release_of(job_id).card
    assert workshop.do(ledger.get_account, workshop.account_id).frozen
    if recipe is not STEPS:
        report = json.loads((workshop.settings.data_dir / workshop.release_of(job_id).artifact_dir / DATA).read_text())
        assert report["release"]["account_epsilon"] >= balance.guaranteed_epsilon >= balance.spent_epsilon > 0.1
        assert report["guarantee"]["attacker_certainty_max"] >= balance.attacker_certainty_max
    assert balance.spent_nano > balance.capacity_nano
    assert (card["capacity_nano"], card["cost_nano"]) == (before.capacity_nano, balance.spent_nano)
    assert inspect_ledger(workshop.settings, workshop.factory, thorough=True).findings == ()
