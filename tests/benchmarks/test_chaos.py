"""The chaos benchmark finds faults, and chooses the processes to kill."""

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import chaos_clients
from benchmarks.chaos import EVERYTHING, SUMMED, choose, together
from benchmarks.chaos_audit import audit
from privacy.accounting.filter import open_filter
from privacy.plans.plan import PublicFacts
from privacy.plans.registry import build_plan
from service import jobs
from service.db.base import new_id
from service.db.session import transaction
from service.settings import Settings
from service.storage import storage_of
from service.storage.interface import key_of, work_key
from service.storage.journals import Journal
from tests.service.orders import submit_training


def test_an_audit_finds_what_is_wrong(tmp_path, sqlite_url, sqlite_factory, now, open_account, declare_dataset):
    settings = Settings(data_dir=tmp_path / "data", database_url=sqlite_url)
    dataset_id = declare_dataset(sqlite_factory, account_id=open_account(sqlite_factory))
    assert audit(settings, set(), {}).sound

    with transaction(sqlite_factory) as session:
        job_id = submit_training(session, dataset_id, now)
    found = audit(settings, {job_id, "job_that_was_lost"}, {dataset_id: b"what was sent"})
    assert (found.jobs_unfinished, found.jobs_unknown, found.holds_open, found.uploads_lost) == (2, 1, 1, 1)
    assert found.reserved_nano > 0
    assert found.ledger_verified  # nothing is wrong with the ledger
    assert not found.sound

    with transaction(sqlite_factory) as session:
        jobs.request_cancel(session, job_id=job_id, now=now)
    assert audit(settings, {job_id}, {}).sound
    journal = Journal(storage_of(settings), job_id, 1, "acc_a")
    journal.write(stage="votes", count=1, cost_nano=1)
    (settings.data_dir / key_of(new_id("rel"))).mkdir(parents=True)
    (settings.data_dir / work_key(job_id)).mkdir(parents=True)
    found = audit(settings, {job_id}, {})
    assert (found.undercharged, found.artifacts_without_capture, found.work_left) == (1, 1, 1)
    assert not found.sound


def test_a_kind_of_training_is_among_the_jobs_whose_stage_is_paid_as_a_whole():
    account = open_filter(chaos_clients.ACCOUNT_EPSILON, 1e-5)
    side, records = chaos_clients.SIDE_PIXELS, chaos_clients.RECORDS
    facts = PublicFacts(tuple(chaos_clients.CLASSES), side, side, 1, records, "record")
    asked = chaos_clients.trainings("ds_private", "ds_public")
    plans = [
        build_plan(body["recipe"], body["options"], account, account.nano_of(body["epsilon"]), facts)
        for body, _ in asked
    ]
    whole = [plan.recipe for plan in plans if any(stage.paid_as_whole is not None for stage in plan.stages)]
    assert whole == ["dpgan"]
    others = ("select_public", "dpgan")
    assert Counter(plan.recipe for plan in plans) == {"datalens": 2, "moments": 2, **dict.fromkeys(others, 1)}
    assert sum(share for _, share in asked) == pytest.approx(1.0)


def test_totals_are_as_bad_as_the_worst_mode():
    verdicts = {"ledger_verified": False, "violated": True}
    good: dict[str, Any] = dict.fromkeys(SUMMED, 1) | {"ledger_verified": True, "violated": False}
    assert together({"embedded": good, "celery": good | verdicts}) == dict.fromkeys(SUMMED, 2) | verdicts


def test_an_api_that_is_starting_is_mostly_spared_and_everybody_else_is_not():
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
