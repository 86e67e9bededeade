"""`obscura backup` and `obscura restore`: exit codes, and what they say of keys, of no service."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from obscura.cli import app as cli
from service import installation
from service.settings import Settings
from tests.conftest import NOW
from tests.service.audit.book import LedgerBook
from tests.service.people import make_key


@pytest.fixture
def book(book: LedgerBook) -> LedgerBook:
    """Database and data folder know each other, as a service leaves them."""
    assert installation.pair(Settings(data_dir=book.data_dir), book.factory, now=NOW)
    _, token = book.do(make_key, name="boss", scopes=["admin"])
    (book.data_dir / "admin.key").write_text(f"{token}\n")
    return book


@pytest.fixture
def obscura(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command on a data folder in this process: `obscura(folder, "backup", code=1)`."""
    monkeypatch.setattr("service.logs.configure_logging", lambda *_: None)  # it would hold for the tests after this one

    def invoke(folder: Path, *arguments: str, code: int = 0) -> Result:
        done = CliRunner().invoke(cli.app, ["--data-dir", str(folder), *arguments])
        assert done.exit_code == code, f"{done.exit_code}\n{done.output}\n{done.exception!r}"
        return done

    return invoke


def json_of(done: Result) -> Any:
    return json.loads(done.stdout[done.stdout.index("{\n") :])  # after what was logged


def test_a_backup_comes_back_by_the_commands_and_says_where_the_keys_are(book, obscura, tmp_path):
    ours, new, backup = book.data_dir, tmp_path / "new", str(tmp_path / "backup")
    assert str(ours / "keys") in obscura(ours, "backup", backup).stderr.replace("\n", "")
    assert "holds something already" in obscura(ours, "backup", backup, code=2).stderr
    assert "keys first" in obscura(new, "restore", backup, code=2).stderr
    assert not (new / "obscura.db").exists()
    shutil.copytree(ours / "keys", new / "keys")
    restored = obscura(new, "restore", backup, "--json", code=1)
    assert (json_of(restored)["stops"], json_of(restored)["findings"]) == (["restored"], [])
    assert "obscura ledger accept ACCOUNT" in restored.stderr.replace("\n", " ")
    verified = json_of(obscura(new, "ledger", "verify", "--clear", "--json", code=1))
    assert (verified["cleared"], verified["locked"]) == (0, True)
    ((account_id, nano),) = [(loss["account_id"], loss["missing_nano"]) for loss in verified["missing"]]
    assert nano == 0
    assert f"obscura ledger accept {account_id}" in obscura(new, "ledger", "verify", code=1).stdout.replace("\n", " ")
    shutil.copy(ours / "admin.key", new / "admin.key")
    assert "lacks nothing" in obscura(new, "ledger", "accept", "acc_" + "a" * 20, code=2).stderr
    book.factory.kw["bind"].dispose()
    for file in ours.glob("obscura.db*"):
        file.unlink()
    kept = json_of(obscura(ours, "restore", backup, "--keep-files", "--json"))
    assert (kept["stops"], kept["findings"]) == ([], [])
