"""A limit that changes while a training waits, runs or was lost: its release is certified as it was paid for."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from obscura.wire.words import JobState
from privacy.accounting.filter import Filter
from service import ledger
from service.db.session import transaction
from service.inspection import inspect_ledger
from service.reports import DATA
from tests.service.people import approve_raise, make_key
from tests.workers.conftest import on_either_database
from workers.recipes.registry import TRAINERS
from workers.supervise.attempts import ExitStatus

# Steps on samples, whose price depends on the account's rate.
STEPS: dict[str, Any] = {"recipe": "dp_classifier", "architecture": "cnn", "expected_batch": 30, "epochs": 0.2}


def raise_limit(workshop: Any, epsilon: float) -> None:
    now = datetime.now(UTC)
    with transaction(workshop.factory) as session:
        asks, approves = (make_key(session, name="admin", scopes=["admin"], now=now)[0].id for _ in range(2))
        facts = {"epsilon": epsilon, "reason": "a second study", "asked_with": asks, "now": now}
        asked = ledger.request_raise(session, account_id=workshop.account_id, **facts)
        approve_raise(session, asked.id, approves, now)


def lower_limit(workshop: Any, epsilon: float) -> None:
    facts = {"account_id": workshop.account_id, "epsilon": epsilon, "reason": "enough"}
    workshop.do(ledger.lower_limit, **facts, now=datetime.now(UTC))


def filter_now(workshop: Any) -> Filter:
    return ledger.filter_of(workshop.do(ledger.get_account, workshop.account_id))


def before_training(act: Callable[[], None], recipe: str = "dp_classifier") -> dict[str, Any]:
    """The recipe, once something was done while its hold is armed."""

    def train(run: Any) -> Any:
        act()
        return TRAINERS[recipe](run)

    return {recipe: train}


def lost_on_the_way(run: Any) -> Any:
    """The recipe in a process that is gone once it has paid, as after kill -9."""

    def progress(**said: Any) -> bool:
        if run.budget.charged_nano:
            raise SystemExit
        return bool(run.progress(**said))

    return TRAINERS[run.plan.recipe](replace(run, progress=progress))


LOST = dict.fromkeys(TRAINERS, lost_on_the_way)


def assert_published(workshop: Any, job_id: str, priced_by: Filter) -> None:
    """The training has a release whose card says what was held for it; receipts, files and ledger are sound."""
    workshop.assert_settled(job_id, JobState.SUCCEEDED)
    card, hold, job = workshop.release_of(job_id).card, workshop.hold(job_id), workshop.job(job_id)
    assert card["price_nano"] == hold.captured_nano == job.plan["price_nano"]
    said = {name: card[name] for name in ("rate", "base", "capacity_nano")}
    assert said == {name: getattr(priced_by, name) for name in said}
    assert card["epsilon"] == priced_by.epsilon_of(hold.captured_nano) <= job.epsilon
    assert inspect_ledger(workshop.settings, workshop.factory, thorough=True).findings == ()


@on_either_database
def test_a_limit_that_is_raised_while_a_training_runs_and_is_resumed_leaves_it_its_price(workshop):
    """Raised between its attempts, and again in the second one; the next training is priced at the new rate."""
    before, job_id = filter_now(workshop), workshop.train(**STEPS)
    with pytest.raises(SystemExit):
        workshop.work(job_id, LOST)
    raise_limit(workshop, 30.0)
    workshop.give_back(job_id)
    assert workshop.work(job_id, before_training(lambda: raise_limit(workshop, 50.0))) == ExitStatus.ENDED
    assert_published(workshop, job_id, before)
    later, present = workshop.train(**STEPS), filter_now(workshop)
    assert workshop.work(later) == ExitStatus.ENDED
    assert workshop.release_of(later).card["rate"] == present.rate < before.rate


@pytest.mark.parametrize("recipe", [STEPS, {"images": 120}], ids=["sampled steps", "votes"])
def test_a_limit_that_is_lowered_below_what_a_training_charges_lets_it_publish(workshop, recipe):
    """The account is frozen, but what was armed is resumed: nothing of what was paid for is lost."""
    before, job_id = filter_now(workshop), workshop.train(**{"epsilon": 3.0, **recipe})
    with pytest.raises(SystemExit):
        workshop.work(job_id, LOST)
    lower_limit(workshop, 0.1)
    workshop.give_back(job_id)
    assert workshop.work(job_id) == ExitStatus.ENDED
    workshop.assert_settled(job_id, JobState.SUCCEEDED)
    balance, card = workshop.balance(), workshop.release_of(job_id).card
    assert balance.frozen
    if recipe is not STEPS:
        report = json.loads((workshop.settings.data_dir / workshop.release_of(job_id).artifact_dir / DATA).read_text())
        assert report["release"]["account_epsilon"] >= balance.promised_epsilon >= balance.spent_epsilon > 0.1
        assert report["guarantee"]["sure_at_most"] >= balance.sure_at_most
    assert balance.spent_nano > balance.capacity_nano
    assert (card["capacity_nano"], card["price_nano"]) == (before.capacity_nano, balance.spent_nano)
    assert inspect_ledger(workshop.settings, workshop.factory, thorough=True).findings == ()
