"""Deleted and withdrawn data, limits that change, sealed checkpoints: what was charged is spent, and certified."""

import dataclasses
import io
import json
import shutil
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from obscura.wire.schemas import DatasetRequest
from obscura.wire.words import DatasetState, HoldState, JobState
from privacy.accounting.filter import Filter
from privacy.mechanisms.noise import derive_key
from service import jobs, ledger
from service.datasets import deletion, receiving, states, withdrawal
from service.datasets.reading import Sent
from service.datasets.vault import DatasetContext, Vault, destroy_file, make_fingerprint_key, read_key, write_key
from service.db.dataset_tables import Dataset
from service.db.job_tables import FailureCode
from service.db.session import transaction
from service.errors import Conflict, LedgerCorruption, NotFound
from service.identity.access import find
from service.inspection import inspect_ledger
from service.reports import DATA, read_report
from service.sealing import CHUNK_BYTES, SealBroken, new_key
from service.storage import storage_of
from service.storage.folder import FolderStorage
from service.storage.interface import digest_directory, work_key
from tests.service.steps import raise_limit
from tests.workers.conftest import on_either_database
from tests.workers.small_trainings import digits, published_by, work
from tests.workers.tiny_runner import TRAINERS as TINY
from workers.recipes.interface import Cancelled, CheckpointDamaged, Run, TrainingData, load_checkpoint, save_checkpoint
from workers.recipes.registry import TRAINERS
from workers.supervise.attempts import ExitStatus
from workers.supervise.reconcile import reconcile
from workers.train.inputs import CHECKPOINT_FILE, SealedFolder, read_dataset_key
from workers.train.orders import read_training


def test_a_training_on_deleted_data_ends_and_no_copy_can_be_read(workshop, tiny_runner, monkeypatch, tmp_path):
    settings, dataset_id = workshop.settings, workshop.dataset_id
    release = published_by(workshop, workshop.train(), TINY)
    before = workshop.balance()
    images = Vault.of(settings).open_dataset(dataset_id)[0].copy()

    monkeypatch.setenv("TINY_PAUSE", "0.2")
    job_id = workshop.train()
    drawing = workshop.sample(release.id)
    thread = threading.Thread(target=workshop.supervise, args=(workshop.claim(job_id), tiny_runner))
    thread.start()
    workshop.wait((settings.work_path / job_id / CHECKPOINT_FILE).exists, seconds=240)
    key = read_key(Vault.of(settings).key_path(dataset_id))
    shutil.copytree(settings.data_dir, tmp_path / "copy", ignore=shutil.ignore_patterns("keys"))

    now = datetime.now(UTC)
    with pytest.raises(Conflict, match=job_id):
        deletion.delete(settings, workshop.factory, dataset_id, cancel_jobs=False, now=now)
    deletion.delete(settings, workshop.factory, dataset_id, cancel_jobs=True, now=now)
    assert not Vault.of(settings).key_path(dataset_id).exists(), "the key does not wait for the training"
    with pytest.raises(NotFound):
        Vault.of(settings).open_dataset(dataset_id)
    thread.join(timeout=240)

    job, hold, balance = workshop.job(job_id), workshop.hold(job_id), workshop.balance()
    assert (job.state, hold.state) == (JobState.CANCELLED, HoldState.CAPTURED)
    assert 0 < hold.charged_nano == hold.captured_nano < hold.amount_nano
    assert (balance.spent_nano, balance.reserved_nano) == (before.spent_nano + hold.charged_nano, 0)
    reconcile(settings, workshop.factory, send=lambda *_: None, now=datetime.now(UTC))
    assert workshop.do(find, Dataset, dataset_id).state is DatasetState.DELETED
    kept = [path for path in settings.data_dir.rglob("*") if path.is_file()]
    assert not [path for path in kept if key in path.read_bytes()]
    assert not [path for path in kept if dataset_id in str(path) or path.is_relative_to(settings.work_path / job_id)]

    # The copies that somebody made in time, back in their place.
    shutil.copytree(tmp_path / "copy" / "datasets" / dataset_id, settings.data_dir / "datasets" / dataset_id)
    checkpoints = SealedFolder(FolderStorage(tmp_path / "copy"), work_key(job_id), new_key(), f"checkpoint {job_id}")
    with pytest.raises(NotFound):
        Vault.of(settings).open_dataset(dataset_id)
    write_key(Vault.of(settings).key_path(dataset_id), new_key())
    with pytest.raises(SealBroken):
        Vault.of(settings).open_dataset(dataset_id)
    with pytest.raises(CheckpointDamaged):
        load_checkpoint(checkpoints)
    destroy_file(Vault.of(settings).key_path(dataset_id))
    write_key(Vault.of(settings).key_path(dataset_id), key)
    np.testing.assert_array_equal(Vault.of(settings).open_dataset(dataset_id)[0], images)
    assert load_checkpoint(dataclasses.replace(checkpoints, key=key))
    Vault.of(settings).shred(dataset_id)

    # What was published stays, and can be drawn from.
    assert digest_directory(settings.data_dir / release.artifact_dir) == release.artifact_sha256
    workshop.work(drawing, TINY)
    assert workshop.job(drawing).state is JobState.SUCCEEDED


def test_an_attempt_that_finds_the_key_destroyed_fails_and_spends_what_was_charged(workshop):
    """The first attempt is interrupted while it trains, the key goes, and nobody has cancelled anything."""
    job_id = workshop.begin()
    charged_nano = workshop.hold(job_id).charged_nano
    assert charged_nano > 0
    destroy_file(Vault.of(workshop.settings).key_path(workshop.dataset_id))

    assert workshop.work(job_id, TINY) is ExitStatus.ENDED
    workshop.assert_settled(job_id, JobState.FAILED)
    assert workshop.job(job_id).failure_code is FailureCode.DATASET_UNAVAILABLE
    assert workshop.balance().spent_nano == charged_nano


def test_the_noise_of_a_training_cannot_be_computed_from_the_database_alone(workshop):
    """A recipe's secret is the same in every attempt at a job, and nobody has it who lacks the dataset's key."""
    job_id = workshop.train()
    seen: list[tuple[bytes, bytes]] = []

    def spy(training: Run) -> NoReturn:
        with transaction(workshop.factory, read_only=True) as session:
            stored = jobs.secret_of(session, job_id=job_id, attempt=training.attempt)
            seen.append((training.secret, stored))
        raise Cancelled

    for _ in range(2):
        assert workshop.work(job_id, {"datalens": spy}) is ExitStatus.INTERRUPTED
        workshop.give_back(job_id, workshop.job(job_id).attempt)
    (secret, stored), again = seen
    assert again == (secret, stored)
    assert secret != stored
    key = read_key(Vault.of(workshop.settings).key_path(workshop.dataset_id))
    assert secret == derive_key(stored + key, "training", job_id)
    assert secret != derive_key(stored + new_key(), "training", job_id)


# --- withdrawn subjects -----------------------------------------------------------------------------------------------

IDS = np.array([f"writer {number % 40}" for number in range(200)])
GONE = ("writer 3", "writer 17", "writer that never was")


@pytest.fixture
def writers(workshop: Any) -> Any:
    """The workshop with an account whose subjects are recognised, which its trainings read."""
    make_fingerprint_key(workshop.settings)
    data, now = digits(200), datetime.now(UTC)
    terms = {"owner": "office", "epsilon": 8.0, "delta": 1e-4, "unit": "subject", "adjacency": "add_remove"}
    workshop.account_id = workshop.do(ledger.open_account, name="known writers", now=now, **terms).id
    facts = {"name": "digits", "visibility": "private", "classes": list(data.classes), "height": 8, "width": 8}
    facts |= {"channels": 1, "records_declared": 1500, "subjects_declared": 400, "subjects_recognised": True}
    wanted = DatasetRequest(account_id=workshop.account_id, **facts)
    declared = workshop.do(states.declare, workshop.settings, wanted, now=now)
    workshop.dataset_id, buffer = declared.id, io.BytesIO()
    np.savez(buffer, images=data.private_images, labels=data.private_labels, subjects=IDS)
    sent = Sent(iter([buffer.getvalue()]), "npz")
    receiving.receive(DatasetContext(workshop.settings, workshop.factory, lambda: datetime.now(UTC)), declared.id, sent)
    return workshop


def withdraw(shop: Any, *ids: str) -> withdrawal.Withdrawal:
    now = datetime.now(UTC)
    return withdrawal.withdraw(shop.settings, shop.factory, shop.account_id, ids, cancel_jobs=False, now=now)


def test_a_later_training_reads_what_is_left_and_costs_the_same(writers):
    read: list[Any] = []

    def watched(run: Run) -> Any:
        read.append(run.data)
        return TINY["datalens"](run)

    before = published_by(writers, writers.train(teachers=20), {"datalens": watched})
    assert not withdraw(writers, *GONE).waiting
    job_id = writers.train(teachers=20)
    work(writers, job_id, {"datalens": watched})
    after = writers.release_of(job_id)
    all_images, left = digits(200), ~np.isin(IDS, GONE)
    assert left.sum() == 190
    for data, kept in zip(read, (np.ones(200, bool), left), strict=True):
        assert np.array_equal(data.private_images, all_images.private_images[kept])
        assert np.array_equal(data.private_labels, all_images.private_labels[kept])
        assert len(data.private_subjects) == kept.sum()
    assert set(read[1].private_subjects.tolist()) < set(read[0].private_subjects.tolist())
    assert after.card["accounting"]["cost_nano"] == before.card["accounting"]["cost_nano"], (
        "declared bounds and prices are as they were"
    )
    assert inspect_ledger(writers.settings, writers.factory).findings == ()


def test_no_training_opens_another_content_than_the_row_names(writers):
    """The old key that comes back, under the new name, is not the one that the dataset's row tells of."""
    old = read_key(Vault.of(writers.settings).key_path(writers.dataset_id))
    withdraw(writers, *GONE)
    job_id = writers.train(teachers=20)
    context = writers.context(writers.claim(job_id))
    training = writers.do(read_training, context.attempt)
    read_dataset_key(context, training.dataset)
    with transaction(writers.factory, read_only=True) as session:
        path = Vault.of(writers.settings).key_path(session.get_one(Dataset, writers.dataset_id).content)
    path.write_bytes(old)
    with pytest.raises(LedgerCorruption, match="differs from the key of its upload"):
        read_dataset_key(context, training.dataset)


# --- limits that change -----------------------------------------------------------------------------------------------


# Steps on samples, whose price depends on the account's rate.
STEPS: dict[str, Any] = {"recipe": "dp_classifier", "architecture": "cnn", "expected_batch": 30, "epochs": 0.2}


def filter_now(workshop: Any) -> Filter:
    return ledger.filter_of(workshop.do(ledger.get_account, workshop.account_id))


def lost_on_the_way(run: Any) -> Any:
    """The recipe in a process that is gone once it has paid, as after kill -9."""

    def progress(**said: Any) -> bool:
        if run.budget.charged_nano:
            raise SystemExit
        return bool(run.progress(**said))

    return TRAINERS[run.plan.recipe](replace(run, progress=progress))


LOST = dict.fromkeys(TRAINERS, lost_on_the_way)


@on_either_database
def test_a_limit_that_is_raised_while_a_training_runs_and_is_resumed_leaves_it_its_price(workshop):
    """Raised between its attempts, and again in the second one; the next training is priced at the new rate."""
    before, job_id = filter_now(workshop), workshop.train(**STEPS)
    with pytest.raises(SystemExit):
        workshop.work(job_id, LOST)
    workshop.do(raise_limit, workshop.account_id, 30.0, datetime.now(UTC))
    workshop.give_back(job_id)

    def raised_again(run: Any) -> Any:
        workshop.do(raise_limit, workshop.account_id, 50.0, datetime.now(UTC))  # while the hold is armed
        return TRAINERS["dp_classifier"](run)

    published_by(workshop, job_id, {"dp_classifier": raised_again})
    card, hold, job = workshop.release_of(job_id).card, workshop.hold(job_id), workshop.job(job_id)
    accounting = card["accounting"]
    assert accounting["cost_nano"] == hold.captured_nano == job.plan["cost_nano"]
    assert (accounting["rate"], accounting["base"], accounting["capacity_nano"]) == (
        before.rate,
        before.base,
        before.capacity_nano,
    )
    assert card["epsilon"] == before.epsilon_of(hold.captured_nano) <= job.epsilon
    assert inspect_ledger(workshop.settings, workshop.factory, thorough=True).findings == ()
    later, present = workshop.train(**STEPS), filter_now(workshop)
    assert workshop.work(later) == ExitStatus.ENDED
    assert workshop.release_of(later).card["accounting"]["rate"] == present.rate < before.rate


@pytest.mark.parametrize("recipe", [STEPS, {"images": 120}], ids=["sampled steps", "votes"])
def test_a_limit_that_is_lowered_below_what_a_training_charges_lets_it_publish(workshop, recipe):
    """The account is frozen, but what was armed is resumed: nothing of what was paid for is lost."""
    before, job_id = filter_now(workshop), workshop.train(**{"epsilon": 3.0, **recipe})
    with pytest.raises(SystemExit):
        workshop.work(job_id, LOST)
    facts = {"account_id": workshop.account_id, "epsilon": 0.1, "reason": "enough"}
    workshop.do(ledger.limits.lower_limit, **facts, now=datetime.now(UTC))
    workshop.give_back(job_id)
    published_by(workshop, job_id)
    balance, card = workshop.balance(), workshop.release_of(job_id).card["accounting"]
    assert workshop.do(ledger.get_account, workshop.account_id).frozen
    if recipe is not STEPS:
        files, release = storage_of(workshop.settings), workshop.release_of(job_id).id
        report = json.loads(read_report(files, workshop.factory, release, DATA))
        assert report["release"]["account_epsilon"] >= balance.guaranteed_epsilon >= balance.spent_epsilon > 0.1
        assert report["release"]["account_attacker_certainty_max"] >= balance.attacker_certainty_max
    assert balance.spent_nano > balance.capacity_nano
    assert (card["capacity_nano"], card["cost_nano"]) == (before.capacity_nano, balance.spent_nano)
    assert inspect_ledger(workshop.settings, workshop.factory, thorough=True).findings == ()


# --- checkpoints: whole or absent, and unreadable without the key of the dataset that they were made from -------------

CANARY = b"CANARY7f3a" * 20
KEY = new_key()


def folder(directory: Path, *, key: bytes = KEY, context: str = "job one") -> SealedFolder:
    return SealedFolder(FolderStorage(directory.parent), directory.name, key, context)


def private_state() -> dict[str, Any]:
    return {"weights": torch.from_numpy(np.frombuffer(CANARY, np.uint8).copy()), "more": torch.arange(50_000)}


def test_a_checkpoint_is_whole_or_absent(tmp_path):
    place = folder(tmp_path)
    assert load_checkpoint(place) == {}
    state = {"weights": torch.arange(4), "optimizer": {"lr": [0.1]}}
    save_checkpoint(place, state)

    class Unreadable:
        def __reduce__(self) -> Any:
            raise OSError(28, "full")

    with pytest.raises(OSError, match="full"):
        save_checkpoint(place, {"weights": Unreadable()})
    found = load_checkpoint(place)
    assert found["optimizer"] == {"lr": [0.1]}
    assert torch.equal(found["weights"], torch.arange(4))
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT_FILE]
    assert (tmp_path / CHECKPOINT_FILE).stat().st_mode & 0o077 == 0


def test_nothing_shows_what_it_holds(tmp_path):
    place = folder(tmp_path)
    save_checkpoint(place, private_state())
    assert load_checkpoint(place)["weights"].numpy().tobytes() == CANARY
    assert CANARY[:10] not in (tmp_path / CHECKPOINT_FILE).read_bytes()
    assert KEY.hex() not in repr(place)
    assert repr(KEY) not in repr(place)
    assert repr(TrainingData(np.zeros(2), np.zeros(2), ("a",))) == "TrainingData(<private>, classes=1)"


@pytest.mark.parametrize("change", [{"key": new_key()}, {"context": "job two"}])
def test_another_key_or_another_job_opens_nothing(tmp_path, change):
    save_checkpoint(folder(tmp_path), private_state())
    with pytest.raises(CheckpointDamaged):
        load_checkpoint(folder(tmp_path, **change))


@pytest.mark.parametrize("at", [0, 60, CHUNK_BYTES + 500, -1])
def test_a_changed_byte_is_noticed_wherever_it_is(tmp_path, at):
    save_checkpoint(folder(tmp_path), private_state())
    path = tmp_path / CHECKPOINT_FILE
    content = bytearray(path.read_bytes())
    assert len(content) > 3 * CHUNK_BYTES
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointDamaged):
        load_checkpoint(folder(tmp_path))


def test_a_link_is_not_followed(tmp_path):
    save_checkpoint(folder(tmp_path / "real"), private_state())
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / CHECKPOINT_FILE).symlink_to(tmp_path / "real" / CHECKPOINT_FILE)
    assert load_checkpoint(folder(tmp_path / "work")) == {}
