"""Who may read what the service keeps: its owner, and nobody else, whatever the permissions were before."""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from obscura.private_files import make_private, make_tree_private
from service.db.session import make_engine


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
