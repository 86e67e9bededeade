"""Datasets over HTTP: declaring, streaming content, refusals that change nothing, what is not shown."""

from __future__ import annotations

import hashlib
import io
import socket
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from sqlalchemy import select
from typer.testing import CliRunner

from service import cli
from service.client import ApiError, Client
from service.datasets.vault import key_id_of, key_path, read_key
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.db.session import transaction
from service.inspection import inspect_ledger


def read(served: Any, dataset_id: str) -> dict[str, Any]:
    return dict(served.client("read").get(f"/v1/datasets/{dataset_id}").json())


def test_declaring_and_uploading(served: Any, make_npz: Callable[..., bytes]) -> None:
    dataset = served.dataset()
    assert dataset["state"] == "declared"
    answer = served.upload(dataset["id"], make_npz(10))
    assert answer.status_code == 200, answer.text
    assert answer.json()["state"] == "ready"
    assert len(answer.json()["content_sha256"]) == 64
    assert read(served, dataset["id"])["ready_at"] is not None


def test_a_streamed_zip_without_content_length(served: Any) -> None:
    picture = io.BytesIO()
    Image.new("L", (4, 4), 90).save(picture, "PNG")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as target:
        for name in ("cat/1.png", "dog/1.png"):
            target.writestr(name, picture.getvalue())
    body = archive.getvalue()

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(body), 100):
            yield body[start : start + 100]

    dataset = served.dataset()
    answer = served.client("data").put(
        f"/v1/datasets/{dataset['id']}/content", params={"format": "zip"}, content=chunks()
    )
    assert answer.status_code == 200, answer.text


def test_size_and_digest_of_private_content_stay_inside(served: Any, make_npz: Callable[..., bytes]) -> None:
    dataset = served.dataset(visibility="private", account_id=served.account()["id"])
    made = served.upload(dataset["id"], make_npz(10)).json()
    assert made["state"] == "ready"
    for shown in (made, read(served, dataset["id"])):
        assert shown["content_sha256"] is None
        assert shown["content_bytes"] is None


@pytest.mark.parametrize(
    ("body", "fault"),
    [(b"", "empty"), (b"this is no npz", None), (b"PK\x03\x04 truncated", None)],
)
def test_a_refused_upload_changes_nothing_and_may_be_repeated(
    served: Any, make_npz: Callable[..., bytes], body: bytes, fault: str | None
) -> None:
    dataset = served.dataset()
    refused = served.upload(dataset["id"], body)
    assert refused.status_code == 422
    assert refused.json()["code"] == "upload_refused"
    assert fault is None or refused.json()["fault"] == fault
    after = read(served, dataset["id"])
    assert after["state"] == "declared"
    assert after["failure_code"] == "upload_refused"
    assert served.upload(dataset["id"], make_npz(10)).status_code == 200
    assert read(served, dataset["id"])["failure_code"] is None


def test_labels_outside_the_declared_classes(served: Any, make_npz: Callable[..., bytes]) -> None:
    refused = served.upload(served.dataset()["id"], make_npz(10, classes=3))
    assert refused.status_code == 422
    assert refused.json()["fault"] == "label_range"


def test_content_never_changes_once_it_is_there(served: Any, make_npz: Callable[..., bytes]) -> None:
    dataset = served.dataset()
    served.upload(dataset["id"], make_npz(10))
    again = served.upload(dataset["id"], make_npz(12))
    assert again.status_code == 409
    assert again.json()["state"] == "ready"


def test_an_upload_above_the_limit(served: Any) -> None:
    settings = served.app.state.settings
    object.__setattr__(settings, "upload_bytes_max", 1000)
    answer = served.upload(served.dataset()["id"], b"x" * 1001)
    assert answer.status_code == 413
    assert answer.json()["limit_bytes"] == 1000


def test_a_client_that_hangs_up_leaves_the_dataset_declared(served: Any, make_npz: Callable[..., bytes]) -> None:
    dataset = served.dataset()
    address = urlsplit(served.url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(
            f"PUT /v1/datasets/{dataset['id']}/content?format=npz HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {served.tokens['data']}\r\nContent-Length: 100000\r\n\r\nhalf".encode()
        )
        wait_for(lambda: read(served, dataset["id"])["state"] == "receiving")
        second = served.upload(dataset["id"], make_npz(4))
        assert second.status_code == 409
    wait_for(lambda: read(served, dataset["id"])["state"] == "declared")
    assert served.upload(dataset["id"], make_npz(4)).status_code == 200


WRONG_DECLARATIONS: list[tuple[dict[str, Any], int]] = [
    ({"visibility": "private"}, 422),
    ({"account_id": "acc_x"}, 422),
    ({"visibility": "private", "account_id": "acc_aaaaaaaaaaaaaaaaaaaa"}, 404),
    ({"classes": ["a", "a"]}, 422),
    ({"classes": []}, 422),
    ({"classes": ["with\nnewline"]}, 422),
    ({"channels": 2}, 422),
    ({"height": 0}, 422),
    ({"records_declared": 0}, 422),
    ({"records_declared": 10**12}, 422),
]


def test_declarations_that_cannot_be_right(served: Any) -> None:
    for changes, status in WRONG_DECLARATIONS:
        body = {"name": "pictures", "visibility": "public", "classes": ["cat"], "height": 4, "width": 4}
        body |= {"channels": 1, "records_declared": 100} | changes
        answer = served.client().post("/v1/datasets", json=body)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"


def test_listing_newest_first_in_pages(served: Any) -> None:
    made = [served.dataset(name=f"d{number}")["id"] for number in range(5)]
    first = served.client("read").get("/v1/datasets", params={"limit": 3}).json()
    rest = served.client("read").get("/v1/datasets", params={"limit": 3, "cursor": first["next_cursor"]}).json()
    assert [item["id"] for item in first["items"] + rest["items"]] == made[::-1]
    assert rest["next_cursor"] is None


def test_known_images_join_their_account_and_the_answer_says_nothing_more(
    served: Any, make_npz: Callable[..., bytes]
) -> None:
    first, second = served.account()["id"], served.account()["id"]
    answers = []
    for account_id in (first, second):
        dataset = served.dataset(visibility="private", account_id=account_id)
        assert dataset["joined"] is False
        answers.append(served.upload(dataset["id"], make_npz(10)).json())
        assert read(served, dataset["id"]) == answers[-1]
    assert [answer["joined"] for answer in answers] == [False, True]
    assert [answer["account_id"] for answer in answers] == [first, first]
    assert answers[0].keys() == answers[1].keys()
    job = served.train(answers[1]["id"]).json()
    assert job["account_id"] == first
    balances = [served.client("read").get(f"/v1/accounts/{name}").json()["balance"] for name in (first, second)]
    assert balances[0]["held_nano"] > 0
    assert balances[1]["held_nano"] == 0


def test_images_that_no_one_account_can_pay_for_are_refused(served: Any, make_npz: Callable[..., bytes]) -> None:
    first = served.dataset(visibility="private", account_id=served.account()["id"])
    assert served.upload(first["id"], make_npz(10)).status_code == 200
    other = served.account(unit="subject")["id"]
    second = served.dataset(visibility="private", account_id=other, subjects_declared=10)
    body = io.BytesIO()
    with np.load(io.BytesIO(make_npz(10))) as arrays:
        np.savez(body, subjects=np.arange(10), **arrays)
    refused = served.upload(second["id"], body.getvalue())
    assert refused.status_code == 422
    assert (refused.json()["code"], refused.json()["fault"]) == ("upload_refused", "overlap")
    after = read(served, second["id"])
    assert (after["state"], after["account_id"], after["joined"]) == ("declared", other, False)
    assert not (served.data_dir / "datasets" / second["id"]).exists()
    assert not (served.data_dir / "keys" / "datasets" / f"{second['id']}.key").exists()


def test_deleting_destroys_the_images_and_keeps_the_books(served: Any, make_npz: Callable[..., bytes]) -> None:
    dataset = served.dataset(visibility="private", account_id=served.account()["id"])
    served.upload(dataset["id"], make_npz(10))
    job = served.train(dataset["id"]).json()
    url = f"/v1/datasets/{dataset['id']}"
    refused = served.client("data").delete(url)
    assert refused.status_code == 409
    assert refused.json()["jobs"] == [job["id"]]
    served.client().post(f"/v1/jobs/{job['id']}/cancel")
    assert served.client("read").delete(url).status_code == 403
    for _ in range(2):
        deleted = served.client("data").delete(url)
        assert deleted.status_code == 200, deleted.text
        assert deleted.json()["state"] == "deleted"
    assert not list(served.data_dir.glob(f"*/{dataset['id']}*"))
    assert not list(served.data_dir.glob(f"keys/*/{dataset['id']}*"))
    assert served.client().get(f"/v1/jobs/{job['id']}").status_code == 200
    assert served.train(dataset["id"]).status_code == 422
    assert served.upload(dataset["id"], make_npz(10)).status_code == 409
    assert served.client("data").delete("/v1/datasets/ds_" + "a" * 20).status_code == 404


def test_trainings_are_cancelled_with_the_deletion_where_that_is_asked_for(
    served: Any, make_npz: Callable[..., bytes]
) -> None:
    account_id = served.account()["id"]

    def by_request(dataset_id: str, cancel: bool) -> None:
        served.client("data").delete(f"/v1/datasets/{dataset_id}", params={"cancel_jobs": cancel})

    def by_client(dataset_id: str, cancel: bool) -> None:
        with Client(served.url, served.tokens["admin"]) as client, suppress(ApiError):
            client.dataset(dataset_id).delete(cancel_jobs=cancel)

    def by_command(dataset_id: str, cancel: bool) -> None:
        arguments = ["datasets", "delete", dataset_id, "--yes", *(["--cancel-jobs"] if cancel else [])]
        target = ["--url", served.url, "--token", served.tokens["admin"]]
        done = CliRunner().invoke(cli.app, [*target, *arguments])
        assert (done.exit_code == 0) == cancel, done.output

    for delete in (by_request, by_client, by_command):
        dataset_id = served.dataset(visibility="private", account_id=account_id)["id"]
        served.upload(dataset_id, make_npz(10))
        job_id = served.train(dataset_id, epsilon=0.1).json()["id"]
        for cancel, states in ((False, ("ready", "queued")), (True, ("deleted", "cancelled"))):
            delete(dataset_id, cancel)
            paths = (f"/v1/datasets/{dataset_id}", f"/v1/jobs/{job_id}")
            assert tuple(served.client().get(path).json()["state"] for path in paths) == states, delete.__name__


def wait_for(condition: Callable[[], bool]) -> None:
    import time

    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_has_arrived_is_in_the_log_and_the_log_tells_nothing_of_it(served: Any, make_npz: Any) -> None:
    account = served.account()
    body = make_npz(20)
    dataset = served.dataset(visibility="private", account_id=account["id"])
    assert served.upload(dataset["id"], body).status_code == 200
    log = served.client("read").get(f"/v1/accounts/{account['id']}/entries")
    opened, fact = log.json()["items"]
    assert (opened["kind"], fact["kind"], fact["amount_nano"]) == ("open", "fact", 0)
    assert (fact["details"]["table"], fact["details"]["id"]) == ("datasets", dataset["id"])
    with transaction(served.factory, read_only=True) as session:
        row = session.get_one(Dataset, dataset["id"])
    assert row.vault_key_id == key_id_of(read_key(key_path(served.app.state.settings, dataset["id"])))
    for secret in (row.content_sha256, row.vault_key_id, hashlib.sha256(body).hexdigest()):
        assert secret not in log.text
    assert inspect_ledger(served.app.state.settings, served.factory, thorough=True).clean
    training = served.train(dataset["id"]).json()
    log = served.client("read").get(f"/v1/accounts/{account['id']}/entries")
    held = log.json()["items"][-1]["details"]["order"]
    assert held.keys() == {"job", "dataset"}
    with transaction(served.factory, read_only=True) as session:
        secret = session.scalar(select(Job.secret).where(Job.id == training["id"]))
    assert secret not in log.text
    assert inspect_ledger(served.app.state.settings, served.factory, thorough=True).clean
    with transaction(served.factory) as session:
        session.get_one(Dataset, dataset["id"]).records_declared += 1
    codes = {finding.code.value for finding in inspect_ledger(served.app.state.settings, served.factory).findings}
    assert codes == {"dataset_mismatch", "job_mismatch"}
