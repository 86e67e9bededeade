"""Evaluations over HTTP: asked for, repeated, cancelled, joined with the report; and what a cancellation publishes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from service import ledger
from service.client import Client
from service.db.base import new_id
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Release
from service.db.session import transaction
from service.db.words import DatasetState, ReleaseKind
from service.main import utc_now

Released = Callable[[], tuple[dict[str, Any], str]]


def evaluate(served: Any, release_id: str, *, key: str = "once", **body: Any) -> Any:
    path = f"/v1/releases/{release_id}/evaluations"
    return served.client("train").post(path, json=body, headers={"Idempotency-Key": key})


def test_an_evaluation_is_free_and_the_same_key_asks_once(served: Any, released: Released) -> None:
    account, release_id = released()
    before = served.client("read").get(f"/v1/accounts/{account['id']}").json()["balance"]
    public = served.public_like_a_training()
    answer = evaluate(served, release_id, dataset_id=public)
    assert answer.status_code == 202
    made = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{made['job_id']}"
    assert (made["state"], made["samples"], made["seed"], made["accuracy"]) == ("queued", 30_000, 0, None)
    assert evaluate(served, release_id, dataset_id=public).json()["id"] == made["id"]
    assert evaluate(served, release_id, dataset_id=public, seed=1).json()["code"] == "idempotency_mismatch"
    job = served.client("read").get(f"/v1/jobs/{made['job_id']}").json()
    assert (job["kind"], job["release_id"], job["evaluation_dataset_id"]) == ("evaluate", release_id, public)
    assert (job["price_nano"], job["publishes_if_cancelled"]) == (0, None)
    served.finish_evaluation(made, cnn=0.8)
    assert served.client("read").get(f"/v1/accounts/{account['id']}").json()["balance"] == before


def test_the_newest_evaluation_stands_in_the_summary_and_all_of_them_in_the_report(
    served: Any, released: Released
) -> None:
    _, release_id = released()
    read, public = served.client("read"), served.public_like_a_training()
    path = f"/v1/releases/{release_id}"
    release = read.get(path).json()
    page = read.get(f"{path}/report.html")
    assert "not measured" in page.text
    for number, accuracy in enumerate((0.71, 0.82)):
        made = evaluate(served, release_id, key=str(number), dataset_id=public, seed=number, samples=40).json()
        served.finish_evaluation(made, cnn=accuracy)
    after = read.get(path).json()
    assert after["summary"]["accuracy"] == {"cnn": 0.82}
    assert after["artifact_sha256"] == release["artifact_sha256"]
    assert read.get("/v1/releases").json()["items"] == [after]
    listed = read.get(f"{path}/evaluations").json()["items"]
    assert [(found["seed"], found["accuracy"]["cnn"], found["state"]) for found in listed] == [
        (1, 0.82, "succeeded"),
        (0, 0.71, "succeeded"),
    ]
    joined = read.get(f"{path}/report.html")
    assert joined.headers["etag"] != page.headers["etag"]
    assert "not measured" not in joined.text
    shown = joined.text
    assert shown.index("82%") < shown.index("Earlier evaluations") < shown.index("71%") < shown.index("<h2>4.</h2>")
    data = read.get(f"{path}/report.json").json()
    assert [found["accuracy"]["cnn"] for found in data["evaluations"]] == [0.82, 0.71]
    assert data["evaluations"][0]["confusion"] == [[3, 1], [0, 3]]
    assert data["report"] is True  # what was published is there as it was


def test_a_cancelled_or_failed_evaluation_leaves_the_release_and_can_be_repeated(
    served: Any, released: Released
) -> None:
    _, release_id = released()
    public = served.public_like_a_training()
    first = evaluate(served, release_id, dataset_id=public).json()
    assert served.client("train").post(f"/v1/jobs/{first['job_id']}/cancel").json()["state"] == "cancelled"
    assert served.client("read").get(f"/v1/releases/{release_id}").json()["summary"] == {"accuracy": {"cnn": 0.7}}
    again = evaluate(served, release_id, key="again", dataset_id=public).json()
    served.finish_evaluation(again, cnn=0.9)
    assert served.client("read").get(f"/v1/releases/{release_id}").json()["summary"]["accuracy"] == {"cnn": 0.9}


def test_evaluations_that_cannot_be(served: Any, released: Released) -> None:
    account, release_id = released()
    public = served.public_like_a_training()
    private = served.ready_dataset(account["id"])["id"]
    larger = served.dataset(height=5)["id"]
    empty = served.dataset()["id"]
    for status, code, body in (
        (422, "invalid_input", {"dataset_id": private}),
        (422, "invalid_input", {"dataset_id": larger}),
        (409, "conflict", {"dataset_id": empty}),
        (404, "not_found", {"dataset_id": "ds_none"}),
        (422, "invalid_input", {"dataset_id": public, "samples": 10**9}),
        (422, "invalid_request", {"dataset_id": public, "samples": 0}),
        (422, "invalid_request", {"dataset_id": public, "seed": -1}),
    ):
        answer = evaluate(served, release_id, key=new_id("key"), **body)
        assert (answer.status_code, answer.json()["code"]) == (status, code), (body, answer.text)
    assert evaluate(served, "rel_none", dataset_id=public).status_code == 404
    with transaction(served.factory) as session:
        session.get_one(Dataset, public).state = DatasetState.DELETED
    assert evaluate(served, release_id, key="late", dataset_id=public).status_code == 409


@pytest.mark.parametrize(("kind", "status"), [(ReleaseKind.HISTOGRAM, 409), (ReleaseKind.CLASSIFIER, 202)])
def test_what_kinds_of_releases_can_be_evaluated(
    served: Any, released: Released, kind: ReleaseKind, status: int
) -> None:
    _, release_id = released()
    public = served.public_like_a_training()
    with transaction(served.factory) as session:
        session.get_one(Release, release_id).kind = kind
    assert evaluate(served, release_id, dataset_id=public).status_code == status
    if kind is ReleaseKind.CLASSIFIER:
        assert evaluate(served, release_id, key="more", dataset_id=public, samples=5).status_code == 422


def test_the_sdk_evaluates_and_cancels(served: Any, released: Released) -> None:
    account, release_id = released()
    public = served.public_like_a_training()
    with Client(served.url, served.tokens["admin"]) as client:
        asked = client.release(release_id).evaluate(public, samples=60, seed=3)
        served.finish_evaluation(asked.model_dump(), cnn=0.66)
        assert asked.wait().accuracy == {"cnn": 0.66}
        assert client.release(release_id).summary["accuracy"] == {"cnn": 0.66}
        assert [found.id for found in client.release(release_id).evaluations()] == [asked.id]
        job = client.train(served.ready_dataset(account["id"])["id"], recipe="class_histogram", epsilon=0.1)
        assert job.cancel(discard=True).state == "cancelled"


# --- what a cancellation publishes ----------------------------------------------------------------------------------


def running(served: Any, charge_nano: Callable[[dict[str, Any]], int]) -> str:
    """A training that has charged so much of its plan, by its id."""
    account = served.account()
    job_id = str(served.train(served.ready_dataset(account["id"])["id"]).json()["id"])
    attempt = served.claim(job_id)
    with transaction(served.factory) as session:
        job = session.get_one(Job, job_id)
        hold_id, amount_nano = job.hold_id, charge_nano(job.plan)
        assert hold_id is not None
        ledger.arm(session, hold_id=hold_id, attempt=attempt, now=utc_now())
        if amount_nano:
            ledger.charge(session, hold_id=hold_id, attempt=attempt, amount_nano=amount_nano, stage="x", now=utc_now())
    return job_id


def start_nano(plan: dict[str, Any]) -> int:
    """The price of means and pooled covariance, without which there is no generator."""
    return sum(stage["price_nano"] for stage in plan["stages"][:2])


@pytest.mark.parametrize(
    ("charge_nano", "publishes"),
    [(lambda _: 0, False), (lambda plan: start_nano(plan) - 1, False), (start_nano, True)],
    ids=["nothing", "too little", "a start"],
)
def test_a_job_says_before_whether_cancelling_it_publishes_anything(
    served: Any, charge_nano: Callable[[dict[str, Any]], int], publishes: bool
) -> None:
    job_id = running(served, charge_nano)
    assert served.client("read").get(f"/v1/jobs/{job_id}").json()["publishes_if_cancelled"] is publishes
    job = served.client("train").post(f"/v1/jobs/{job_id}/cancel").json()
    assert (job["state"], job["cancel_requested"], job["ended_early"]) == ("running", True, "cancelled")
    again = served.client("train").post(f"/v1/jobs/{job_id}/cancel", json={}).json()
    assert again["ended_early"] == "cancelled"
    job = served.client("train").post(f"/v1/jobs/{job_id}/cancel", json={"discard": True}).json()
    assert (job["state"], job["ended_early"]) == ("running", "discarded")
    wrong = served.client("train").post(f"/v1/jobs/{job_id}/cancel", json={"discard": True, "really": 1})
    assert wrong.status_code == 422
