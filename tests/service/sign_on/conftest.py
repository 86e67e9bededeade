"""A service whose people sign in with a real provider: npm's certified oidc-provider, which node runs.

The package is installed once, into a folder that git ignores. Where node, npm or the package cannot be had, the tests
are skipped.
"""

import fcntl
import json
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from urllib.parse import urljoin

import httpx
import pytest
from fastapi import FastAPI

from scripts.with_services import free_port
from service.api.events import StreamLimits
from service.db.access_tables import DEFAULT_PROJECT
from service.db.session import SessionFactory, make_engine, make_session_factory, transaction
from service.identity.people import Confirming
from service.identity.projects import create
from service.settings import Settings
from tests.service.reading_routes import TestClient, application
from tests.service.steps import WithDatabase

HERE = Path(__file__).parent / "provider"
ROOT = Path(__file__).resolve().parents[3]
INSTALLED = ROOT / "scratch" / "sign-in-provider"
INSTALL_SECONDS = 120
SITE = "http://127.0.0.1:8420"
CLIENT = {"client_id": "obscura", "client_secret": "a secret of the test, and no other", "redirect_uris": []}
ANA = {"name": "Ana Silva", "email": "ana@example.org", "groups": ["heart-owners"]}
BEN = {"name": "Ben Okafor", "email": "ben@example.org", "groups": ["heart-owners"]}
EVE = {"name": "Eve Lang", "groups": ["heart-lab"]}


def install() -> Path:
    """Install the provider where it is not yet, and return the program; raises where it cannot be had."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise FileNotFoundError("node and npm are not installed")
    INSTALLED.mkdir(parents=True, exist_ok=True)
    with (INSTALLED / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted, stamp = (HERE / "package.json").read_text("utf-8"), INSTALLED / "installed.json"
        if not stamp.exists() or stamp.read_text("utf-8") != wanted:
            (INSTALLED / "package.json").write_text(wanted, "utf-8")
            plain = ("--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
            call = ["npm", "install", *plain]
            subprocess.run(call, cwd=INSTALLED, check=True, capture_output=True, timeout=INSTALL_SECONDS)
            stamp.write_text(wanted, "utf-8")
        shutil.copyfile(HERE / "provider.js", INSTALLED / "provider.js")
    return INSTALLED / "provider.js"


@dataclass
class RunningProvider:
    """The provider of a site, its host and port, and what it is told."""

    program: Path
    port: int
    site: str = SITE
    host: str = "127.0.0.1"
    process: subprocess.Popen[str] | None = None

    @property
    def issuer(self) -> str:
        return f"http://{self.host}:{self.port}"

    def start(self) -> None:
        pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
        self.process = subprocess.Popen(["node", self.program], stdin=pipe, stdout=pipe, stderr=quiet, text=True)
        client = CLIENT | {"redirect_uris": [f"{self.site}/login/callback"]}
        self.tell(issuer=self.issuer, port=self.port, client=client)

    def tell(self, **said: Any) -> None:
        assert self.process is not None
        into: IO[str] = self.process.stdin  # type: ignore[assignment]  # a pipe, as asked for
        into.write(json.dumps(said) + "\n")
        into.flush()
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "done\n"

    def people(self, **people: dict[str, Any]) -> None:
        self.tell(people=people)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()
            self.process = None


@pytest.fixture(scope="session")
def program() -> Path:
    """The provider's program; skips where it cannot be had."""
    try:
        return install()
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"npm's oidc-provider cannot be had here: {type(error).__name__}")


@pytest.fixture(scope="session")
def running(program: Path) -> Iterator[RunningProvider]:
    provider = RunningProvider(program, free_port())
    provider.start()
    yield provider
    provider.stop()


class Clock:
    ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now().astimezone() + self.ahead


@dataclass
class House(WithDatabase):
    """A service that people sign in to, and its provider; `heart` is the id of a second project."""

    app: FastAPI
    factory: SessionFactory
    settings: Settings
    provider: RunningProvider
    clock: Clock
    admin: TestClient
    heart: str

    def browser(self) -> TestClient:
        return TestClient(self.app, base_url=SITE, follow_redirects=False, headers={"Origin": SITE})

    def program(self, token: str) -> TestClient:
        return TestClient(self.app, base_url=SITE, headers={"Authorization": f"Bearer {token}"})

    def sign_in(self, login: str, browser: TestClient | None = None, next: str = "/") -> TestClient:
        browser = browser or self.browser()
        answer = browser.get(self.answer_of(login, browser, next))
        assert (answer.status_code, "Signed in" in answer.text) == (200, True), answer.text
        return browser

    def answer_of(self, login: str, browser: TestClient, next: str = "/") -> str:
        """Sign in at the provider; return the address that it leads the browser back to, which was not yet opened."""
        begun = browser.get("/login/provider", params={"next": next})
        assert begun.status_code == 303, begun.text
        return self.at_provider(begun.headers["location"], login)

    def at_provider(self, address: str, login: str) -> str:
        """What a person does on the provider's pages, until it leads back to the service."""
        with httpx.Client(timeout=10) as theirs:
            page = theirs.get(address)
            for _ in range(20):
                if page.is_redirect:
                    address = urljoin(str(page.url), page.headers["location"])
                    if address.startswith(SITE):
                        return address
                    page = theirs.get(address)
                else:
                    action = re.search(r'action="([^"]+)"', page.text)
                    prompt = re.search(r'name="prompt" value="(\w+)"', page.text)
                    assert action is not None, page.text
                    assert prompt is not None, page.text
                    fields = {"prompt": prompt[1], "login": login, "password": "any"}
                    page = theirs.post(urljoin(str(page.url), action[1]), data=fields)
        raise AssertionError("the provider leads nowhere")

    def confirm(self, seconds: float = 0.0, *, ask: Callable[..., Any] | None = None) -> int:
        """Let time go by, then let the service ask the provider by `ask`; return how many people it answered for."""
        self.clock.ahead += timedelta(seconds=seconds)
        provider: Any = self.app.state.service.provider
        if ask is not None:
            provider = SimpleNamespace(confirm=partial(ask, provider.confirm))
        return Confirming(self.settings, self.factory, provider, self.clock).round()

    def caller(self, login: str, name: str = "nightly") -> TestClient:
        return self.program(self.key_of(self.sign_in(login), name=name))

    def key_of(self, browser: TestClient, scope: str = "all", name: str = "nightly") -> str:
        """Make a key on the page *You*; return its token."""
        fields = {"token": form_token_of(browser), "name": name, "scope": scope, "days": "30"}
        made = browser.post("/you/keys", data=fields)
        assert made.status_code == 201, made.text
        found = re.search(r"obs_[a-z2-7]{20}_[0-9a-f]{64}", made.text)
        assert found is not None
        return found[0]


def form_token_of(browser: TestClient) -> str:
    found = re.search(r'name="token" value="([0-9a-f]{64})"', browser.get("/you").text)
    assert found is not None
    return found[1]


@contextmanager
def opened(
    running: RunningProvider, url: str, folder: Path, *, asks_by_itself: bool = False, **changes: Any
) -> Iterator[House]:
    """A service with two projects, whose groups make owners and analysts of one, and viewers of the other."""
    clock = Clock()
    common = {"data_dir": folder, "database_url": url, "mode": "celery", "public_url": running.site}
    common |= {"oidc_issuer": running.issuer, "oidc_client_id": CLIENT["client_id"]}
    common |= {"oidc_client_secret": CLIENT["client_secret"], "oidc_admin_group": "platform"}
    engine = make_engine(url)
    with transaction(make_session_factory(engine)) as session:
        heart = create(session, name="heart", now=clock()).id
    engine.dispose()
    groups = {
        "heart-owners": {heart: "owner"},
        "heart-lab": {heart: "analyst"},
        "heart-data": {heart: "steward"},
        "guests": {DEFAULT_PROJECT: "viewer"},
    }
    settings = Settings(**common, oidc_groups=groups, **changes)  # type: ignore[arg-type]
    app = application(settings, clock=clock, stream_limits=StreamLimits(seconds_max=0))
    if not asks_by_itself:
        app.state.parts = tuple(part for part in app.state.parts if not isinstance(part, Confirming))
    with TestClient(app, base_url=running.site) as admin:
        token = settings.admin_key_path.read_text("ascii").strip()
        admin.headers["Authorization"] = f"Bearer {token}"
        yield House(app, app.state.service.factory, settings, running, clock, admin, heart)


@pytest.fixture(scope="module")
def started(
    running: RunningProvider, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[House, sqlite3.Connection]]:
    folder, as_it_was = tmp_path_factory.mktemp("house"), sqlite3.connect(":memory:")
    shutil.copyfile(sqlite_template, folder / "obscura.db")
    with (
        opened(running, f"sqlite:///{folder / 'obscura.db'}", folder / "data") as house,
        closing(sqlite3.connect(folder / "obscura.db")) as database,
    ):
        database.backup(as_it_was)
        yield house, as_it_was


@pytest.fixture
def house(started: tuple[House, sqlite3.Connection]) -> House:
    """The service as it was at its start, with Ana and Ben, who own the heart, and Eve, who works there."""
    house, as_it_was = started
    with closing(sqlite3.connect(house.settings.database_url.removeprefix("sqlite:///"))) as database:
        as_it_was.backup(database)
    house.provider.people(ana=ANA, ben=BEN, eve=EVE)
    house.clock.ahead = timedelta()
    return house
