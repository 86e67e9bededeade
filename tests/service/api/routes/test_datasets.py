"""Datasets over HTTP: declaring, streaming content, refusals that change nothing, what is not shown."""

import hashlib
from contextlib import nullcontext
from typing import Any

import httpx
import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from obscura.client import ApiError
from service.datasets.vault import Vault, key_id_of, read_key
from service.db.access_tables import AuditEvent
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.inspection import inspect_ledger
from service.settings import Settings
from tests.pictures import archive, picture
from tests.service.api.conftest import DATASET, npz, problem
from tests.service.api.test_uploading import sending
from tests.together import wait_until

pytestmark = pytest.mark.usefixtures("read_here")


@pytest.fixture(scope="module")
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"known_uploads_per_day": 1, "audit_log": "on"})


def read(served: Any, dataset_id: str) -> dict[str, Any]:
    return dict(served.read(f"datasets/{dataset_id}"))


def private(served: Any, **changes: Any) -> str:
    """A private dataset, by its id; of an account of its own, where no other is named."""
    facts = {"visibility": "private", **changes}
    return str(served.dataset(**{"account_id": changes.get("account_id") or served.account()["id"], **facts})["id"])


def test_a_streamed_zip_without_content_length(served):
    body = archive(*((f"{name}/1.png", picture(size=(4, 4))) for name in ("cat", "dog")))
    chunks = (body[start : start + 100] for start in range(0, len(body), 100))
    answer = served.upload(served.dataset()["id"], chunks, "zip", scope="data")
    assert answer.status_code == 200, answer.text


def test_size_and_digest_of_private_content_stay_inside(served):
    dataset_id = private(served)
    made = served.upload(dataset_id, npz(10)).json()
    assert made["state"] == "ready"
    for shown in (made, read(served, dataset_id)):
        assert (shown["content_sha256"], shown["content_bytes"]) == (None, None)


@pytest.mark.parametrize(
    ("body", "fault"), [(b"", {"fault": "empty"}), (b"this is no npz", {}), (b"PK\x03\x04 truncated", {})]
)
def test_a_refused_upload_changes_nothing_and_may_be_repeated(served, body, fault):
    dataset_id = served.dataset()["id"]
    refused = problem(served.upload(dataset_id, body), 422, "upload_refused")
    assert refused.items() >= fault.items()
    after = read(served, dataset_id)
    assert (after["state"], after["failure_code"]) == ("declared", "upload_refused")
    assert served.upload(dataset_id, npz(10)).status_code == 200
    after = read(served, dataset_id)
    assert (after["failure_code"], len(after["content_sha256"])) == (None, 64)
    assert after["ready_at"]


def test_a_client_that_hangs_up_leaves_the_dataset_declared(served):
    dataset_id = served.dataset()["id"]
    with sending(served, dataset_id, "Content-Length: 100000"):
        wait_until(lambda: read(served, dataset_id)["state"] == "receiving")
        assert served.upload(dataset_id, npz(4)).status_code == 409
    wait_until(lambda: read(served, dataset_id)["state"] == "declared")
    assert served.upload(dataset_id, npz(4)).status_code == 200


def test_declarations_that_cannot_be_right(served):
    wrong: list[dict[str, Any]] = [{"visibility": "private"}, {"account_id": "acc_x"}, {"classes": []}]
    wrong += [{"channels": 2}, {"height": 0}, {"records_declared": 0}, {"records_declared": 10**12}]
    for changes in wrong:
        served.send("datasets", DATASET | changes, status=422)


def test_known_images_join_their_account_and_the_answer_says_nothing_more(served):
    first, second = served.account()["id"], served.account()["id"]
    answers = []
    for account_id in (first, second):
        dataset = served.dataset(visibility="private", account_id=account_id)
        assert dataset["joined"] is False
        answers.append(served.upload(dataset["id"], npz(10)).json())
        assert read(served, dataset["id"]) == answers[-1]
    assert [(answer["joined"], answer["account_id"]) for answer in answers] == [(False, first), (True, first)]
    assert answers[0].keys() == answers[1].keys()
    assert served.train(answers[1]["id"]).json()["account_id"] == first
    assert served.balance(first)["reserved_nano"] > 0 == served.balance(second)["reserved_nano"]


@pytest.mark.parametrize("kind", ["joined", "known_as_private"])
def test_answers_that_reveal_known_images_are_limited_by_key_and_by_project_and_recorded(served, kind):
    """One image a guess: the answer says whether another account holds it."""
    assert served.upload(private(served), npz(10)).status_code == 200
    other = served.account()["id"]

    def guess(name: str, images: bytes) -> httpx.Response:
        declared = {"visibility": "private", "account_id": other} if kind == "joined" else {}
        served.named(name, "data")
        return served.upload(served.dataset(**declared)["id"], images, scope=name)

    member, fresh = npz(10), npz(2, seed=9)
    status = 200 if kind == "joined" else 422
    for key in range(5):  # of each, the limit; of the project, five times as many
        assert guess(f"key {key}", member).status_code == status
        refused = [guess(f"key {key}", images) for images in (member, fresh)]
        assert [each.json()["code"] for each in refused] == ["quota_exceeded"] * 2
        assert refused[0].json()["detail"] == refused[1].json()["detail"], "it does not depend on the images"
    late = guess("a new key", member)
    assert (late.json()["code"], late.json()["uploads_max"]) == ("quota_exceeded", 5)
    acts = [event.action for event in served.rows(AuditEvent)]
    assert acts.count("upload joined" if kind == "joined" else "upload of known images refused") == 5


def test_uploads_of_new_images_and_images_of_the_same_account_are_not_limited(served):
    account_id = served.account()["id"]
    for _ in range(3):
        answer = served.upload(private(served, account_id=account_id), npz(10))
        assert (answer.status_code, answer.json()["joined"]) == (200, False)


def test_deleting_destroys_the_images_and_keeps_the_books(served):
    dataset_id = private(served)
    served.upload(dataset_id, npz(10))
    job = served.train(dataset_id).json()
    path = f"datasets/{dataset_id}"
    assert served.ask("DELETE", path, scope="data", status=409)["jobs"] == [job["id"]]
    served.send(f"jobs/{job['id']}/cancel")
    for _ in range(2):
        assert served.ask("DELETE", path, scope="data")["state"] == "deleted"
    assert not list(served.data_dir.glob(f"*/{dataset_id}*"))
    assert not list(served.data_dir.glob(f"keys/*/{dataset_id}*"))
    served.read(f"jobs/{job['id']}")
    assert served.train(dataset_id).status_code == 422
    assert served.upload(dataset_id, npz(10)).status_code == 409


@pytest.mark.parametrize("way", ["request", "client", "command"])
def test_trainings_are_cancelled_with_the_deletion_where_that_is_asked_for(served, client, way):
    def delete(cancel: bool) -> None:
        if way == "request":
            served.client("data").delete(f"/v1/{path}", params={"cancel_jobs": cancel})
        elif way == "command":
            flags = ["--cancel-jobs"] if cancel else []
            assert (served.obscura("datasets", "delete", dataset_id, "--yes", *flags).exit_code == 0) == cancel
        else:
            with nullcontext() if cancel else pytest.raises(ApiError):
                client.datasets.get(dataset_id).delete(cancel_jobs=cancel)

    dataset_id = private(served)
    path = f"datasets/{dataset_id}"
    served.upload(dataset_id, npz(10))
    job_id = served.train(dataset_id, epsilon=0.1).json()["id"]
    for cancel, states in ((False, ["ready", "queued"]), (True, ["deleted", "cancelled"])):
        delete(cancel)
        assert [served.read(each)["state"] for each in (path, f"jobs/{job_id}")] == states


def test_the_order_of_a_training_binds_its_dataset_and_tells_nothing_of_the_content(served):
    settings, account_id, body = served.app.state.settings, served.account()["id"], npz(20)
    dataset_id = private(served, account_id=account_id)

    def log() -> Any:
        return served.client("read").get(f"/v1/accounts/{account_id}/entries")

    assert served.upload(dataset_id, body).status_code == 200
    row = served.do(Session.get_one, Dataset, dataset_id)
    assert row.vault_key_id == key_id_of(read_key(Vault.of(settings).key_path(dataset_id)))
    training = served.train(dataset_id).json()
    assert log().json()["items"][-1]["details"]["order"].keys() == {"job", "dataset"}
    for secret in (row.content_sha256, row.vault_key_id, hashlib.sha256(body).hexdigest()):
        assert secret not in log().text
    assert served.do(Session.scalar, select(Job.secret).where(Job.id == training["id"])) not in log().text
    assert inspect_ledger(settings, served.factory, thorough=True).clean
    served.change(Dataset, dataset_id, records_declared=row.records_declared + 1)
    codes = {finding.code.value for finding in inspect_ledger(settings, served.factory).findings}
    assert codes == {"job_mismatch"}
