"""A second `obscura up` on the data folder of one that runs."""

import json
import signal
import subprocess

from obscura.client.local_service import LocalService, running_at
from tests.service.cli.conftest import environment
from tests.together import wait_until


def test_a_second_service_with_workers_of_its_own_is_refused(shell):
    url = (shell.data_dir / "service.url").read_text("ascii")
    said = shell("up", "--port", "0", code=1).err
    assert f"already, at {url.strip()}" in said
    assert "--data-dir" in said
    assert (shell.data_dir / "service.url").read_text("ascii") == url
    assert running_at(shell.data_dir) == url.strip()


def test_a_second_api_process_leaves_the_address_of_the_first_alone(shell):
    url = (shell.data_dir / "service.url").read_text("ascii")
    command = [shell.python, "-m", "obscura.cli", "--data-dir", str(shell.data_dir), "up", "--port", "0", "--json"]
    with subprocess.Popen(
        command,
        env=environment(OBSCURA_MODE="celery"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as second:
        assert second.stdout is not None
        served = ""
        while not served.rstrip().endswith("}"):
            line = second.stdout.readline()
            assert line, "it has ended"
            served += line
        assert json.loads(served)["url"] != url.strip()
        second.send_signal(signal.SIGTERM)
    assert (shell.data_dir / "service.url").read_text("ascii") == url
    assert running_at(shell.data_dir) == url.strip()


def test_two_that_start_at_once_share_one(tmp_path, warm, monkeypatch):
    """Whoever loses the race uses the service of the other."""
    monkeypatch.setattr("sys.executable", warm)
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
