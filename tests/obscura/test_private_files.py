"""Only the owner can read what the service keeps; the address of a service on its data folder survives no crash."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from obscura.private_files import address_of, announced, is_occupied, make_private, make_tree_private, occupied
from service.db.session import make_engine

URL = "http://127.0.0.1:8420"
HOLD = (
    "import pathlib, sys\n"
    "from obscura.private_files import announced, occupied\n"
    "folder = pathlib.Path(sys.argv[1])\n"
    f"with occupied(folder) as held, announced(folder, {URL!r}):\n"
    "    print(held, flush=True)\n"
    "    sys.stdin.read()\n"
)


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_database_that_everybody_could_read_is_closed(tmp_path, sqlite_template):
    path = tmp_path / "obscura.db"
    shutil.copyfile(sqlite_template, path)
    writer = make_engine(f"sqlite:///{path}")
    with writer.begin() as connection:
        connection.execute(text("CREATE TABLE x (y INTEGER)"))
    for name in ("obscura.db", "obscura.db-wal", "obscura.db-shm"):
        (tmp_path / name).chmod(0o644)
    engine = make_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        assert {mode(file) for file in tmp_path.iterdir()} == {0o600}
    engine.dispose()
    writer.dispose()


def test_everything_in_a_folder_is_closed_and_links_are_not_followed(tmp_path):
    folder, outside = tmp_path / "data", tmp_path / "outside"
    outside.write_text("x")
    (folder / "keys").mkdir(parents=True)
    (folder / "keys" / "ledger.pem").write_text("x")
    read_only = folder / "extractors"
    read_only.mkdir()
    read_only.chmod(0o555)
    (folder / "link").symlink_to(outside)
    (folder / "gone").symlink_to(folder / "nowhere")
    assert make_tree_private(folder) == 0
    assert (mode(folder), mode(folder / "keys"), mode(read_only)) == (0o700, 0o700, 0o500)
    assert mode(folder / "keys" / "ledger.pem") == 0o600
    assert mode(outside) == 0o644
    assert make_private(folder / "nowhere")
    by_link = tmp_path / "by_link"
    by_link.symlink_to(folder)
    folder.chmod(0o755)
    assert make_tree_private(by_link) == 0
    assert mode(folder) == 0o700


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
