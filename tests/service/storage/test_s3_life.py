"""A service lives with a bucket, and only with its own database."""

from datetime import UTC, datetime

import pytest

from service import installation
from service.db.session import make_engine, make_session_factory
from service.settings import Settings
from service.storage import storage_of
from tests.service.storage.contract import KEY, RELEASE, publish
from tests.service.storage.whole_life import live
from tests.workers.conftest import build
from workers.supervise import reconcile

pytest.importorskip("botocore", reason="needs botocore: pip install '.[s3]'")
from service.storage.s3.bucket import Bucket


def test_a_training_its_samples_and_all_that_is_verified_need_no_folder(bucket_url, tmp_path, sqlite_url, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shop = build(tmp_path / "var", sqlite_url, storage=bucket_url)
    try:
        live(shop)
    finally:
        shop.factory.kw["bind"].dispose()


def test_a_database_that_is_not_the_buckets_removes_nothing(bucket_url, tmp_path, sqlite_url):
    settings = Settings(data_dir=tmp_path / "var", storage=bucket_url, database_url=sqlite_url, trash_days=0)
    storage = storage_of(settings)
    storage.write("installation", b"ins_" + b"a" * 20)
    publish(storage)
    storage.move(KEY, f"trash/20200102T030405Z.releases.{RELEASE}")
    publish(storage)
    before = [listed.name for listed in Bucket(bucket_url).list("")]
    engine = make_engine(settings.database_url, pool_size=1)
    try:
        factory, now = make_session_factory(engine), datetime.now(UTC)
        assert not installation.pair(settings, factory, now=now)
        assert reconcile.sweep(settings, factory, now=now) == 0
        assert [listed.name for listed in Bucket(bucket_url).list("")] == before
    finally:
        engine.dispose()
