"""The chaos benchmark's judgement: what it counts as wrong, and whom it kills."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.chaos import EVERYTHING, choose, together
from benchmarks.chaos_audit import audit
from service import jobs
from service.artifacts import directory_of
from service.db.base import new_id
from service.db.session import SessionFactory, make_engine, make_session_factory, transaction
from service.settings import Settings
from workers.supervise.attempts import work_directory
from workers.train.spending import Journal


@pytest.fixture
def settings(tmp_path: Path, sqlite_url: str) -> Settings:
    return Settings(data_dir=tmp_path / "data", database_url=sqlite_url)


@pytest.fixture
def own_factory(sqlite_url: str) -> Iterator[SessionFactory]:
    engine = make_engine(sqlite_url)
    yield make_session_factory(engine)
    engine.dispose()


def test_an_audit_finds_what_is_wrong(
    settings: Settings,
    own_factory: SessionFactory,
    now: datetime,
    open_account: Callable[..., str],
    declare_dataset: Callable[..., str],
) -> None:
    dataset_id = declare_dataset(own_factory, account_id=open_account(own_factory))
    assert audit(settings, set(), {}).sound

    with transaction(own_factory) as session:
        job_id = jobs.submit_training(
            session,
            principal="key_test",
            idempotency_key=None,
            dataset_id=dataset_id,
            recipe="datalens",
            epsilon=1.0,
            options={},
            evaluation_dataset_id=None,
            now=now,
        ).id
    found = audit(settings, {job_id, "job_that_was_lost"}, {dataset_id: b"what was sent"})
    assert (found.jobs_unfinished, found.jobs_unknown, found.holds_open, found.uploads_lost) == (2, 1, 1, 1)
    assert found.held_nano > 0
    assert found.ledger_verified  # nothing is wrong with the ledger
    assert not found.sound

    with transaction(own_factory) as session:
        jobs.request_cancel(session, job_id=job_id, now=now)
    assert audit(settings, {job_id}, {}).sound
    journal = Journal(settings.data_dir, job_id, 1)
    journal.write(stage="votes", count=1, price_nano=1)
    journal.close()
    directory_of(settings.data_dir, new_id("rel")).mkdir(parents=True)
    work_directory(settings.data_dir, job_id)
    found = audit(settings, {job_id}, {})
    assert (found.undercharged, found.artifacts_without_capture, found.work_left) == (1, 1, 1)
    assert not found.sound


def test_totals_are_as_bad_as_the_worst_mode() -> None:
    names = ("kills", "jobs_accepted", "jobs_unfinished", "undercharged", "artifacts_without_capture", "uploads_lost")
    good: dict[str, Any] = dict.fromkeys(names, 1) | {"ledger_verified": True, "violated": False}
    bad = good | {"ledger_verified": False, "violated": True}
    assert together({"embedded": good, "celery": bad}) == dict.fromkeys(names, 2) | {
        "ledger_verified": False,
        "violated": True,
    }


def test_an_api_that_is_starting_is_mostly_spared_and_everybody_else_is_not() -> None:
    alive = {"api": [1], "runner": [2, 3]}
    dice = random.Random(1)

    def often(role: str, *, ready: bool) -> int:
        services: Any = SimpleNamespace(ready=ready, victims=lambda: alive)
        return sum(choose(services, dice)[0] == role for _ in range(1000))

    assert often("api", ready=True) > 200 > often("api", ready=False) > 10
    assert often(EVERYTHING, ready=True) > 50
    services: Any = SimpleNamespace(ready=True, victims=lambda: alive)
    chosen = {(role, tuple(pids)) for role, pids in (choose(services, dice) for _ in range(200))}
    assert chosen == {("api", (1,)), ("runner", (2,)), ("runner", (3,)), (EVERYTHING, (1, 2, 3))}
