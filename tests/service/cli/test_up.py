"""`obscura up`: its messages to the person who starts it, and a second one on the same data folder."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from obscura.client.local_service import LocalService, running_at
from service.db.access_tables import Project
from service.db.base import new_id
from service.db.schema import upgrade_schema
from service.db.session import make_engine, make_session_factory, transaction
from service.errors import DatabaseUnsuitable
from service.identity import projects
from service.settings import Settings
from service.storage.interface import key_of
from tests.conftest import new_database
from tests.service.cli.conftest import environment, serving
from tests.together import wait_until

MARK = "ins_" + "a" * 20
MINIMUM_FREE = Settings.model_fields["disk_free_bytes_min"].default


def test_the_link_leads_to_the_public_address_and_an_open_dashboard_is_named(tmp_path, warm):
    changes = {"OBSCURA_PUBLIC_URL": "https://obscura.example", "OBSCURA_DASHBOARD_PUBLIC": "true"}
    command = [warm, "-m", "obscura.cli", "--data-dir", str(tmp_path / "data"), "up", "--port", "0"]
    reading, terminal = pty.openpty()  # a link that signs in is for a person's eyes: it goes to no log
    process = subprocess.Popen(command, env=environment(**changes), stdout=subprocess.DEVNULL, stderr=terminal)
    os.close(terminal)
    said, deadline = "", time.monotonic() + 300
    try:
        while not re.search(r"/sign-in/[0-9a-f]+\r\n", said):
            assert time.monotonic() < deadline, said
            said = re.sub(r"\x1b\[[0-9;]*m", "", said + os.read(reading, 4096).decode())
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        os.close(reading)
    lines = said.split("\r\n")
    assert "https://obscura.example/sign-in/" in "".join(lines[-3:]), "the link is last, where no log line moves it"
    assert "open a second terminal" in said
    assert "WITHOUT A KEY" in said
    assert re.search(r"\d\d:\d\d:\d\d warning: dashboard open to everybody, setting OBSCURA", said)
    assert not re.search("alembic|Running upgrade|Uvicorn", said)


def test_up_says_what_is_wrong_and_what_to_do_and_removes_nothing(tmp_path, warm):
    data_dir = tmp_path / "service"
    release = data_dir / key_of(new_id("rel"))
    release.mkdir(parents=True, mode=0o700)
    (data_dir / "installation").write_text(f"{MARK}\n")
    (data_dir / "admin.key").write_text("what its database knows\n")
    said = tmp_path / "said.txt"
    with serving(data_dir, warm, said) as shell:
        status = shell("ledger", "status", "--json").json
    lines = said.read_text().splitlines()
    told = " ".join(line for line in lines if not line.startswith("{"))  # a narrow terminal breaks lines
    sentence = (
        f"The database belongs to none, and the data folder to installation {MARK} (a new database belongs to none, "
        "and so does an empty or unmounted folder). Start the service with the OBSCURA_DATABASE_URL and the "
        "OBSCURA_DATA_DIR of the same installation; until then nothing is removed, and no private data is opened."
    )
    assert sentence in " ".join(told.split())
    assert any(line.startswith("{") and sentence in line and '"trainings_stopped"' in line for line in lines)
    assert status["trainings"] == "stopped"
    assert [(stop["account_id"], stop["code"]) for stop in status["stops"]] == [(None, "installation_mismatch")]
    assert release.is_dir()
    assert (data_dir / "admin.key").read_text() == "what its database knows\n"
    assert not (data_dir / "keys" / "fingerprints.key").exists()


def refusal(data_dir: Path, python: str, port: int = 0, **variables: str) -> str:
    """Run `obscura up` to its end, and return its error, which is one sentence."""
    command = [python, "-m", "obscura.cli", "--data-dir", str(data_dir), "up", "--port", str(port)]
    ran = subprocess.run(command, env=environment(**variables), capture_output=True, text=True, timeout=300)
    said = " ".join((ran.stdout + ran.stderr).split())
    assert (ran.returncode, "error: " in said) == (1, True), said
    assert not re.search("Traceback|startup failed", said)
    return said


@pytest.fixture
def full_disk(small_disk: Path) -> Path:
    with pytest.raises(OSError, match="No space"):
        (small_disk / "filling").write_bytes(bytes(2**20))
    return small_disk


@pytest.mark.parametrize(("on_it", "free"), [("data", 0), ("data", 12288), ("keys", 0), ("database", 4096)])
def test_up_on_a_full_disk_says_which_and_how_many_bytes_it_needs(warm, full_disk, tmp_path, on_it, free):
    os.truncate(full_disk / "filling", (full_disk / "filling").stat().st_size - free)
    places = {"keys": {"OBSCURA_KEYS_DIR": f"{full_disk}/keys"}}
    places["database"] = {"OBSCURA_DATABASE_URL": f"sqlite:///{full_disk}/obscura.db"}
    said = refusal((full_disk if on_it == "data" else tmp_path) / "data", warm, **places.get(on_it, {}))
    assert all(words in said for words in (f"The disk of {full_disk}", "bytes are free", f"needs {MINIMUM_FREE:,}")), (
        said
    )


@pytest.mark.parametrize("folder", ["/proc/x/y", "/dev/null"])
def test_up_in_a_place_that_takes_no_folder_names_it(warm, folder):
    assert "/".join(folder.split("/")[:3]) in refusal(Path(folder), warm)


def test_up_on_a_disk_that_is_read_only_names_the_folder(warm, full_disk):
    subprocess.run(["mount", "-o", "remount,ro", full_disk], check=True)
    said = refusal(full_disk, warm)
    assert str(full_disk) in said
    assert "Read-only file system" in said


@pytest.fixture
def other_database(postgres_server: Engine) -> Iterator[Callable[[str], str]]:
    with ExitStack() as opened:

        def created(encoding: str) -> str:
            options = f"ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
            return opened.enter_context(new_database(postgres_server, options))

        yield created


@pytest.mark.services
def test_up_refuses_a_database_of_another_encoding_and_writes_nothing(warm, other_database, tmp_path):
    for encoding in ("LATIN1", "EUC_JP"):
        engine = make_engine(other_database(encoding))
        with pytest.raises(DatabaseUnsuitable, match=encoding):
            engine.connect()
        engine.dispose()
    url = other_database("SQL_ASCII")
    said = refusal(tmp_path / "data", warm, OBSCURA_DATABASE_URL=url)
    assert all(words in said for words in ("has the encoding SQL_ASCII", "needs UTF8", "CREATE DATABASE")), said
    engine = create_engine(url, connect_args={"client_encoding": "utf8"})
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM pg_class WHERE relname = 'accounts'")) == 0
    engine.dispose()


@pytest.mark.services
def test_a_database_that_cannot_be_reached_is_named_without_its_password(warm, tmp_path):
    url = "postgresql+psycopg://obscura:word@127.0.0.1:1/obscura"
    said = refusal(tmp_path / "data", warm, OBSCURA_DATABASE_URL=url)
    assert "127.0.0.1" in said
    assert "obscura:***@" in said
    assert "word" not in said


@pytest.mark.services
def test_defaults_of_the_database_change_neither_times_nor_texts(other_database, now):
    url = other_database("UTF8")
    admin = create_engine(url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        for setting in ("DateStyle TO German, DMY", "TimeZone TO 'Asia/Kolkata'", "client_encoding TO 'LATIN1'"):
            connection.execute(text(f"ALTER DATABASE {make_url(url).database} SET {setting}"))
    admin.dispose()
    upgrade_schema(url)
    engine = make_engine(url)
    try:
        factory = make_session_factory(engine)
        with transaction(factory) as session:
            made = projects.create(session, name="Köln 患者", now=now).id
        with transaction(factory, read_only=True) as session:
            project = session.get_one(Project, made)
            assert (project.name, project.created_at) == ("Köln 患者", now)
            assert session.scalar(text("SHOW DateStyle")) == "ISO, MDY"
    finally:
        engine.dispose()


def test_up_where_somebody_listens(warm, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "Cannot listen" in refusal(tmp_path, warm, taken.getsockname()[1])


def test_a_second_service_with_workers_of_its_own_is_refused(shell, warm):
    url = (shell.data_dir / "service.url").read_text("ascii")
    said = refusal(shell.data_dir, warm)
    assert f"already runs on {shell.data_dir}, at {url.strip()}. " in said
    assert "--data-dir" in said
    assert (shell.data_dir / "service.url").read_text("ascii") == url
    assert running_at(shell.data_dir) == url.strip()


def test_a_second_api_process_leaves_the_address_of_the_first_alone(shell, warm):
    url = (shell.data_dir / "service.url").read_text("ascii")
    command = [warm, "-m", "obscura.cli", "--data-dir", str(shell.data_dir), "up", "--port", "0", "--json"]
    with subprocess.Popen(
        command, env=environment(OBSCURA_MODE="celery"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as second:
        served = ""
        while not served.rstrip().endswith("}"):
            line = second.stdout.readline()
            assert line, "it has ended"
            served += line
        assert json.loads(served)["url"] != url.strip()
        second.send_signal(signal.SIGTERM)
    assert (shell.data_dir / "service.url").read_text("ascii") == url
    assert running_at(shell.data_dir) == url.strip()


@pytest.mark.usefixtures("warm_starts")
def test_two_that_start_at_once_share_one(tmp_path):
    """Whoever loses the race uses the service of the other."""
    first, second = LocalService(tmp_path / "data"), LocalService(tmp_path / "data", log=tmp_path / "second.log")
    (tmp_path / "data").mkdir(mode=0o700)
    for each in (first, second):  # both have found nobody; the second one's waiting ends with the first one's address
        each._spawn()
    try:
        assert first._wait() == second._wait()
        ended = [each.process for each in (first, second) if each.process]
        wait_until(lambda: {each.poll() for each in ended} == {None, 1}, "both run, or neither does", seconds=60)
    finally:
        second.__exit__()
        first.__exit__()
    assert not (tmp_path / "data" / "service.url").exists()
