"""What the chaos benchmark counts in a bucket, and the courier that brings keys."""

import os

import pytest

from service.settings import Settings
from service.storage import storage_of
from tests.service.storage.contract import publish

pytest.importorskip("botocore", reason="needs botocore: pip install '.[s3]'")
from benchmarks import chaos_storage
from service.storage.s3.entries import KEYS, PARTS
from service.storage.s3.storage import SMALL_BYTES
from tests.service.storage.memory_bucket import MEMORY_URL, MemoryBucket
from tests.together import wait_until


def test_objects_that_nobody_names_are_counted(tmp_path, sqlite_url, sqlite_factory, monkeypatch):
    bucket = MemoryBucket()
    bucket.serve(monkeypatch, tmp_path / "var" / "storage")
    monkeypatch.setattr(chaos_storage, "Bucket", lambda _: bucket)
    settings = Settings(data_dir=tmp_path / "var", database_url=sqlite_url, storage=MEMORY_URL)
    publish(storage_of(settings), {"model": os.urandom(2 * SMALL_BYTES)}, "releases/kept")
    storage_of(settings).append("journals/job_a.jsonl", b"1")
    assert chaos_storage.orphans(settings, sqlite_factory) == 0
    bucket.put(f"{PARTS}releases/kept/0/0.0", b"of a crash")
    bucket.put(f"{KEYS}releases/kept.3.tmp", bucket.get(f"{KEYS}releases/kept") or b"")
    assert chaos_storage.orphans(settings, sqlite_factory) == 2
    bucket.put("claims/releases/kept/0", b"")
    assert chaos_storage.old_claims(settings) == 0
    monkeypatch.setattr(chaos_storage, "CLAIM_SECONDS", -1.0)
    assert chaos_storage.old_claims(settings) == 1


def test_the_courier_brings_what_is_new_and_takes_away_what_is_gone(tmp_path):
    source, target = tmp_path / "keys", tmp_path / "worker" / "keys"
    (source / "datasets").mkdir(parents=True)
    key = source / "datasets" / "ds_a.key"
    key.write_bytes(b"1")
    courier = chaos_storage.Courier(source, [target])
    courier.start()
    try:
        copy = target / "datasets" / "ds_a.key"
        wait_until(lambda: copy.exists() and copy.read_bytes() == b"1", "it did not come", seconds=60)
        key.unlink()
        wait_until(lambda: not copy.exists(), "it is still there", seconds=60)
    finally:
        courier.stop()
