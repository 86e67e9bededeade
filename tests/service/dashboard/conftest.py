"""A dashboard on a real database, with accounts, jobs and a release as the service would have written them."""

import json
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from PIL import Image
from sqlalchemy import text
from sqlalchemy.orm import Session

from obscura.wire.schemas import BalanceFacts
from privacy.accounting.events import GaussianEvent
from service import ledger
from service.api.events import StreamLimits
from service.db.base import new_id
from service.db.job_tables import Job, Release, Sample, Sweep
from service.db.ledger_tables import Hold
from service.db.session import SessionFactory, transaction
from service.settings import Settings
from service.storage.interface import key_of
from tests.browser import chromium, served
from tests.pictures import archive, picture
from tests.service import steps
from tests.service.reading_routes import TestClient, application
from tests.service.steps import REPORT, WithDatabase, charge, hold_amount, make_key

CARD = steps.CARD | {"assumed_public": ["the class names"], "not_covered": ["other publications"]}
CARD |= {"accounting": steps.CARD["accounting"] | {"accountant": "dp-accounting 1"}}


@dataclass
class Site(WithDatabase):
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
        return self.do(make_key, name="test", scopes=scopes, now=self.now)[1]

    def signed_in(self, *scopes: str) -> TestClient:
        client = self.client()
        assert client.post("/login", data={"key": self.key(*scopes)}).status_code == 303
        return client

    def _job(self, **facts) -> Job:
        """A job's row, a training's where nothing else is said."""
        usual = {"id": new_id("job"), "kind": "train", "recipe": "datalens", "options": {}, "plan": {}, "attempt": 1}
        usual |= {"cancel_requested": False, "progress": {}, "progress_version": 0, "secret": secrets.token_hex(32)}
        return Job(**usual | {"created_at": self.now} | facts)

    def add_job(self, account_id: str, dataset_id: str, *, epsilon: float, state: str = "queued", **facts) -> str:
        started, ended = state != "queued", state in ("succeeded", "failed", "cancelled")
        with transaction(self.factory) as session:
            nano = ledger.filter_of(ledger.get_account(session, account_id)).nano_of(epsilon)
            held = {"account_id": account_id, "job_id": new_id("job"), "amount_nano": nano, "now": self.now}
            hold, job_id = hold_amount(session, **held), held["job_id"]
            attempt = {"hold_id": hold.id, "attempt": 1, "now": self.now}
            if started:
                ledger.fence(session, **attempt)
                ledger.arm(session, **attempt)
                charge(session, **attempt, amount_nano=nano if ended else nano // 2, stage="votes")
            if ended:
                ledger.capture(session, **attempt, artifact_sha256=None, reason=state)
            stage = {"name": "votes", "event": GaussianEvent(1.0, 100.0, 1450).to_json(), "cost_nano": nano}
            plan = {"recipe": "datalens", "config": {}, "budget_nano": nano, "cost_nano": nano}
            plan |= {"stages": [stage], "facts": {"teachers": 4000}, "notes": ["a remark"]}
            row = {"id": job_id, "account_id": account_id, "dataset_id": dataset_id, "hold_id": hold.id, "plan": plan}
            row |= {"epsilon": epsilon, "state": state, "attempt": int(started)}
            row["started_at"] = self.now if started else None
            row["finished_at"] = self.now + timedelta(minutes=11) if ended else None
            row["lease_until"] = self.now + timedelta(minutes=1) if state == "running" else None
            session.add(self._job(**row, **facts))
        return job_id

    def add_sweep(self, *job_ids: str, **facts) -> str:
        with transaction(self.factory) as session:
            jobs = [session.get_one(Job, job_id) for job_id in job_ids]
            of = {"account_id": jobs[0].account_id, "dataset_id": jobs[0].dataset_id, "recipe": jobs[0].recipe}
            sweep = Sweep(id=new_id("swp"), cost_nano=1000, created_at=self.now, **{"name": "search"} | of | facts)
            session.add(sweep)
            session.flush()
            for job in jobs:
                job.sweep_id = sweep.id
        return sweep.id

    def add_release(self, job_id: str, *, name: str = "first", stored: int = 3) -> str:
        """Publish a release, with as many stored images; the dataset has three classes."""
        release_id = new_id("rel")
        with transaction(self.factory) as session:
            job = session.get_one(Job, job_id)
            of = {"job_id": job_id, "account_id": job.account_id, "dataset_id": job.dataset_id}
            made = {"artifact_sha256": "ab" * 32, "artifact_dir": f"releases/{release_id}", "card": CARD}
            made |= {"summary": {"accuracy": {"cnn": 0.7641}}, "receipt": {"statement": {"release_id": release_id}}}
            session.add(Release(id=release_id, name=name, created_at=self.now, **of, **made))
            job.release_id = release_id
        folder = self.settings.data_dir / key_of(release_id)
        folder.mkdir(parents=True)
        (folder / "generator.json").write_text("{}")
        Image.new("RGBA", (26, 26), "green").save(folder / "tiles.png")
        names = [f"{number % 3}/{number:07d}.png" for number in range(stored)]
        images = [picture(size=(8, 8), value=number % 256) for number in range(stored)]
        (folder / "images.zip").write_bytes(archive(*zip(names, images, strict=True)))
        (folder / "report.json").write_text(json.dumps(REPORT))
        return release_id

    def add_sample(self, release_id: str) -> str:
        sample_id = new_id("smp")
        drawn = {"count": 1000, "seed": 7, "format": "imagefolder", "sha256": "0" * 64, "bytes": 9}
        with transaction(self.factory) as session:
            release = session.get_one(Release, release_id)
            of = {"account_id": release.account_id, "dataset_id": release.dataset_id, "release_id": release_id}
            job = self._job(kind="sample", state="succeeded", started_at=self.now, finished_at=self.now, **of)
            session.add(job)
            session.flush()
            path = f"samples/{sample_id}/images.zip"
            row = {"id": sample_id, "job_id": job.id, "release_id": release_id, "path": path, "created_at": self.now}
            session.add(Sample(**row, **drawn))
        folder = self.settings.data_dir / key_of(sample_id)
        folder.mkdir(parents=True)
        (folder / "images.zip").write_bytes(b"synthetic")
        return sample_id

    def balance(self, account_id: str) -> BalanceFacts:
        return ledger.balance_of(self.read(ledger.get_account, account_id))

    def hold_of(self, job_id: str) -> Hold:
        return self.row(Hold, self.job(job_id).hold_id)

    def execute(self, statement: str, **values: object) -> None:
        self.do(Session.execute, text(statement), values)


@dataclass
class Stock:
    account: str
    dataset: str
    running: str
    queued: str
    done: str
    release: str
    sample: str

    @property
    def pages(self) -> list[str]:
        jobs = [f"/jobs/{job}" for job in (self.running, self.queued, self.done)]
        parts = ["/parts/budgets", "/parts/jobs", "/parts/releases", f"/jobs/{self.running}/part"]
        account = [f"/accounts/{self.account}{part}" for part in ("", "/data", "/jobs", "/ledger", "/controls")]
        made = [f"/releases/{self.release}{part}" for part in ("", "/usefulness", "/guarantee", "/use", "/share")]
        made += [f"/compare?release={self.release}", f"/datasets/{self.dataset}"]
        new = ["/accounts/new", "/datasets/new", "/train", "/datasets"]
        return ["/", "/jobs", "/releases", *account, *made, *new, *jobs, *parts]


@pytest.fixture
def make_site(sqlite_url: str, tmp_path: Path, now: datetime) -> Iterator[Callable[..., Site]]:
    """Return a function that builds the application with some settings changed; its reconciler does not run."""
    with ExitStack() as opened:

        def build(**changes: Any) -> Site:
            settings = Settings(data_dir=tmp_path / "data", database_url=sqlite_url, mode="celery", **changes)
            settings.data_dir.mkdir(exist_ok=True)
            limits, clock = StreamLimits(poll_seconds=0.05), lambda: now + timedelta(minutes=5)
            app = application(settings, clock=clock, stream_limits=limits)
            opened.callback(app.state.service.engine.dispose)
            site = Site(app, settings, app.state.service.factory, now)
            app.state.service = replace(app.state.service, ring=lambda: site.rung.append(1))
            return site

        yield build


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    return make_site(dashboard_public=True)


@pytest.fixture
def stock(site: Site, open_account: Callable[..., str], declare_dataset: Callable[..., str]) -> Stock:
    """An account with a running, a queued and a finished job, a release and a drawing from it."""
    account = open_account(site.factory)
    dataset = declare_dataset(site.factory, account_id=account)
    done = site.add_job(account, dataset, epsilon=1.0, state="succeeded")
    release = site.add_release(done, stored=140)
    sample = site.add_sample(release)
    progress = {"stage": "teacher_votes", "step": 612, "steps": 1450, "eta_seconds": 214}
    running = site.add_job(account, dataset, epsilon=2.0, state="running", progress=progress)
    queued = site.add_job(account, dataset, epsilon=0.5)
    return Stock(account, dataset, running, queued, done, release, sample)


@pytest.fixture
def trainer(site: Site) -> TestClient:
    return site.signed_in("train", "read")


@pytest.fixture
def uploader(site: Site) -> TestClient:
    return site.signed_in("data", "read")


ORIGIN = {"Origin": "http://127.0.0.1:8420"}


def token_of(client: TestClient, address: str) -> str:
    return token_in(client.get(address).text)


def token_in(html: str) -> str:
    found = re.search(r'<meta name="form-token" content="([0-9a-f]{64})"', html)
    assert found is not None
    return found[1]


def forms_of(html: str) -> dict[str, tuple[dict[str, Any], set[str]]]:
    """Return the forms of a page that call the API, by method and path: fixed fields, and names of the others."""
    found = {}
    for attributes, inside in re.findall(r"<form([^>]*data-call=[^>]*)>(.*?)</form>", html, re.DOTALL):
        call, body = (re.search(rf"data-{name}=([\"'])(.*?)\1", attributes) for name in ("call", "body"))
        names = set(re.findall(r'<(?:input|select|textarea)[^>]* name="(\w+)"', inside))
        found[call[2]] = (json.loads(unescape(body[2])) if body else {}, names)
    return found


def submit(client: TestClient, page: str, call: str, *, once: str = "", **fields: Any) -> Any:
    """Send a form of a page to the API as the page's script does."""
    html = client.get(page).text
    fixed, names = forms_of(html)[call]
    assert fields.keys() <= names, names
    method, path = call.split(" ")
    headers = ORIGIN | {"X-Form-Token": token_in(html), "Idempotency-Key": once or secrets.token_hex(16)}
    return client.request(method, path, json=(fixed | fields) or None, headers=headers)


def assert_shown(shown: str, *words: str) -> None:
    for each in words:
        assert each in shown


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, without pages."""
    with chromium() as running:
        yield running


@pytest.fixture
def live(site: Site) -> Iterator[str]:
    """The address at which a browser reaches the site."""
    with served(site.app) as address:
        yield address
