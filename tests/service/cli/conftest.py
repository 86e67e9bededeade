"""Fixtures of the tests of the command line.

`shell` runs commands against a service in a process of its own, which all tests share; `client` is its first admin, and
`target` its address and key as options. `account` and `dataset` are new ones of that service, and `write_arrays` writes
arrays to upload. `Shell(folder)` runs commands on any data folder; `book` has a ledger and one release, and no service.
"""

import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from obscura.cli.app import app
from obscura.client import Arrays, Client
from obscura.client.local_service import LocalService
from service.db.base import new_id
from service.db.session import make_engine, make_session_factory
from tests.conftest import NOW, starting_by
from tests.obscura.small import two_classes
from tests.service.audit.book import LedgerBook
from tests.service.orders import release_with_files


@pytest.fixture
def book(sqlite_template: Path, tmp_path: Path) -> Iterator[LedgerBook]:
    """A data folder with a ledger and one release, whose files are there, and no service."""
    data_dir = tmp_path / "var"
    data_dir.mkdir()
    shutil.copyfile(sqlite_template, data_dir / "obscura.db")
    engine = make_engine(f"sqlite:///{data_dir / 'obscura.db'}")
    made = LedgerBook(make_session_factory(engine), data_dir, NOW)
    made.open("patients")
    release_with_files(made, "patients", generator="{}")
    yield made
    engine.dispose()


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it wrote to stdout, as JSON, after what was logged."""
        return json.loads(self.out if self.out[:1] in "[{" else self.out[self.out.index("{\n") :])


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OBSCURA_")}
    return kept | {"OMP_NUM_THREADS": "1"} | changes


class Terminal(io.BytesIO):
    """A terminal with somebody who types these answers, and does something meanwhile."""

    def __init__(self, answers: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        super().__init__(answers.encode())
        self._meanwhile = meanwhile

    def isatty(self) -> bool:
        return True

    def read1(self, size: int | None = -1, /) -> bytes:
        self._meanwhile()
        return super().read1(size)


@dataclass(frozen=True)
class Shell:
    data_dir: Path

    def __call__(self, *arguments: str, code: int = 0, input: str | Terminal = "", **variables: str) -> Ran:
        """Run `obscura ARGUMENTS` with these environment variables, and check its exit code."""
        unset: dict[str, str | None] = {name: None for name in os.environ if name.startswith("OBSCURA_")}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("service.logs.configure_logging", lambda *_: None)  # it would hold for later tests
            if isinstance(input, Terminal):
                patched.setattr("typer.testing.make_input_stream", lambda *_: input)
            words = ["--data-dir", str(self.data_dir), *arguments]
            done = CliRunner().invoke(app, words, input=str(input), env=unset | variables)
        assert done.exit_code == code, f"{done.exit_code}\n{done.output}\n{done.exception!r}"
        return Ran(done.exit_code, done.stdout, done.stderr)


@contextmanager
def serving(data_dir: Path, python: str, log: Path | None = None) -> Iterator[Shell]:
    """Run a service with its embedded worker on a folder."""
    service = LocalService(data_dir, log=log)
    with starting_by(python):
        service.__enter__()
    yield Shell(data_dir)
    service.__exit__()
    assert not (data_dir / "service.url").exists()


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory, warm: str) -> Iterator[Shell]:
    with serving(tmp_path_factory.mktemp("up") / "service", warm) as shell:
        yield shell


@pytest.fixture(scope="session")
def target(shell: Shell) -> tuple[str, ...]:
    url, token = ((shell.data_dir / name).read_text("ascii").strip() for name in ("service.url", "admin.key"))
    return ("--url", url, "--token", token)


@pytest.fixture(scope="session")
def client(target: tuple[str, ...]) -> Iterator[Client]:
    with Client(target[1], target[3]) as client:
        yield client


def write_arrays(path: Path, count: int) -> Path:
    """Write an .npz of images of two simple classes: new ones each time, because images in two accounts join them."""
    np.savez(path, images=two_classes(count)[0], labels=np.arange(count) % 2)
    return path


@pytest.fixture
def account(client: Client) -> str:
    name = f"people {new_id('x')}"
    client.accounts.create(name=name, owner="clinic", epsilon=2.0, delta=1e-5, unit="record")
    return name


@pytest.fixture
def dataset(client: Client, account: str) -> str:
    images = Arrays(two_classes(200)[0], np.arange(200) % 2)
    return client.datasets.push(images, account_id=client.accounts.get(account).id, at_most=200).id
