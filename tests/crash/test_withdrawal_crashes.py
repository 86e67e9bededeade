"""A web process is killed while subjects withdraw: the old or the new content remains, and the next start continues."""

import shutil
from typing import Any

import numpy as np
import pytest

from obscura.wire.words import DatasetState
from service.datasets import vault
from service.db.dataset_tables import Dataset
from service.ingest.array_files import IMAGES_NAME
from service.sealing import SealBroken
from service.storage.interface import key_of
from tests.service.datasets.world import npz

IDS = ["anna", "bert", "anna", "carl"]
TERMS = {"owner": "clinic", "epsilon": 2.0, "delta": 1e-5, "unit": "subject", "adjacency": "add_remove"}
DECLARED = {"name": "people", "visibility": "private", "classes": ["a"], "height": 8, "width": 8, "channels": 1}
DECLARED |= {"records_declared": 10, "subjects_declared": 10, "subjects_recognised": True}


def row(scene: Any, dataset_id: str) -> Dataset:
    return scene.shop.do(lambda session: session.get_one(Dataset, dataset_id))


@pytest.mark.parametrize(("place", "left"), [("withdraw.after", 4), ("anew.before", 4), ("anew.after", 2)])
def test_a_withdrawal_that_was_begun_is_gone_on_with(scene, place, left):
    settings, images = scene.shop.settings, np.arange(4 * 8 * 8, dtype=np.uint8).reshape(4, 8, 8)
    account_id = scene.told("POST", "/v1/accounts", json=TERMS | {"name": "people"})["id"]
    dataset_id = scene.told("POST", "/v1/datasets", json=DECLARED | {"account_id": account_id})["id"]
    (scene.folder / "people.npz").write_bytes(npz(images, np.zeros(4, np.int64), subjects=np.array(IDS)))
    sent = {"params": {"format": "npz"}, "file": str(scene.folder / "people.npz")}
    assert scene.told("PUT", f"/v1/datasets/{dataset_id}/content", **sent)["state"] == "ready"
    old = shutil.copytree(settings.data_dir / key_of(dataset_id), scene.folder / "old")

    leaving = {"json": {"subjects": ["anna"]}}
    scene.request("POST", f"/v1/accounts/{account_id}/withdrawals", die_at=place, **leaving).killed()
    assert len(vault.Vault.of(settings).open_dataset(row(scene, dataset_id).content)[0]) == left
    assert vault.Vault.of(settings).key_path(dataset_id).exists(), "it died before it could destroy the old key"
    scene.reconcile()
    now = row(scene, dataset_id)
    assert (now.state, vault.Vault.of(settings).contents_of(dataset_id)) == (DatasetState.READY, [now.content])
    assert np.array_equal(vault.Vault.of(settings).open_dataset(now.content)[0], images[[1, 3]])
    for path in settings.keys_path.rglob("*.key"):
        with pytest.raises(SealBroken):
            vault.SealedArray(old, dataset_id, IMAGES_NAME, vault.read_key(path))
    again = scene.told("POST", f"/v1/accounts/{account_id}/withdrawals", **leaving)
    assert again == {"account_id": account_id, "dataset_ids": [dataset_id], "not_recognised": [], "waiting": False}
    scene.assert_sound()
