"""A subject account from declaration to privacy card: real digits of made-up writers, of very unequal diligence."""

import io
import json
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.datasets import load_digits

from models.portable.generator import Generator
from obscura.client import RequestError
from obscura.preparing.subjects import key_check, keyed_numbers
from obscura.wire.words import JobState
from service.datasets import vault
from service.db.dataset_tables import Dataset
from service.db.session import transaction
from tests.workers.small_trainings import TINY_DATALENS
from workers.recipes import datalens
from workers.recipes.interface import Run, TrainingData
from workers.recipes.records import records_to_sum, teacher_of_each
from workers.supervise.attempts import Attempt, ExitStatus
from workers.train.runner import run

pytestmark = pytest.mark.usefixtures("read_here")

CANARY = "CANARY7f3a"
DIGITS = [str(digit) for digit in range(10)]
TINY = {**TINY_DATALENS, "teachers": 50, "images": 20}


def upload() -> tuple[bytes, npt.NDArray[np.int64]]:
    """1,797 digits of 220 writers: the first wrote a third of them, the last ones a single digit each."""
    digits = load_digits()
    images = (digits.images * (255 / 16)).astype(np.uint8)
    share = 1.0 / np.arange(1, 201)
    writers = np.concatenate([np.random.default_rng(0).choice(200, 1777, p=share / share.sum()), np.arange(200, 220)])
    subjects = np.array([f"{CANARY}-{writer}" for writer in writers])
    buffer = io.BytesIO()
    np.savez_compressed(buffer, images=images, labels=digits.target, subjects=subjects)
    return buffer.getvalue(), writers


def declared(served: Any, account_id: str, **changes: Any) -> dict[str, Any]:
    facts = {"visibility": "private", "classes": DIGITS, "height": 8, "width": 8, "records_declared": 1800}
    return dict(served.dataset(account_id=account_id, **facts | {"subjects_declared": 220} | changes))


def test_a_training_on_a_subject_account_protects_subjects_from_upload_to_card(served, settings):
    account = served.account(unit="subject", epsilon=8.0)
    dataset = declared(served, account["id"])
    assert dataset["subjects_declared"] == 220
    body, writers = upload()
    sent = served.upload(dataset["id"], body)
    assert sent.status_code == 200, sent.text

    plan = served.send("plans", {"dataset_id": dataset["id"], "recipe": "datalens", "epsilon": 7.0, "options": TINY})
    bought = (plan["unit"], plan["facts"]["protects"], plan["facts"]["units_declared"])
    assert bought == ("subject", "all records of one subject", 220)

    job_id = served.train(dataset["id"], epsilon=7.0, options=TINY).json()["id"]
    seen: list[TrainingData] = []

    def watched(training: Run) -> Generator:
        facts, data, secret = training.facts, training.data, training.secret
        seen.append(data)
        shards = teacher_of_each(facts, data, secret, training.plan.facts["teachers"])
        homes = {writer: set(shards[writers == writer].tolist()) for writer in np.unique(writers).tolist()}
        assert all(len(home) == 1 for home in homes.values())
        assert len(set.union(*homes.values())) > 40
        assert len(records_to_sum(facts, data, secret)[0]) == len(homes)
        return datalens.train(training)

    attempt = Attempt(job_id, served.claim(job_id))
    assert run(settings, attempt, stop=threading.Event(), trainers={"datalens": watched}) is ExitStatus.ENDED
    job = served.read(f"jobs/{job_id}")
    assert job["state"] == JobState.SUCCEEDED, job["failure"]
    assert seen[0].private_subjects is not None

    release, card = (served.read(f"releases/{job['release_id']}{what}") for what in ("", "/card"))
    assert (card["unit"], card["protects"]) == ("subject", "all records of one subject")
    assert 0 < card["epsilon"] <= 7.0
    assert "that there are at most 1,800 records of at most 220 subjects" in card["assumed_public"]
    report = served.client("read").get(f"/v1/releases/{job['release_id']}/report.html").text
    assert "All records of one subject" in report
    assert CANARY not in json.dumps([sent.json(), plan, job, release, card]) + report
    assert not [path for path in settings.data_dir.rglob("*") if CANARY in path.name]
    kept = [path for path in settings.data_dir.rglob("*") if path.is_file()]
    assert not [path for path in kept if CANARY.encode() in path.read_bytes()]


def test_subjects_withdraw_and_the_answer_says_nothing_of_them(served):
    account = served.account(unit="subject")
    path, known = f"accounts/{account['id']}/withdrawals", {"subjects_recognised": True}
    assert "subject ids were not kept" in served.send(path, {"subjects": ["x"]}, status=422)["detail"]
    dataset = declared(served, account["id"], **known)
    body, writers = upload()
    assert served.upload(dataset["id"], body).status_code == 200
    before = served.everything(f"accounts/{account['id']}/entries")
    for wrong in ({}, {"subjects": []}, {"subjects": [""]}, {"subjects": [-1]}, {"subjects": ["x" * 65]}):
        served.send(path, wrong, status=422)
    answers = [
        served.send(path, {"subjects": [one]}, scope="data") for one in (f"{CANARY}-{writers[0]}", f"{CANARY}-nobody")
    ]
    withdrawn = {"account_id": account["id"], "dataset_ids": [dataset["id"]], "not_recognised": [], "waiting": False}
    assert answers == [withdrawn] * 2
    arrived = {"state": "ready", "format": "npz"}
    assert served.read(f"datasets/{dataset['id']}") | {"ready_at": None} == dataset | arrived
    assert served.everything(f"accounts/{account['id']}/entries") == before
    job_id = served.train(dataset["id"], epsilon=1.0, options=TINY).json()["id"]
    refused = served.send(path, {"subjects": ["x"]}, status=409)
    assert (refused["jobs"], CANARY in json.dumps([answers, refused])) == ([job_id], False)
    cancelled = served.send(path, {"subjects": ["x"], "cancel_jobs": True})
    assert cancelled == answers[0], "it was queued alone"
    assert served.read(f"jobs/{job_id}")["state"] == JobState.CANCELLED


def test_a_withdrawal_or_upload_under_another_key_is_refused_and_changes_nothing(served, client, settings, tmp_path):
    keys = {name: tmp_path / f"{name}.key" for name in ("first", "second")}
    for name, path in keys.items():
        path.write_text(name * 16)
    account_id = served.account(unit="subject")["id"]
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8), dtype=np.uint8)
    ids = ["anna", "anna", "bert", "carl", "dora", "emil"]

    def push(key: str | None, name: str, images: npt.NDArray[np.uint8]) -> Any:
        np.savez(tmp_path / "scans.npz", images=images, labels=np.arange(6) % 2, subjects=ids)
        wishes = {} if key is None else {"subjects_key": keys[key]}
        facts = {"at_most": 100, "subjects_at_most": 50, "account_id": account_id, "name": name}
        return client.datasets.push(tmp_path / "scans.npz", **facts, **wishes)

    def records() -> int:
        with transaction(served.factory, read_only=True) as session:
            return len(vault.Vault.of(settings).open_dataset(session.get_one(Dataset, pushed.id).content)[1])

    def withdraw(key: str | None, **more: Any) -> Any:
        return client.accounts.get(account_id).withdraw_subjects(["anna"], subjects_key=key and keys[key], **more)

    pushed = push("first", "scans", images)
    for wrong in ({"key": "second"}, {"key": None}, {"key": "first", "join_subjects": True}):
        with pytest.raises(RequestError, match=r"no subject would be found\. Nothing was changed") as refused:
            withdraw(**wrong)
        assert refused.value.status == 422
        assert (records(), served.read(f"datasets/{pushed.id}")["state"]) == (6, "ready")
    with pytest.raises(RequestError, match="with the check value"):
        push("second", "more", 255 - images)
    assert push("first", "more", 255 - images).state == "ready"
    assert withdraw("first").dataset_ids
    assert records() == 4
    assert len(served.read(f"accounts/{account_id}")) == len(served.read(f"accounts/{served.account()['id']}"))


def test_a_check_value_reveals_only_which_key_it_is_of():
    secret = b"x" * 32
    checks = {key_check(secret, join=join) for join in (False, True)} | {key_check(b"y" * 32, join=False)}
    assert len(checks) == 3
    assert all(len(check) == 16 and int(check, 16) >= 0 for check in checks)
    number = keyed_numbers(["anna"], secret)["anna"]
    assert f"{number:x}"[:8] not in "".join(checks)


def test_ids_that_are_sent_as_they_are_go_together_with_such_ids_only(served):
    account_id = served.account(unit="subject")["id"]
    body, _ = upload()
    dataset = declared(served, account_id, subjects_recognised=True)
    assert served.upload(dataset["id"], body).status_code == 200
    path = f"accounts/{account_id}/withdrawals"
    refused = served.send(path, {"subjects": ["x"], "subjects_key_check": "0" * 16}, status=422)
    assert "gets plain subject ids" in refused["detail"]
    for malformed in ("", "0" * 15, "G" * 16, "0" * 17):
        served.send(path, {"subjects": ["x"], "subjects_key_check": malformed}, status=422)
    served.send(path, {"subjects": ["x"]})
