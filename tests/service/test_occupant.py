"""The address of a service on its data folder: who may write and remove it, and what a crash leaves."""

import subprocess
import sys

from service.occupant import address_of, announced, is_occupied, occupied
from service.settings import Settings

URL = "http://127.0.0.1:8420"
HOLD = (
    "import pathlib, sys\n"
    "from service.occupant import announced, occupied\n"
    "from service.settings import Settings\n"
    "settings = Settings(data_dir=pathlib.Path(sys.argv[1]))\n"
    f"with occupied(settings) as held, announced(settings, {URL!r}):\n"
    "    print(held, flush=True)\n"
    "    sys.stdin.read()\n"
)


def test_an_address_stands_while_its_service_runs(tmp_path):
    settings = Settings(data_dir=tmp_path)
    assert address_of(settings) is None
    with occupied(settings) as held, announced(settings, URL):
        assert held
        assert address_of(settings) == URL
        assert settings.url_path.stat().st_mode & 0o777 == 0o600
    assert not settings.url_path.exists()
    assert address_of(settings) is None


def test_a_second_one_is_told_and_touches_nothing(tmp_path):
    settings = Settings(data_dir=tmp_path)
    with occupied(settings), announced(settings, URL):
        with occupied(settings) as held:
            assert not held
        assert address_of(settings) == URL
        assert is_occupied(settings)


def test_an_address_that_is_another_ones_is_left_alone(tmp_path):
    settings = Settings(data_dir=tmp_path)
    with announced(settings, URL):
        settings.url_path.write_text("http://127.0.0.1:1\n", "ascii")
    assert settings.url_path.read_text("ascii") == "http://127.0.0.1:1\n"


def test_what_a_crash_leaves_is_no_address_and_is_replaced(tmp_path):
    settings = Settings(data_dir=tmp_path)
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        assert address_of(settings) == URL
        process.kill()
    assert settings.url_path.exists()
    assert address_of(settings) is None
    with occupied(settings) as held, announced(settings, "http://127.0.0.1:2"):
        assert held
        assert address_of(settings) == "http://127.0.0.1:2"
    assert not settings.url_path.exists()
