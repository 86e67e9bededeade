"""The chaos benchmark finds faults, and runs every kind of training; its scenarios of loss refund nothing."""

import random
import shutil
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import chaos_clients, chaos_restores
from benchmarks.chaos import SUMMED, together
from benchmarks.chaos_audit import audit
from privacy.accounting.filter import open_filter
from privacy.plans.plan import PublicFacts
from privacy.plans.registry import build_plan
from service import jobs
from service.db.base import new_id
from service.db.session import transaction
from service.settings import Settings
from service.storage import storage_of
from service.storage.folder import FolderStorage
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


# --- scenarios of loss ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nothing_is_lost_or_refunded_by_an_older_database(tmp_path, warm, monkeypatch):
    monkeypatch.setattr(sys, "executable", warm)  # of services and commands
    template = chaos_restores.World(tmp_path / "prepared")
    busy_seconds = chaos_restores.prepare(template, releases=1)
    place, dice = tmp_path / "scenario", random.Random(1)
    outcome = chaos_restores.run_scenario(
        0, chaos_restores.OLDER_WITH_RECEIPTS, template, template, place, dice, busy_seconds=busy_seconds
    )
    assert outcome.sound, outcome
    assert outcome.locked
    assert outcome.releases_before >= 2

    # The control: missing folders and spending that nothing proves are found.
    world = chaos_restores.World(tmp_path / "control")
    shutil.copytree(template.folder, world.folder)
    assert chaos_restores.refunds(world, chaos_restores.proved_spending(world.data_dir)) == 0
    before = chaos_restores.holdings(world.data_dir)
    shutil.rmtree(next((world.data_dir / "releases").glob("rel_*")))
    assert (before - chaos_restores.holdings(world.data_dir)).total() == 1
    journal = Journal(FolderStorage(world.data_dir), "job_" + "a" * 20, 1, "acc_" + "a" * 20)
    journal.write(stage="votes", count=1, cost_nano=1)
    assert chaos_restores.refunds(world, chaos_restores.proved_spending(world.data_dir) | {"acc_" + "a" * 20: 1}) == 2


def test_a_scenario_is_sound_only_if_nothing_is_lost_and_the_lock_is_explained():
    sound = chaos_restores.Outcome(
        0, chaos_restores.OLDER_WITH_RECEIPTS, 4, 4, True, True, 0, 0, 0, 0, True, ["journal_ahead"], 1.0
    )
    assert sound.sound
    wrong: dict[str, Any] = {"releases_after": 3, "works": False, "locked": False, "codes": [], "images_elsewhere": 1}
    wrong |= {"refunds_unseen": 1, "refunds_accepted": 1, "refunds_raised": 1}
    assert not [name for name, value in wrong.items() if replace(sound, **{name: value}).sound]
