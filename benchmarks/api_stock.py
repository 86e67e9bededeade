"""A database with as much in it as a large installation gathers: written in bulk, and read by the service as its own.

Accounts are opened by the ledger, and their logs are valid chains (`benchmarks.ledger_log`). The rows of datasets,
jobs, releases and samples fit the logs' holds.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import insert, select, text

from benchmarks.ledger_log import fill, leave_armed, open_accounts
from obscura.wire.formats import IMAGES_FILE
from privacy.accounting.events import GaussianEvent
from service.db.access_tables import DEFAULT_PROJECT, ApiKey, Decision
from service.db.base import new_id
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Preview, Release, Sample, Sweep
from service.db.ledger_tables import Hold
from service.db.session import SessionFactory, transaction
from service.identity import admins
from service.storage.folder import FolderStorage
from service.storage.interface import key_of

SMALL = {"accounts": 6, "jobs": 100, "entries": 1000}  # for tests
CLASSES = [f"class {number}" for number in range(10)]
TRIALS = 8
RUNNING = 10
ROWS_AT_ONCE = 2000
CARD = {
    "epsilon": 1.0,
    "delta": 1e-5,
    "unit": "record",
    "adjacency": "add_remove",
    "recipe": "datalens",
    "accounting": {"accountant": "dp-accounting", "method": "approximate_gdp", "cost_nano": 1},
    "assumed_public": ["the class names"],
    "not_covered": ["other publications"],
}
PLAN = {
    "recipe": "datalens",
    "cost_nano": 1000,
    "budget_nano": 1000,
    "stages": [{"name": "votes", "event": GaussianEvent(1.0, 100.0, 1450).to_json(), "cost_nano": 1000}],
    "facts": {"teachers": 4000},
    "notes": ["a remark"],
    "config": {},
}
_SYNTHETIC = {"images": 0, "classes": [], "collapsed": [], "exact_duplicates": 0, "between_class_distance": 0}
REPORT = {
    "release": {"name": "stock", "recipe": "datalens", "facts": {}, "incomplete": None, "created_at": None},
    "synthetic": _SYNTHETIC | {"mode_collapse_rule": ""},
    "technical": {},
}
FILES = {"report.json": json.dumps(REPORT), "generator.json": "{}"}
PICTURE_BYTES = 100_000


@dataclass(frozen=True)
class Stock:
    """One id of each kind that the routes can be asked for."""

    account_id: str
    dataset_id: str
    job_id: str
    sweep_id: str
    release_id: str
    sample_id: str
    request_id: str
    preview_id: str
    token: str


def lay_in(factory: SessionFactory, data_dir: Path, *, accounts: int, jobs: int, entries: int) -> Stock:
    """Fill an empty database.

    Returns:
        Ids of rows that have something in them, and an admin's token.
    """
    now = datetime.now(UTC)
    ids = open_accounts(factory, accounts)
    for account_id in ids:
        fill(factory, account_id, entries // 10 if account_id == ids[0] else entries * 9 // 10 // (accounts - 1))
    running = {hold_id for account_id in ids[:2] for hold_id in leave_armed(factory, account_id, RUNNING // 2)}
    datasets = {account_id: _dataset(account_id, now) for account_id in ids}
    trainings, releases = [], []
    for number, hold in enumerate(_holds(factory, ids, running, jobs * 9 // 10)):
        state = "running" if hold.id in running else ("failed" if number % 10 == 9 else "succeeded")
        job = _job(hold.job_id, state, now - timedelta(seconds=number), hold, datasets[hold.account_id]["id"])
        trainings.append(job)
        if state == "succeeded":
            releases.append(_release(job))
    first = [job for job in trainings if job["account_id"] == ids[0] and job["state"] == "succeeded"]
    sweeps = [_sweep(ids[0], datasets[ids[0]]["id"], now) for _ in range(max(min(len(first) // TRIALS, 50), 1))]
    for number, job in enumerate(first[: TRIALS * len(sweeps)]):
        job["sweep_id"] = sweeps[number // TRIALS]["id"]
    drawings = [
        _drawing(releases[0 if number < 100 else number % len(releases)], now - timedelta(seconds=10 * number))
        for number in range(jobs // 10 - 1)
    ]
    preview_job, preview = _preview(ids[0], datasets[ids[0]]["id"], now)
    with transaction(factory) as session:
        asking, token = admins.admit_on_machine(session, name=f"benchmark {new_id('x')}", now=now)
        key_id = f"key_{token.split('_')[1]}"
        requests = [_request(account_id, key_id, asking.id, now) for account_id in [*ids[:200], *ids[:1] * 50]]
        for table, rows in (
            (ApiKey, [_key(number, now) for number in range(200)]),
            (Dataset, [*datasets.values(), _dataset(None, now)]),
            (Decision, requests),
            (Sweep, sweeps),
            (Job, trainings),
            (Job, [*(job for job, _ in drawings), preview_job]),
            (Preview, [preview]),
            (Release, releases),
            (Sample, [sample for _, sample in drawings]),
        ):
            for start in range(0, len(rows), ROWS_AT_ONCE):
                session.execute(insert(table), rows[start : start + ROWS_AT_ONCE])
        if session.get_bind().dialect.name == "postgresql":
            session.execute(text("ANALYZE"))  # as its own housekeeping does after a while
    release, sample = releases[0], drawings[0][1]
    _files(data_dir, release["id"], sample)
    return Stock(
        account_id=ids[0],
        dataset_id=datasets[ids[0]]["id"],
        job_id=first[0]["id"],
        sweep_id=sweeps[0]["id"],
        release_id=release["id"],
        sample_id=sample["id"],
        request_id=requests[0]["id"],
        preview_id=preview["id"],
        token=token,
    )


def _holds(factory: SessionFactory, ids: list[str], running: set[str], count: int) -> Sequence[Any]:
    columns = (Hold.id, Hold.job_id, Hold.account_id, Hold.amount_nano)
    with transaction(factory, read_only=True) as session:
        armed = session.execute(select(*columns).where(Hold.id.in_(running))).all()
        # Ids are random, so this takes from all accounts; some of the first, whose jobs the routes are asked for.
        ended = select(*columns).where(Hold.account_id.in_(ids), Hold.id.not_in(running)).order_by(Hold.id)
        first = session.execute(ended.where(Hold.account_id == ids[0]).limit(TRIALS)).all()
        others = ended.where(Hold.id.not_in([hold.id for hold in first]))
        return [*armed, *first, *session.execute(others.limit(count - len(armed) - len(first))).all()]


def _key(number: int, now: datetime) -> dict[str, Any]:
    facts = {"id": new_id("key"), "name": f"key {number}", "hash": "0" * 64, "scopes": ["read"], "created_at": now}
    return facts | {"project_id": DEFAULT_PROJECT}


def _dataset(account_id: str | None, now: datetime) -> dict[str, Any]:
    return {
        "id": new_id("ds"),
        "account_id": account_id,
        "name": "pictures",
        "visibility": "public" if account_id is None else "private",
        "classes": CLASSES,
        "height": 28,
        "width": 28,
        "channels": 1,
        "records_declared": 60_000,
        "state": "ready",
        "content_sha256": "0" * 64,
        "content_bytes": 1,
        "created_at": now,
        "ready_at": now,
    }


def _request(account_id: str, key_id: str, admin_id: str, now: datetime) -> dict[str, Any]:
    facts = {"id": new_id("dec"), "account_id": account_id, "epsilon_before": 8.0, "epsilon": 9.0, "reason": "more"}
    facts |= {"action": "raise", "project_id": DEFAULT_PROJECT, "requested_by": admin_id, "requested_with": key_id}
    return facts | {"state": "pending", "requested_at": now}


def _sweep(account_id: str, dataset_id: str, now: datetime) -> dict[str, Any]:
    facts = {"id": new_id("swp"), "account_id": account_id, "dataset_id": dataset_id, "name": "search"}
    return facts | {"recipe": "datalens", "cost_nano": 1000, "created_at": now}


def _job(job_id: str, state: str, moment: datetime, hold: Any = None, dataset_id: str | None = None) -> dict[str, Any]:
    ended = state in ("succeeded", "failed")
    return {
        "id": job_id,
        "kind": "sample" if hold is None else "train",
        "account_id": None if hold is None else hold.account_id,
        "dataset_id": dataset_id,
        "release_id": None,
        "recipe": "datalens",
        "epsilon": None if hold is None else 1.0,
        "options": {} if hold is None else {"teachers": 4000, "images": 1000},
        "plan": {} if hold is None else PLAN,
        "state": state,
        "attempt": 1,
        "lease_until": None if ended else moment + timedelta(days=365),
        "lease_owner": None if ended else "nobody",
        "cancel_requested": False,
        "progress": {} if ended else {"stage": "votes", "step": 5, "steps": 50, "eta_seconds": 60.0},
        "progress_version": 3,
        "failure_code": "training_failed" if state == "failed" else None,
        "hold_id": None if hold is None else hold.id,
        "sweep_id": None,
        "secret": "ab" * 32,
        "created_at": moment,
        "started_at": moment,
        "finished_at": moment + timedelta(minutes=5) if ended else None,
    }


def _release(job: dict[str, Any]) -> dict[str, Any]:
    job["release_id"] = new_id("rel")
    return {
        "id": job["release_id"],
        "job_id": job["id"],
        "account_id": job["account_id"],
        "dataset_id": job["dataset_id"],
        "name": "pictures",
        "kind": "generator",
        "artifact_sha256": "ab" * 32,
        "artifact_dir": f"releases/{job['release_id']}",
        "card": CARD,
        "summary": {"accuracy": {"cnn": 0.7, "mlp": 0.6}},
        "receipt": {"receipt": "of the benchmark"},
        "created_at": job["finished_at"],
    }


def _drawing(release: dict[str, Any], moment: datetime) -> tuple[dict[str, Any], dict[str, Any]]:
    job, sample_id = _job(new_id("job"), "succeeded", moment), new_id("smp")
    job |= {"release_id": release["id"], "account_id": release["account_id"]}
    return job, {
        "id": sample_id,
        "job_id": job["id"],
        "release_id": release["id"],
        "count": 100,
        "seed": 1,
        "format": "npz",
        "path": f"samples/{sample_id}/images.npz",
        "sha256": "cd" * 32,
        "bytes": PICTURE_BYTES,
        "created_at": moment,
    }


def _preview(account_id: str, dataset_id: str, moment: datetime) -> tuple[dict[str, Any], dict[str, Any]]:
    job = _job(new_id("job"), "succeeded", moment) | {"kind": "preview", "epsilon": 1.0, "plan": PLAN}
    job |= {"account_id": account_id, "dataset_id": dataset_id}
    found = {"stand_in": "patterns", "accuracy": 0.7, "real": 0.9, "chance": 0.1}
    row = {"id": new_id("prv"), "job_id": job["id"], "results": found, "grid": bytes(PICTURE_BYTES)}
    return job, row | {"created_at": moment, "finished_at": moment}


def _files(data_dir: Path, release_id: str, sample: dict[str, Any]) -> None:
    drawn = {Path(sample["path"]).name: bytes(PICTURE_BYTES)}
    released = {name: content.encode() for name, content in FILES.items()}
    released |= dict.fromkeys(("grid.png", "tiles.png"), bytes(PICTURE_BYTES))
    with zipfile.ZipFile(stored := io.BytesIO(), "w") as archive:
        archive.writestr("a/0000000.png", bytes(PICTURE_BYTES))
    released[IMAGES_FILE] = stored.getvalue()
    for identifier, files in ((release_id, released), (sample["id"], drawn)):
        storage = FolderStorage(data_dir)
        with storage.stage(key_of(identifier)) as staging:
            for name, content in files.items():
                (staging / name).write_bytes(content)
            storage.publish(staging, key_of(identifier))
