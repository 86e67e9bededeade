"""Disks that are full or read-only: small file systems where this user may mount them, a limit of the kernel else."""

import os
import subprocess
import sys

import pytest

from service import disk
from service.settings import Settings

UNWRITABLE = (  # no file of this process may grow beyond no byte: every write fails, as on a full disk
    "import pathlib, resource, sys\n"
    "from service.disk import unwritable\n"
    "from service.settings import Settings\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    "print(*unwritable(Settings(data_dir=pathlib.Path(sys.argv[1]))))\n"
)


def test_the_folders_of_data_keys_work_and_database_are_looked_at(tmp_path):
    (tmp_path / "keys").mkdir()
    made = disk.folders_written_to(Settings(data_dir=tmp_path))
    assert made == {"data": tmp_path, "keys": tmp_path / "keys", "work": tmp_path, "database": tmp_path}
    elsewhere = Settings(data_dir=tmp_path, database_url="postgresql+psycopg://host/name")
    assert set(disk.folders_written_to(elsewhere)) == {"data", "keys", "work"}


def test_a_disk_that_can_be_written_to_keeps_nothing_of_the_probe(tmp_path):
    assert list(disk.unwritable(Settings(data_dir=tmp_path))) == []
    assert list(tmp_path.iterdir()) == []


def test_writes_that_fail_are_found(tmp_path):
    command = [sys.executable, "-c", UNWRITABLE, str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert set(said.split()) == {"data", "keys", "work", "database"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_disk_that_cannot_be_written_to_is_found_by_what_its_folder_is_for(tmp_path, small_disk, how):
    settings = Settings(data_dir=tmp_path, keys_dir=small_disk, disk_free_bytes_min=0)
    assert list(disk.unwritable(settings)) == []
    if how == "full":
        with pytest.raises(OSError, match="No space"):
            (small_disk / "filling").write_bytes(bytes(2**20))
    else:
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert list(disk.unwritable(settings)) == ["keys"]
    assert disk.DiskProbe(settings).is_short()


def test_nothing_begins_where_less_is_left_than_should_be(tmp_path, small_disk):
    settings = Settings(data_dir=tmp_path, keys_dir=small_disk, disk_free_bytes_min=2**16)
    disk.require_room(settings)
    (small_disk / "file").write_bytes(bytes(200 * 1024))
    assert disk.short_of_room(settings) == "keys"
    with pytest.raises(disk.OutOfDisk) as refused:
        disk.require_room(settings)
    assert refused.value.numbers == {}
    assert "keys" not in refused.value.message
    assert disk.DiskProbe(settings).is_short()


def test_disks_are_asked_every_few_seconds_at_most(tmp_path):
    now = [0.0]
    probe = disk.DiskProbe(Settings(data_dir=tmp_path, disk_free_bytes_min=0), clock=lambda: now[0])
    os.utime(tmp_path, (0, 0))
    assert not probe.is_short()
    assert tmp_path.stat().st_mtime > 0  # a file came and went
    os.utime(tmp_path, (0, 0))
    now[0] = disk.PROBED_SECONDS / 2
    assert (probe.is_short(), tmp_path.stat().st_mtime) == (False, 0)
    now[0] = disk.PROBED_SECONDS
    assert not probe.is_short()
    assert tmp_path.stat().st_mtime > 0
