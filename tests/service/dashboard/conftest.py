"""A dashboard on a real database, with accounts, jobs and a release as the service would have written them."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from fastapi import FastAPI
from PIL import Image

from privacy.accounting.events import GaussianEvent
from service import dashboard, ledger
from service.artifacts import directory_of
from service.db.base import new_id
from service.db.job_tables import Job, Release, Sample
from service.db.ledger_tables import AccountRow, HoldRow
from service.db.session import SessionFactory, make_engine, make_session_factory, transaction
from service.settings import Settings
from tests.service.people import make_key

with warnings.catch_warnings():
    # Starlette prefers a successor of httpx that is not among our dependencies; its client works with httpx.
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.filterwarnings("ignore", message="Using `httpx`")
    from fastapi.testclient import TestClient

CARD = {
    "epsilon": 1.0,
    "delta": 1e-5,
    "unit": "record",
    "adjacency": "add_remove",
    "accountant": "dp-accounting 1",
    "assumed_public": ["the class names"],
    "not_covered": ["other publications"],
}


@dataclass
class Site:
    """The running dashboard of one test."""

    app: FastAPI
    settings: Settings
    factory: SessionFactory
    now: datetime
    rung: list[int] = field(default_factory=list)

    def client(
        self, *, scheme: str = "http", host: str = "127.0.0.1:8420", peer: str = "127.0.0.1", **headers: str
    ) -> TestClient:
        """A browser that follows no redirects by itself, on a machine of this address."""
        return TestClient(
            self.app,
            base_url=f"{scheme}://{host}",
            follow_redirects=False,
            client=(peer, 50_000),
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        )

    def key(self, *scopes: str) -> str:
        """Create a key and return its token."""
        with transaction(self.factory) as session:
            return make_key(session, name="test", scopes=scopes, now=self.now)[1]

    def signed_in(self, *scopes: str) -> TestClient:
        """A browser with a session."""
        client = self.client()
        assert client.post("/login", data={"key": self.key(*scopes)}).status_code == 303
        return client

    def _job(self, **facts) -> Job:
        """A job's row, a training's where nothing else is said."""
        usual = {
            "id": new_id("job"),
            "kind": "train",
            "recipe": "datalens",
            "options": {},
            "plan": {},
            "attempt": 1,
            "cancel_requested": False,
            "progress": {},
            "progress_version": 0,
            "secret": secrets.token_hex(32),
            "created_at": self.now,
        }
        return Job(**usual | facts)

    def add_job(self, account_id: str, dataset_id: str, *, epsilon: float, state: str = "queued", **facts) -> str:
        """Write a training job with its hold, as far as its state says."""
        with transaction(self.factory) as session:
            account = session.get_one(AccountRow, account_id)
            nano = ledger.filter_of(account).nano_of(epsilon)
            job_id = new_id("job")
            hold = ledger.hold(session, account_id=account_id, job_id=job_id, amount_nano=nano, now=self.now)
            started = state != "queued"
            ended = state in ("succeeded", "failed", "cancelled")
            if started:
                ledger.fence(session, hold_id=hold.id, attempt=1, now=self.now)
                ledger.arm(session, hold_id=hold.id, attempt=1, now=self.now)
                ledger.charge(
                    session,
                    hold_id=hold.id,
                    attempt=1,
                    amount_nano=nano if ended else nano // 2,
                    stage="votes",
                    now=self.now,
                )
            if ended:
                ledger.capture(session, hold_id=hold.id, attempt=1, artifact_sha256=None, reason=state, now=self.now)
            plan = {
                "recipe": "datalens",
                "config": {"warm_start": False},
                "budget_nano": nano,
                "price_nano": nano,
                "stages": [{"name": "votes", "event": GaussianEvent(1.0, 100.0, 1450).to_json(), "price_nano": nano}],
                "facts": {"teachers": 4000},
                "notes": ["a remark"],
            }
            job = self._job(
                id=job_id,
                account_id=account_id,
                dataset_id=dataset_id,
                epsilon=epsilon,
                plan=plan,
                state=state,
                attempt=int(started),
                hold_id=hold.id,
                started_at=self.now if started else None,
                finished_at=self.now + timedelta(minutes=11) if ended else None,
                lease_until=self.now + timedelta(minutes=1) if state == "running" else None,
                **facts,
            )
            session.add(job)
        return job_id

    def add_release(self, job_id: str, *, name: str = "first") -> str:
        """Write the release of a succeeded job, with its files."""
        release_id = new_id("rel")
        with transaction(self.factory) as session:
            job = session.get_one(Job, job_id)
            session.add(
                Release(
                    id=release_id,
                    job_id=job_id,
                    account_id=job.account_id,
                    dataset_id=job.dataset_id,
                    name=name,
                    artifact_sha256="ab" * 32,
                    artifact_dir=f"releases/{release_id}",
                    card=CARD,
                    summary={"accuracy": {"cnn": 0.7641}},
                    receipt={"statement": {"release_id": release_id}},
                    created_at=self.now,
                )
            )
            job.release_id = release_id
        folder = directory_of(self.settings.data_dir, release_id)
        folder.mkdir(parents=True)
        Image.new("L", (40, 30), 90).save(folder / "grid.png")
        (folder / "generator.json").write_text("{}")
        (folder / "report.html").write_text("<!doctype html><title>Report</title><style>p{color:red}</style>")
        return release_id

    def add_sample(self, release_id: str) -> str:
        """Write a finished drawing with its file."""
        sample_id = new_id("smp")
        with transaction(self.factory) as session:
            release = session.get_one(Release, release_id)
            job = self._job(
                kind="sample",
                account_id=release.account_id,
                dataset_id=release.dataset_id,
                release_id=release_id,
                state="succeeded",
                started_at=self.now,
                finished_at=self.now,
            )
            session.add(job)
            session.flush()
            session.add(
                Sample(
                    id=sample_id,
                    job_id=job.id,
                    release_id=release_id,
                    count=1000,
                    seed=7,
                    format="imagefolder",
                    path=f"samples/{sample_id}/images.zip",
                    sha256="0" * 64,
                    bytes=9,
                    created_at=self.now,
                )
            )
        folder = directory_of(self.settings.data_dir, sample_id)
        folder.mkdir(parents=True)
        (folder / "images.zip").write_bytes(b"synthetic")
        return sample_id

    def hold_of(self, job_id: str) -> HoldRow:
        """Return the hold of a job."""
        with transaction(self.factory, read_only=True) as session:
            job = session.get_one(Job, job_id)
            assert job.hold_id is not None
            return session.get_one(HoldRow, job.hold_id)


@dataclass
class Stock:
    """What the usual site holds."""

    account: str
    dataset: str
    running: str
    queued: str
    done: str
    release: str
    sample: str

    @property
    def pages(self) -> list[str]:
        """Every page that a reader may open."""
        return [
            "/",
            f"/accounts/{self.account}",
            "/jobs",
            f"/jobs/{self.running}",
            f"/jobs/{self.queued}",
            f"/jobs/{self.done}",
            "/releases",
            f"/releases/{self.release}",
            "/parts/budgets",
            "/parts/jobs",
            "/parts/releases",
            f"/jobs/{self.running}/part",
        ]


@pytest.fixture
def make_site(sqlite_url: str, tmp_path: Path, now: datetime) -> Iterator[Callable[..., Site]]:
    """Return a function that builds the dashboard with some settings changed."""
    engine = make_engine(sqlite_url)

    def build(**changes: object) -> Site:
        settings = Settings(data_dir=tmp_path / "data", database_url=sqlite_url, **changes)  # type: ignore[arg-type]
        settings.data_dir.mkdir(exist_ok=True)
        app = FastAPI()
        app.state.settings, app.state.factory = settings, make_session_factory(engine)
        site = Site(app, settings, app.state.factory, now)

        class Running:
            clock = staticmethod(lambda: now + timedelta(minutes=5))
            ring = staticmethod(lambda: site.rung.append(1))

        app.state.service = Running()
        dashboard.mount(app)
        return site

    yield build
    engine.dispose()


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    """The dashboard as it is on loopback: everybody on this machine may read."""
    return make_site()


@pytest.fixture
def stock(site: Site, open_account: Callable[..., str], declare_dataset: Callable[..., str]) -> Stock:
    """An account with a running, a queued and a finished job, a release and a drawing from it."""
    account = open_account(site.factory)
    dataset = declare_dataset(site.factory, account_id=account)
    done = site.add_job(account, dataset, epsilon=1.0, state="succeeded")
    release = site.add_release(done)
    sample = site.add_sample(release)
    progress = {"stage": "teacher_votes", "step": 612, "steps": 1450, "eta_seconds": 214}
    running = site.add_job(account, dataset, epsilon=2.0, state="running", progress=progress)
    queued = site.add_job(account, dataset, epsilon=0.5)
    return Stock(account, dataset, running, queued, done, release, sample)
