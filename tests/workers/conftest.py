"""A workshop for the tests of the workers: a database, tiny real images on disk, and jobs on them.

Trainings are planned by the real DataLens plan. What runs them is either the real recipe or the small one of
tiny_runner.py, which pays for the same stages but only adds noise to class means.
"""

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from celery.signals import worker_init
from sqlalchemy import select
from sqlalchemy.orm import undefer

from benchmarks import chaos_clients
from obscura.wire.words import EntryKind, HoldState, JobState
from privacy.accounting import certificate
from service import jobs, ledger
from service.audit.signing import make_signing_key
from service.datasets.vault import Vault, key_id_of, write_key
from service.db.job_tables import Evaluation, FailureCode, Job, Release
from service.db.ledger_tables import Hold
from service.db.session import SessionFactory, make_engine, make_session_factory, transaction
from service.identity.access import find
from service.ingest.array_files import IMAGES_NAME, LABELS_NAME, SEALED_SUFFIX, SUBJECTS_NAME, ArrayFile, context_of
from service.sealing import new_key
from service.settings import Settings
from service.storage import storage_of
from service.storage.interface import key_of
from tests.conftest import dataset_row
from tests.service.steps import WithAccount
from tests.workers import tiny_runner
from tests.workers.small_trainings import digits
from workers.recipes import dp_classifier
from workers.recipes.interface import TrainingData
from workers.recipes.registry import TRAINERS
from workers.supervise.app import make_app
from workers.supervise.attempts import Attempt, ExitStatus, claim_job
from workers.supervise.supervisor import Patience, supervise
from workers.train import publishing
from workers.train.orders import Context
from workers.train.runner import run

TINY_RUNNER = (sys.executable, str(Path(__file__).with_name("tiny_runner.py")))
IMPATIENT = Patience(grace_seconds=20, look_seconds=0.05, cancel_look_seconds=0.1)
# 30 images of 8x8 pixels are voted on; the noise follows from the budget.
OPTIONS: dict[str, Any] = {**chaos_clients.OPTIONS, "images": 30, "images_per_iteration": 10}


@dataclass
class Workshop(WithAccount):
    settings: Settings
    factory: SessionFactory
    account_id: str
    dataset_id: str
    public_id: str

    def submit(self, kind: str, **asked: Any) -> str:
        asked = {"principal": "key_test", "idempotency_key": None, "now": datetime.now(UTC)} | asked
        return str(self.do(jobs.submit, jobs.KINDS[kind], **asked).id)

    def train(self, *, recipe: str = "datalens", epsilon: float = 1.0, evaluate: bool = False, **options: Any) -> str:
        if recipe == "select_public":
            options = {"public_dataset_id": self.public_id, **options}
        options = {**OPTIONS, **options} if recipe == "datalens" else options
        asked = {"dataset_id": self.dataset_id, "recipe": recipe, "epsilon": epsilon, "options": options}
        return self.submit("train", evaluation_dataset_id=self.public_id if evaluate else None, **asked)

    def sample(self, release_id: str, *, count: int = 20, seed: int = 7, format: str = "npz", **more: Any) -> str:
        asked = {"release_id": release_id, "count": count, "classes": None, "seed": seed, "format": format}
        return self.submit("sample", **asked, **more)

    def evaluation(self, release_id: str) -> Evaluation:
        newest = select(Evaluation).where(Evaluation.release_id == release_id).options(undefer(Evaluation.confusion))
        with transaction(self.factory, read_only=True) as session:
            return session.scalars(newest.order_by(Evaluation.created_at.desc()).limit(1)).one()

    def cancel(self, job_id: str, *, discard: bool = False) -> None:
        self.do(jobs.request_cancel, job_id=job_id, now=datetime.now(UTC), discard=discard)

    def give_back(self, job_id: str, attempt: int = 1) -> None:
        self.do(jobs.give_back, job_id=job_id, attempt=attempt, now=datetime.now(UTC))

    def end_lease(self, job_id: str) -> None:
        with transaction(self.factory) as session:
            session.get_one(Job, job_id).lease_until = datetime.now(UTC)

    def release_of(self, job_id: str) -> Release:
        return self.do(find, Release, self.job(job_id).release_id)

    def charges(self, job_id: str) -> list[ledger.Entry]:
        return [entry for entry in self.entries() if entry.kind is EntryKind.CHARGE and entry.job_id == job_id]

    def claim(self, job_id: str) -> Attempt:
        attempt = claim_job(self.settings, self.factory, job_id=job_id, worker="test", now=datetime.now(UTC))
        assert attempt is not None
        return attempt

    def context(self, attempt: Attempt, stop: threading.Event | None = None) -> Context:
        return Context(self.settings, self.factory, attempt, stop or threading.Event(), torch.device("cpu"))

    def work(
        self, job: str | Attempt, trainers: Mapping[str, Any] = TRAINERS, stop: threading.Event | None = None
    ) -> ExitStatus:
        """Run an attempt in this process: one that was claimed, or the next one of a job."""
        attempt = self.claim(job) if isinstance(job, str) else job
        return run(self.settings, attempt, stop=stop or threading.Event(), trainers=trainers)

    def begin(self) -> str:
        """Run a training until its process is told to stop, after some charges; return its id once it waits again."""
        job_id = self.train()
        assert self.work(job_id, {"datalens": tiny_runner.interrupted}) is ExitStatus.INTERRUPTED
        self.give_back(job_id)
        return job_id

    def supervise(
        self,
        job: str | Attempt,
        command: Sequence[str],
        patience: Patience = IMPATIENT,
        *,
        draining: Callable[[], bool] = lambda: False,
        **changes: Any,
    ) -> None:
        """Supervise an attempt with changed settings: one that was claimed, or the next one of a job."""
        attempt = self.claim(job) if isinstance(job, str) else job
        settings = self.settings.model_copy(update=changes)
        supervise(settings, self.factory, attempt, draining=draining, command=command, patience=patience)

    def step(self, job_id: str) -> int:
        return int(self.job(job_id).progress.get("step", 0))

    def hold(self, job_id: str) -> Hold:
        with transaction(self.factory, read_only=True) as session:
            hold_id = jobs.get_job(session, job_id).hold_id
            assert hold_id is not None
            return ledger.get_hold(session, hold_id)

    def wait(self, until: Callable[[], bool], *, seconds: float = 300.0) -> None:
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline, f"nothing came of it; logs: {self.logs()[-2000:]}"
            time.sleep(0.05)

    def wait_for_end(self, job_id: str, *, seconds: float = 300.0) -> Job:
        self.wait(lambda: self.job(job_id).finished_at is not None, seconds=seconds)
        return self.job(job_id)

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted((self.settings.data_dir / "logs").glob("*.log")))

    def assert_failed(self, job_id: str, code: FailureCode) -> None:
        job = self.job(job_id)
        assert (job.state, job.failure_code) == (JobState.FAILED, code)

    def assert_settled(self, job_id: str, state: JobState) -> None:
        """The job has ended, and the account shows exactly what was charged and holds nothing."""
        job, hold, balance = self.job(job_id), self.hold(job_id), self.balance()
        assert job.state is state, (job.state, job.failure_code, self.logs()[-2000:])
        assert hold.state is HoldState.CAPTURED
        assert hold.captured_nano == hold.charged_nano <= hold.amount_nano
        assert (balance.spent_nano, balance.reserved_nano) == (hold.captured_nano, 0)


def _store(
    settings: Settings,
    factory: SessionFactory,
    account_id: str | None,
    data: TrainingData,
    declared: int = 1500,
    subjects_declared: int | None = None,
) -> str:
    storage, key = storage_of(settings), new_key()
    shown = {"name": "digits", "classes": list(data.classes), "height": 8, "width": 8, "channels": 1}
    bounds = {"records_declared": declared, "subjects_declared": subjects_declared}
    dataset = dataset_row(account_id, datetime.now(UTC), vault_key_id=key_id_of(key), **shown, **bounds)
    write_key(Vault.of(settings).key_path(dataset.id), key)
    arrays = {IMAGES_NAME: data.private_images, LABELS_NAME: data.private_labels}
    if data.private_subjects is not None:
        arrays[SUBJECTS_NAME] = data.private_subjects
    with storage.stage(key_of(dataset.id)) as staging:
        for name, values in arrays.items():
            path, context = staging / f"{name}{SEALED_SUFFIX}", context_of(dataset.id, name)
            with ArrayFile(path, values.shape, values.dtype, key=key, context=context) as stored:
                stored.append(values)
        storage.publish(staging, key_of(dataset.id))
    with transaction(factory) as session:
        session.add(dataset)
    return dataset.id


def build(data_dir: Path, url: str, *, unit: str = "record", storage: str = "folder", **stored: Any) -> Workshop:
    """A workshop; `stored` is what `_store` takes of the private dataset, where it is not 1,500 digits."""
    # A lease lasts longer than a busy machine keeps its supervisor from renewing it; `end_lease` ends it.
    settings = Settings(data_dir=data_dir, database_url=url, storage=storage, lease_seconds=40, heartbeat_seconds=1)
    factory = make_session_factory(make_engine(url))
    terms: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-5, "unit": unit, "adjacency": "add_remove"}
    with transaction(factory) as session:
        account_id = ledger.open_account(session, name="writers", owner="office", now=datetime.now(UTC), **terms).id
    make_signing_key(settings.ledger_key_path)  # as the start of a service does
    private_id = _store(settings, factory, account_id, **{"data": digits(), **stored})
    public_id = _store(settings, factory, None, digits(None, first=1500))
    return Workshop(settings, factory, account_id, private_id, public_id)


@contextmanager
def opened(data_dir: Path, url: str) -> Iterator[Workshop]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OMP_NUM_THREADS", "1")
        patched.setattr(publishing, "_REPORT_PER_CLASS", 10)  # of 200: drawing and comparing them takes seconds
        patched.setattr(dp_classifier, "FEATURES_BLOCK", 32)  # of 512, three of which are tried
        shop = build(data_dir, url)
        yield shop
        shop.factory.kw["bind"].dispose()


@pytest.fixture(autouse=True, scope="session")
def cross_checks_once() -> Iterator[None]:
    """The cross-check of a certificate is a second of work on public numbers: made once for each list of events."""
    checked = functools.cache(certificate.pld_epsilon)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(certificate, "pld_epsilon", lambda events, delta: checked(tuple(events), delta))
        yield


# For tests that want their workshop on each kind of database.
on_either_database = pytest.mark.parametrize(
    "workshop", ["sqlite_url", pytest.param("postgres_url", marks=pytest.mark.services)], indirect=True
)


@pytest.fixture
def workshop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Workshop]:
    with opened(tmp_path / "var", request.getfixturevalue(getattr(request, "param", "sqlite_url"))) as shop:
        yield shop


@pytest.fixture(name="tiny_runner")
def warm_tiny_runner(warm: str) -> tuple[str, ...]:
    return (warm, "-m", "tests.workers.tiny_runner")


@contextmanager
def worker_start(settings: Settings) -> Iterator[Callable[[], None]]:
    """Yield the function that Celery calls when a worker starts."""
    before = list(worker_init.receivers)
    make_app(settings)
    (connected,) = (receiver for receiver in worker_init.receivers if receiver not in before)
    try:
        yield connected[1]
    finally:
        worker_init.receivers.remove(connected)


def state_of(pid: int) -> str:
    """The letter by which Linux tells what a process does, such as "T" for one that is stopped; "" for none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def alive(pid: int) -> bool:
    return state_of(pid) not in ("", "Z")
