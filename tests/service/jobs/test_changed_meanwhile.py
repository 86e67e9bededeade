"""What changes while a training is being priced: a limit is raised, or the images turn out to be another account's.

PostgreSQL alone lets writers overlap. Each test holds the row that the request will wait for, and lets go of it only
once the database says that the request waits.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import text, update
from sqlalchemy.orm import Session

from obscura.wire.words import DatasetState, EntryKind
from service import jobs, ledger
from service.db.dataset_tables import Dataset
from service.db.session import SessionFactory, transaction
from service.errors import AccountFrozen, InsufficientBudget
from tests.service.jobs.shop import UNREADY, Shop
from tests.service.steps import raise_limit
from tests.together import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.services
STEPS: dict[str, Any] = {"recipe": "dp_classifier", "epsilon": 1.0, "options": {"epochs": 1.0}}


@pytest.fixture
def shop(
    postgres_factory: SessionFactory,
    now: datetime,
    open_account: Callable[..., str],
    declare_dataset: Callable[..., str],
) -> Shop:
    """An account opened for so small an epsilon that its rate is large, and falls much by a raise."""

    def small(*given: Any, **changes: Any) -> str:
        return open_account(*given, **{"epsilon": 2.0, **changes})

    return Shop(postgres_factory, now, small, declare_dataset)


def waiting(shop: Shop) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return shop.read(lambda session: session.scalar(text(query)))


@contextmanager
def asked_in_between(shop: Shop, act: Callable[[], Any]) -> Iterator[tuple[Session, list[Any]]]:
    """Yield a transaction, and ask while it is open; it is committed once what was asked waits for it."""
    answers: list[Any] = []
    with ThreadPoolExecutor(1) as pool:
        with transaction(shop.factory) as session:
            yield session, answers
            request = pool.submit(act)
            wait_until(lambda: waiting(shop), "the request never came to the lock")
        answers.append(request.exception(PATIENCE_SECONDS) or request.result())


def test_a_training_is_never_held_at_a_rate_from_before_a_raise(shop):
    before_nano = shop.plan(**STEPS).cost_nano
    with asked_in_between(shop, lambda: shop.train(key="k", **STEPS)) as (session, answers):
        raise_limit(session, shop.account_id, 12.0, shop.now)
    held = shop.entries()[-1]
    assert (held.kind, held.job_id) == (EntryKind.HOLD, answers[0])
    assert shop.findings() == ()
    assert held.amount_nano == shop.job(answers[0]).plan["cost_nano"] == shop.plan(**STEPS).cost_nano != before_nano
    assert shop.train(key="k", **STEPS) == answers[0]
    assert {name: shop.counts()[name] for name in ("jobs", "holds", "outbox")} == {"jobs": 1, "holds": 1, "outbox": 1}


def test_no_trial_of_a_sweep_is_held_at_a_rate_from_before_a_raise(shop):
    trials = [jobs.Trial(epsilon, STEPS["options"]) for epsilon in (0.5, 0.7)]
    with asked_in_between(shop, lambda: shop.sweep(key="k", trials=trials, recipe=STEPS["recipe"])) as (
        session,
        answers,
    ):
        raise_limit(session, shop.account_id, 12.0, shop.now)
    assert shop.findings() == ()
    costs_nano = [trial.plan["cost_nano"] for trial in shop.trials(answers[0])]
    assert len(costs_nano) == 2 == shop.counts()["jobs"]
    assert [entry.amount_nano for entry in shop.entries()[-2:]] == costs_nano


def test_a_limit_that_is_lowered_meanwhile_is_kept(shop):
    with asked_in_between(shop, lambda: shop.train(epsilon=1.5)) as (session, answers):
        ledger.limits.lower_limit(session, account_id=shop.account_id, epsilon=1.0, reason="less", now=shop.now)
    assert isinstance(answers[0], InsufficientBudget)
    assert shop.kinds() == [EntryKind.OPEN, EntryKind.LIMIT]


def test_an_account_that_is_frozen_meanwhile_takes_no_training(shop):
    with asked_in_between(shop, shop.train) as (session, answers):
        ledger.limits.set_frozen(session, account_id=shop.account_id, frozen=True, reason="audit", now=shop.now)
    assert isinstance(answers[0], AccountFrozen)


def test_images_that_joined_another_account_meanwhile_are_paid_by_that_one(shop):
    """An upload ends while a training on its dataset is asked for: its images are those of another population."""
    other_id = shop.open_account("others")
    arriving_id = shop.declare(account_id=shop.account_id, records_declared=1000, **UNREADY)
    arrived = {"state": DatasetState.READY, "account_id": other_id, "joined": True, "ready_at": shop.now}
    with asked_in_between(shop, lambda: shop.train(dataset_id=arriving_id)) as (session, answers):
        session.execute(update(Dataset).where(Dataset.id == arriving_id).values(content_sha256="0" * 64, **arrived))
    assert shop.job(answers[0]).account_id == other_id == shop.hold_of(answers[0]).account_id
    assert shop.kinds() == [EntryKind.OPEN], "images of the others were paid for by this account"
