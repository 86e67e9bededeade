"""Which service a command uses: never that of a data folder which another user has left in the current folder."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import obscura
from obscura.cli.app import app
from obscura.private_files import NotOwned, occupied
from tests.obscura.client.canned import Canned, empty_service

STRANGER = 65_534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


theirs, mine = pytest.fixture(empty_service, name="theirs"), pytest.fixture(empty_service, name="mine")


@pytest.fixture
def var(tmp_path: Path, theirs: Canned, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data folder `var` in the current folder, which is occupied by a service."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("OBSCURA_URL", "OBSCURA_TOKEN", "OBSCURA_DATA_DIR", "OBSCURA_PROFILE", "OBSCURA_HOST", "OBSCURA_PORT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    folder = Path("var")
    folder.mkdir(mode=0o700)
    (folder / "admin.key").write_text("their-key\n")
    (folder / "service.url").write_text(f"{theirs.url}\n")
    with occupied(folder):
        yield folder


def keep(profile: Canned, name: str = "default") -> None:
    ran = run("login", profile.url, "--profile", name, input="my-key\n")
    assert ran.exit_code == 0, ran.output


def run(*words: str, input: str | None = None) -> Result:
    return CliRunner().invoke(app, [*words], input=input)


def give(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


def link(folder: Path) -> None:
    folder.rename("elsewhere")
    folder.symlink_to("elsewhere")
    give(folder)


FOREIGN: dict[str, Callable[[Path], None]] = {
    "the folder": lambda folder: [give(path) for path in (folder, *folder.iterdir())] and None,
    "the folder alone": give,
    "a link": link,
}
PARTLY: dict[str, Callable[[Path], None]] = {
    "the address": lambda folder: give(folder / "service.url"),
    "the key": lambda folder: give(folder / "admin.key"),
    "the lock": lambda folder: give(folder / "service.lock"),
    "an address that everyone can write": lambda folder: (folder / "service.url").chmod(0o666),
    "a key that everyone can write": lambda folder: (folder / "admin.key").chmod(0o666),
}


@pytest.mark.parametrize("spoil", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_folder_of_another_user_is_passed_over(var, mine, theirs, spoil):
    spoil(var)
    alone = run("accounts", "list")
    assert (alone.exit_code, "var belongs to another user" in " ".join(alone.stderr.split())) == (4, True)
    assert run("quickstart", ".", "--yes", "--at-most", "9").exit_code != 0
    refused = run("up", "--port", "0")
    assert (refused.exit_code, "another user" in refused.stderr) == (4, True)
    keep(mine)
    ran = run("accounts", "list", "--json")
    assert (ran.exit_code, json.loads(ran.stdout)) == (0, []), ran.output
    assert "Using profile 'default'" in ran.stderr
    assert mine.requests[-1][1]["Authorization"] == "Bearer my-key"
    assert theirs.requests == []


@pytest.mark.parametrize("spoil", [*FOREIGN.values(), *PARTLY.values()], ids=[*FOREIGN, *PARTLY])
def test_no_file_of_another_user_is_believed(var, theirs, spoil, monkeypatch):
    spoil(var)
    if spoil in FOREIGN.values():  # which root may look after where it is named
        monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    ran = run("--data-dir", "var", "accounts", "list")
    assert ran.exit_code == 1, ran.output
    assert "is not used" in " ".join(ran.stderr.split())
    with pytest.raises(NotOwned):
        obscura.local("var")
    assert not [line for line, headers in theirs.requests if "Authorization" in headers]


def test_the_choice_between_a_folder_and_a_profile_is_said(var, mine, theirs):
    only = run("accounts", "list", "--json")
    assert (only.exit_code, only.stderr) == (0, "")
    keep(mine)
    ran = run("accounts", "list", "--json")
    assert json.loads(ran.stdout) == []
    assert f"Using the service on var. For {mine.url}, add --profile default." in " ".join(ran.stderr.split())
    assert theirs.requests[-1][1]["Authorization"] == "Bearer their-key"
    for words in (("--profile", "default"), ("--url", mine.url), ("--data-dir", "var")):
        assert run(*words, "accounts", "list", "--json").stderr == ""


def test_a_key_is_not_sent_to_whoever_listens_at_the_usual_port(var, tmp_path):
    folder = tmp_path / "stopped"
    folder.mkdir(mode=0o700)
    (folder / "admin.key").write_text("key\n")
    ran = run("--data-dir", str(folder), "accounts", "list")
    assert (ran.exit_code, "No service runs on" in ran.stderr) == (1, True)


def test_a_profile_of_another_user_is_refused(var, mine, tmp_path):
    keep(mine)
    (file,) = (tmp_path / "config").rglob("*.json")
    give(file)
    ran = run("--profile", "default", "accounts", "list")
    assert (ran.exit_code, "belongs to another user" in " ".join(ran.stderr.split())) == (1, True)


@pytest.mark.parametrize("before", [True, False])
def test_login_and_logout_take_the_profile_before_and_after_their_name(var, mine, theirs, before, monkeypatch):
    def with_profile(*words: str) -> list[str]:
        return ["--profile", "derm", *words] if before else [*words, "--profile", "derm"]

    keep(theirs)
    ran = run(*with_profile("login", mine.url), input="my-key\n")
    assert (ran.exit_code, "--profile derm" in " ".join(ran.stderr.split())) == (0, True)
    assert run("--profile", "derm", "accounts", "list").exit_code == 0
    assert mine.requests[-1][1]["Authorization"] == "Bearer my-key"
    asked = len(mine.requests)
    assert run("--profile", "default", "accounts", "list").exit_code == 0
    assert len(mine.requests) == asked
    assert run(*with_profile("logout")).exit_code == 0
    assert run("--profile", "derm", "accounts", "list").exit_code == 2
    assert run("--profile", "default", "accounts", "list").exit_code == 0
    monkeypatch.setenv("OBSCURA_PROFILE", "derm")
    assert run("login", mine.url, input="my-key\n").exit_code == 0
    assert run("accounts", "list").exit_code == 0


@pytest.mark.parametrize("words", [("up",), ("ledger", "status"), ("backup", "x"), ("demo",)])
def test_a_command_that_works_on_a_folder_takes_no_profile(words, var, mine):
    keep(mine)
    for option in (("--profile", "default"), ("--url", mine.url)):
        ran = run(*option, *words)
        assert (ran.exit_code, "--data-dir" in ran.stderr) == (2, True), ran.output
