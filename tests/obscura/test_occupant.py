"""The address of a service on its data folder: who may write and remove it, and what a crash leaves."""

import subprocess
import sys

from obscura.private_files import address_of, announced, is_occupied, occupied

URL = "http://127.0.0.1:8420"
HOLD = (
    "import pathlib, sys\n"
    "from obscura.private_files import announced, occupied\n"
    "folder = pathlib.Path(sys.argv[1])\n"
    f"with occupied(folder) as held, announced(folder, {URL!r}):\n"
    "    print(held, flush=True)\n"
    "    sys.stdin.read()\n"
)


def test_an_address_stands_while_its_service_runs(tmp_path):
    assert address_of(tmp_path) is None
    with occupied(tmp_path) as held, announced(tmp_path, URL):
        assert held
        assert address_of(tmp_path) == URL
        assert (tmp_path / "service.url").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "service.url").exists()
    assert address_of(tmp_path) is None


def test_a_second_one_is_told_and_touches_nothing(tmp_path):
    with occupied(tmp_path), announced(tmp_path, URL):
        with occupied(tmp_path, seconds_max=0.1) as held:
            assert not held
        assert address_of(tmp_path) == URL
        assert is_occupied(tmp_path)


def test_an_address_that_is_another_ones_is_left_alone(tmp_path):
    with announced(tmp_path, URL):
        (tmp_path / "service.url").write_text("http://127.0.0.1:1\n", "ascii")
    assert (tmp_path / "service.url").read_text("ascii") == "http://127.0.0.1:1\n"


def test_what_a_crash_leaves_is_no_address_and_is_replaced(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "True\n"
        assert address_of(tmp_path) == URL
        process.kill()
    assert (tmp_path / "service.url").exists()
    assert address_of(tmp_path) is None
    with occupied(tmp_path) as held, announced(tmp_path, "http://127.0.0.1:2"):
        assert held
        assert address_of(tmp_path) == "http://127.0.0.1:2"
    assert not (tmp_path / "service.url").exists()
