"""The folder keeps the contract, and what it adds: permissions, dates, links that lead nowhere, and the disk."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.errors import InvalidInput, NotFound
from service.storage.folder import FolderStorage
from service.storage.interface import digest_directory, digest_file, key_of, open_regular
from tests.service.storage.contract import KEY, RELEASE, StorageContract, publish


@pytest.fixture
def storage(tmp_path: Path) -> FolderStorage:
    return FolderStorage(tmp_path / "var")


class TestFolder(StorageContract):
    """The contract, kept by a folder."""


def test_each_kind_of_identifier_has_its_folder():
    for prefix, folder in {"ds": "datasets", "rel": "releases", "smp": "samples"}.items():
        assert key_of(f"{prefix}_{'a7' * 10}") == f"{folder}/{prefix}_{'a7' * 10}"


@settings(max_examples=30)
@given(st.text(max_size=30))
def test_nothing_but_our_identifiers_becomes_a_key(text):
    for identifier in (text, f"rel_{text}", f"{RELEASE}{text}x", f"{text}{RELEASE}x", f"job_{'a7' * 10}"):
        with pytest.raises(InvalidInput):
            key_of(identifier)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(files=st.dictionaries(st.sampled_from(["a", "b", "c/d", "c/e"]), st.binary(max_size=20), min_size=1))
def test_a_published_folder_has_the_digest_of_its_manifest(tmp_path_factory, files):
    storage = FolderStorage(tmp_path_factory.mktemp("one"))
    publish(storage, files)
    manifest = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    assert digest_directory(storage.open(KEY)) == hashlib.sha256(canonical).hexdigest()
    assert storage.list("releases") == [RELEASE]
    assert all(os.stat(storage.open(KEY) / name).st_mtime % 3600 == 0 for name in files)


def test_what_is_kept_is_its_owners_alone(storage, tmp_path):
    publish(storage)
    for name in ("a.json", "b.json"):
        storage.write(f"receipts/{name}", b"1")
    storage.append("journals/job_a.jsonl", b"1")
    storage.move("receipts/a.json", "trash/a.json")
    for path in (*(tmp_path / "var").glob("*"), storage.open(KEY)):
        assert path.stat().st_mode & 0o777 == 0o700, path
    for shelf, name in (("trash", "a.json"), ("receipts", "b.json"), ("journals", "job_a.jsonl")):
        path = storage.open(shelf, name)
        assert path.stat().st_mode & 0o777 == 0o600, path


def test_links_lead_nowhere(storage, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    publish(storage)
    (storage.open(KEY) / "leak.json").symlink_to(secret)
    other = "rel_" + "d" * 20
    (tmp_path / "var" / key_of(other)).symlink_to(storage.open(KEY), target_is_directory=True)
    for key, name in ((KEY, "leak.json"), (key_of(other), "a.json"), (key_of(other), "")):
        with pytest.raises(NotFound):
            storage.open(key, name)
    assert storage.list("releases") == [RELEASE]
    (tmp_path / "var" / "journals").mkdir()
    (tmp_path / "var" / "journals" / "job_a.jsonl").symlink_to(secret)
    with pytest.raises(OSError, match="symbolic links"):
        storage.append("journals/job_a.jsonl", b"more")
    assert secret.read_text() == "x"


def test_only_plain_files_are_opened_and_hashed(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "missing", ""):
        with pytest.raises(NotFound):
            open_regular(tmp_path / name)
        with pytest.raises(NotFound):
            digest_file(tmp_path / name)
    for name in ("link", "file", "missing"):
        with pytest.raises(NotFound):
            digest_directory(tmp_path / name)
    with pytest.raises(InvalidInput):
        digest_directory(tmp_path)


def test_what_a_crash_left_of_a_staging_is_listed_and_can_be_removed(storage, tmp_path):
    leftover = tmp_path / "var" / f"{KEY}.3.tmp"
    with storage.stage(KEY, mark="3") as staging:
        assert staging == leftover
    (leftover / "inner").mkdir(parents=True)
    (leftover / "inner" / "a").write_bytes(b"1")
    assert storage.list("releases") == [leftover.name]
    for path in (leftover / "inner" / "a", leftover / "inner", leftover):
        os.utime(path, (1e9, 1e9))
    assert storage.idle_seconds(f"{KEY}.3.tmp") > 1e6
    storage.remove(f"{KEY}.3.tmp")
    assert storage.list("releases") == []


def test_a_full_disk_is_an_error_and_leaves_what_was_there(storage, monkeypatch):
    storage.write("receipts/a.json", b"before")
    monkeypatch.setattr(os, "fsync", _full)
    for act in (lambda: storage.write("receipts/a.json", b"after"), lambda: storage.append("journals/j", b"x")):
        with pytest.raises(OSError, match="No space left"):
            act()
    with pytest.raises(OSError, match="No space left"):
        publish(storage)
    assert storage.open("receipts", "a.json").read_bytes() == b"before"
    assert (storage.list("receipts"), storage.list("releases")) == (["a.json"], [])


def _full(_descriptor: int) -> None:
    raise OSError(28, "No space left on device")
