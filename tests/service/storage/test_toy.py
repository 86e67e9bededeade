"""A second storage is one file and one line: a service works with it from upload to deletion."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from obscura.cli.console import CliError, Output
from service.cli.serving import serve
from service.datasets import reading
from service.datasets.reading import Upload
from service.datasets.vault import Vault, make_fingerprint_key
from service.errors import InvalidInput
from service.settings import Settings
from service.storage import BACKENDS, storage_of
from tests.service.datasets.uploading import npz, receive
from tests.service.storage.contract import StorageContract
from tests.service.storage.toy_storage import ToyStorage
from tests.service.storage.whole_life import live
from tests.workers.conftest import Workshop, build


@pytest.fixture
def storage(tmp_path: Path) -> ToyStorage:
    return ToyStorage(Settings(data_dir=tmp_path / "var"))


class TestToy(StorageContract):
    """The contract, kept by rows of a table."""


@pytest.fixture
def shop(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    monkeypatch.setitem(BACKENDS, "toy", ToyStorage)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shop = build(tmp_path / "var", sqlite_url, storage="toy")
    yield shop
    shop.factory.kw["bind"].dispose()


def test_a_training_its_samples_and_all_that_is_verified_need_no_folder(shop):
    live(shop)


def test_an_upload_is_published_and_swept_there(tmp_path, monkeypatch):
    monkeypatch.setitem(BACKENDS, "toy", ToyStorage)
    settings = Settings(data_dir=tmp_path / "var", storage="toy")
    make_fingerprint_key(settings)
    upload = Upload("ds_" + "a2" * 10, ("cat", "dog"), height=4, width=4, channels=1, records_declared=100)
    images, labels = np.zeros((2, 4, 4), np.uint8), np.array([0, 1])
    receive(settings, upload, iter([npz(images, labels)]), None, "npz")
    np.testing.assert_array_equal(Vault.of(settings).open_dataset(upload.dataset_id)[1], labels)
    assert reading.sweep(settings, set) == 0
    assert not (settings.data_dir / "datasets").exists()


def test_a_storage_that_nobody_has_made_is_refused(tmp_path):
    settings, output = Settings(data_dir=tmp_path, storage="cloud"), Output(as_json=False)
    with pytest.raises(InvalidInput, match="OBSCURA_STORAGE is cloud; choose one of folder"):
        storage_of(settings)
    with pytest.raises(CliError, match="OBSCURA_STORAGE is cloud; choose one of folder"):
        serve(settings, output)
