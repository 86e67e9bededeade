"""A web process dies in a job request, upload, deletion or withdrawal; the client repeats, the service restarts."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from obscura.wire.words import DatasetState, EntryKind, HoldState, JobState
from service.datasets import vault
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.db.session import transaction
from service.ingest.array_files import IMAGES_NAME
from service.sealing import SealBroken
from service.storage.interface import key_of
from tests.conftest import declared_row
from tests.crash.conftest import on_both_databases
from tests.service.datasets.world import npz
from tests.workers.conftest import OPTIONS, build
from workers.supervise.reconcile import reconcile
from workers.supervise.supervisor import runner_environment


def ask(scene: Any, die_at: str = "", **more: Any) -> Any:
    """Request a training, always with the same key."""
    body = {"dataset_id": scene.shop.dataset_id, "recipe": "datalens", "epsilon": 1.0, "options": OPTIONS}
    body |= {"evaluation_dataset_id": None}
    key = {"Idempotency-Key": "the-same-key"}
    return scene.request("POST", "/v1/jobs", die_at=die_at, json=body, headers=key, **more)


def jobs_of(scene: Any) -> list[str]:
    return scene.shop.do(lambda session: list(session.scalars(select(Job.id))))


def rung(scene: Any) -> list[str]:
    """Return the jobs that messages were sent for."""
    path: Path = scene.folder / "bell"
    return path.read_text().split() if path.exists() else []


@on_both_databases
@pytest.mark.parametrize(("place", "accepted"), [("hold.after", 0), ("accept.before", 0), ("accept.after", 1)])
def test_a_client_that_never_heard_an_answer_asks_again_and_gets_one_job(scene, place, accepted):
    ask(scene, place).killed()
    assert len(jobs_of(scene)) == accepted
    assert (scene.shop.balance().reserved_nano > 0) is (accepted > 0)
    told = json.loads(ask(scene).survived().said)
    assert jobs_of(scene) == [told["id"]]
    assert scene.entries(told["id"]) == [EntryKind.HOLD]
    assert scene.shop.balance().reserved_nano == scene.shop.hold(told["id"]).amount_nano
    scene.attempt(told["id"]).survived()
    scene.assert_sound()


@pytest.mark.parametrize(("place", "heard"), [("ring.before", 0), ("ring.after", 1)])
def test_a_doorbell_that_died_is_rung_again_and_twice_is_harmless(scene, place, heard):
    ask(scene, place, linger=True).killed()
    (job_id,) = jobs_of(scene)
    assert rung(scene) == [job_id] * heard
    bell: list[str] = []
    shop = scene.shop
    reconcile(shop.settings, shop.factory, send=lambda _, args: bell.append(args[0]), now=shop.job(job_id).created_at)
    assert bell == [job_id]
    claims = [scene.claim(job_id) for _ in range(heard + 1)]  # one for each message
    assert [claim.number for claim in claims if claim is not None] == [1]


@pytest.mark.parametrize("place", ["upload.before", "upload.after"])
def test_a_killed_upload_leaves_a_declared_dataset_that_takes_another(scene, place):
    dataset_id, settings = declare(scene), scene.shop.settings
    images = np.arange(10 * 8 * 8, dtype=np.uint8).reshape(10, 8, 8)
    (scene.folder / "upload.npz").write_bytes(npz(images, np.zeros(10, np.int64)))
    sent = {"method": "PUT", "path": f"/v1/datasets/{dataset_id}/content", "params": {"format": "npz"}}
    sent |= {"file": str(scene.folder / "upload.npz")}

    scene.request(die_at=place, **sent).killed()
    assert (settings.data_dir / key_of(dataset_id)).exists() is (place == "upload.after")
    assert state(scene, dataset_id) == "receiving", "its process may live, for all that others know"
    assert (settings.data_dir / key_of(dataset_id)).exists() is (place == "upload.after")
    scene.reconcile()  # an hour later
    assert state(scene, dataset_id) == "declared"
    assert not (settings.data_dir / key_of(dataset_id)).exists()
    assert not vault.Vault.of(settings).key_path(dataset_id).exists()
    assert list((settings.data_dir / "quarantine").iterdir()) == []

    assert scene.told(**sent)["state"] == "ready"
    assert np.array_equal(vault.Vault.of(settings).open_dataset(dataset_id)[0], images)


@pytest.mark.parametrize(("place", "key_gone"), [("delete.after", False), ("shred.after", True)])
def test_a_deletion_that_was_begun_is_finished_by_the_next_start(scene, place, key_gone):
    dataset_id, settings = scene.shop.dataset_id, scene.shop.settings
    scene.request("DELETE", f"/v1/datasets/{dataset_id}", die_at=place).killed()
    assert vault.Vault.of(settings).key_path(dataset_id).exists() is not key_gone
    assert (settings.data_dir / key_of(dataset_id)).exists()
    assert state(scene, dataset_id) == "deleted"
    assert not vault.Vault.of(settings).key_path(dataset_id).exists()
    assert not (settings.data_dir / key_of(dataset_id)).exists()
    scene.assert_sound()


def declare(scene: Any) -> str:
    with transaction(scene.shop.factory) as session:
        ready = session.get_one(Dataset, scene.shop.public_id)
        facts = {name: getattr(ready, name) for name in ("classes", "height", "width", "channels")}
        dataset = declared_row(None, ready.created_at, id="ds_" + "a" * 20, name="late", records_declared=10, **facts)
        session.add(dataset)
        assert session.scalar(select(func.count()).select_from(Dataset)) == 3
        return dataset.id


def state(scene: Any, dataset_id: str) -> Any:
    return scene.told("GET", f"/v1/datasets/{dataset_id}")["state"]


def test_a_service_told_to_stop_queues_its_training_again(sqlite_url, tmp_path, monkeypatch, warm):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shop = build(tmp_path / "var", sqlite_url)
    job_id = shop.train(images=8000, images_per_iteration=2)
    settings = shop.settings.model_copy(update={"lease_seconds": 60, "port": 0, "attempts_max": 1})
    command = [warm, "-m", "obscura.cli", "up"]
    with (tmp_path / "log").open("wb") as log:
        service = subprocess.Popen(command, env=runner_environment(settings, os.environ), stdout=log, stderr=log)
        try:
            shop.wait(lambda: shop.job(job_id).progress.get("stage") == "votes", seconds=300)
            service.send_signal(signal.SIGTERM)
            assert service.wait(timeout=300) == 0
        finally:
            service.kill()
            service.wait()
    job, hold = shop.job(job_id), shop.hold(job_id)
    # Were this an attempt lost, it would have been the last one.
    assert (job.state, job.attempt, job.attempts_lost) == (JobState.QUEUED, 1, 0)
    assert (hold.state, shop.balance().reserved_nano) == (HoldState.ARMED, hold.amount_nano)
    assert 0 < hold.charged_nano < hold.amount_nano
    assert shop.claim(job_id).number == 2
    shop.factory.kw["bind"].dispose()


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
