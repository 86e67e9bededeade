"""A slow service is waited for, and an absent one is not."""

import subprocess
import sys
from contextlib import ExitStack

import pytest
from typer.testing import CliRunner

from obscura.cli import connection
from obscura.cli.app import app
from obscura.client import ApiError, Client, ConnectionFailed, ServiceFailed
from obscura.client.local_service import LocalService
from obscura.private_files import announced, occupied
from tests.obscura.client.canned import NOTHING, READY, Answer, answering, command
from tests.pictures import write_folders

BUSY = Answer(
    503,
    b'{"type": "x", "title": "x", "status": 503, "detail": "The database does not answer.", "code": "busy", '
    b'"instance": "/v1/health/ready"}',
    {"Content-Type": "application/problem+json"},
)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr("obscura.client.client.READY_POLL_SECONDS", 0.0)


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    (folder / "admin.key").write_text("key\n")
    return folder


def busy_for(times: int):
    left = [BUSY] * times
    return lambda _method, _path: left.pop() if left else READY


def test_a_busy_service_is_waited_for():
    said = []
    with answering(busy_for(3)) as server, Client(server.url, None) as client:
        assert client.wait_ready(60, on_wait=said.append).trainings == "open"
    assert len(server.requests) == 4
    assert said == ["The database does not answer."]
    with answering(busy_for(10**6)) as server, Client(server.url, None) as client:
        assert not client.ready()
        with pytest.raises(ApiError, match="database"):
            client.wait_ready(0)
    assert len(server.requests) == 2


def test_an_absent_service_is_not_waited_for():
    with Client("http://127.0.0.1:1", None) as client, pytest.raises(ConnectionFailed) as error:
        client.wait_ready(3600)
    assert error.value.refused


def test_quickstart_waits_for_a_busy_service_that_is_named(tmp_path):
    write_folders(tmp_path / "pets", {"cat": 1})
    with answering(busy_for(2)) as server:
        place = ("--out", str(tmp_path / "out"), "--yes", "--at-most", "9", "--classes", "cat")
        ran = command(server.url, "quickstart", str(tmp_path / "pets"), *place)
    assert "The service is slow. Waiting for it." in ran.stderr
    assert "No service answers" not in ran.stderr
    assert len([line for line, _ in server.requests if "/v1/health/ready" in line]) == 3


def test_a_service_that_holds_its_folder_is_waited_for_and_one_that_has_gone_is_not(data):
    with answering(busy_for(5)) as server, occupied(data), announced(data, server.url), LocalService(data) as service:
        assert (service.url, service.process) == (server.url, None)
    ended = LocalService(data)
    ended.process = subprocess.Popen([sys.executable, "-c", ""])
    ended.process.wait()
    with pytest.raises(ServiceFailed, match="did not start"):
        ended._wait()


def test_a_command_waits_for_a_service_that_starts(data, monkeypatch):
    """It holds its folder, and its address is written a moment later."""
    with answering(lambda *_: NOTHING) as server, ExitStack() as later:
        later.enter_context(occupied(data))
        monkeypatch.setattr(connection.time, "sleep", lambda _: later.enter_context(announced(data, server.url)))
        asked = CliRunner().invoke(app, ["--data-dir", str(data), "accounts", "list", "--json"])
    assert (asked.exit_code, asked.stdout.split()) == (0, ["[]"]), asked.output
    assert "is starting" in asked.stderr
