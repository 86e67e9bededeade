"""Releases, samples and evaluations over HTTP: cards, reports, downloads by range, what a cancellation publishes."""

from __future__ import annotations

import hashlib
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

CONTENT = bytes(range(256)) * 8
Released = Callable[[], tuple[dict[str, Any], str]]


def draw(served: Any, release_id: str, *, key: str = "once", **changes: Any) -> Any:
    body = {"count": 10, "seed": 1, "format": "imagefolder"} | changes
    path = f"/v1/releases/{release_id}/samples"
    return served.client("train").post(path, json=body, headers={"Idempotency-Key": key})


def test_reading_a_release(served: Any, released: Released) -> None:
    account, release_id = released()
    release = served.client("read").get(f"/v1/releases/{release_id}").json()
    assert release["account_id"] == account["id"]
    assert release["summary"] == {"accuracy": {"cnn": 0.7}}
    assert "artifact_dir" not in release
    assert served.client("read").get("/v1/releases").json()["items"] == [release]
    assert served.client("read").get(f"/v1/releases/{release_id}/card").json() == {"epsilon": 1.0, "delta": 1e-5}


def test_files_of_a_release(served: Any, released: Released) -> None:
    _, release_id = released()
    kinds = {"report.html": "text/html", "report.json": "application/json", "grid.png": "image/png"}
    for name, kind in kinds.items():
        check_file(served, release_id, name, kind)


def check_file(served: Any, release_id: str, name: str, kind: str) -> None:
    path = f"/v1/releases/{release_id}/{name}"
    first = served.client("read").get(path)
    assert first.status_code == 200
    assert first.headers["content-type"].startswith(kind)
    assert first.headers["etag"] == f'"{hashlib.sha256(first.content).hexdigest()}"'
    assert "script-src" not in first.headers["content-security-policy"]
    assert served.client("read").get(path, headers={"If-None-Match": first.headers["etag"]}).status_code == 304


def test_sampling_is_free_and_recorded(served: Any, released: Released) -> None:
    account, release_id = released()
    before = served.client("read").get(f"/v1/accounts/{account['id']}").json()["balance"]
    answer = draw(served, release_id)
    assert answer.status_code == 202
    sample = answer.json()
    assert answer.headers["location"] == f"/v1/samples/{sample['id']}"
    served.finish_sample(sample, CONTENT, "images.zip")
    assert served.client("read").get(f"/v1/accounts/{account['id']}").json()["balance"] == before
    path = f"/v1/accounts/{account['id']}/entries"
    kinds: list[str] = []
    cursor = None
    while True:
        page = served.client("read").get(path, params={"cursor": cursor} if cursor else {}).json()
        kinds += [entry["kind"] for entry in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert kinds == ["open", "hold", "arm", "charge", "capture", "sample"]


def test_the_same_key_draws_once(served: Any, released: Released) -> None:
    _, release_id = released()
    assert draw(served, release_id).json()["id"] == draw(served, release_id).json()["id"]
    assert draw(served, release_id, seed=2).json()["code"] == "idempotency_mismatch"
    assert draw(served, release_id, key="another").json()["id"] != draw(served, release_id).json()["id"]


def test_samples_that_cannot_be_drawn(served: Any, released: Released) -> None:
    _, release_id = released()
    wrong: list[dict[str, Any]] = [{"count": 0}, {"count": 10**9}, {"seed": -1}, {"seed": 2**63}, {"format": "rar"}]
    for changes in (*wrong, {"classes": ["bird"]}, {"classes": []}):
        answer = draw(served, release_id, **changes)
        assert answer.status_code == 422
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_pending_sample_says_when_to_ask_again(served: Any, released: Released) -> None:
    _, release_id = released()
    sample = draw(served, release_id).json()
    answer = served.client("read").get(f"/v1/samples/{sample['id']}/content")
    assert answer.status_code == 409
    assert answer.json()["code"] == "pending"
    assert int(answer.headers["retry-after"]) > 0
    assert int(served.client("read").get(f"/v1/samples/{sample['id']}").headers["retry-after"]) > 0


def test_a_cancelled_sample_has_no_content(served: Any, released: Released) -> None:
    _, release_id = released()
    sample = draw(served, release_id).json()
    served.client("train").post(f"/v1/jobs/{sample['job_id']}/cancel")
    answer = served.client("read").get(f"/v1/samples/{sample['id']}/content")
    assert answer.status_code == 409
    assert answer.json()["code"] == "job_failed"
    assert "retry-after" not in answer.headers


@pytest.fixture
def path(served: Any, released: Released) -> str:
    """The address of a finished sample's content."""
    _, release_id = released()
    sample = draw(served, release_id).json()
    served.finish_sample(sample, CONTENT, "images.zip")
    return f"/v1/samples/{sample['id']}/content"


def test_downloading_whole(served: Any, path: str) -> None:
    answer = served.client("read").get(path)
    assert answer.content == CONTENT
    assert answer.headers["etag"] == f'"{hashlib.sha256(CONTENT).hexdigest()}"'
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["content-type"] == "application/zip"
    assert answer.headers["content-disposition"].startswith("attachment; filename=")
    again = served.client("read").get(path, headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304


def test_downloading_a_range(served: Any, path: str) -> None:
    answer = served.client("read").get(path, headers={"Range": "bytes=100-199"})
    assert answer.status_code == 206
    assert answer.headers["content-range"] == f"bytes 100-199/{len(CONTENT)}"
    assert answer.headers["content-length"] == "100"
    assert answer.content == CONTENT[100:200]


def test_a_range_outside_the_content(served: Any, path: str) -> None:
    answer = served.client("read").get(path, headers={"Range": f"bytes={len(CONTENT)}-"})
    assert answer.status_code == 416
    assert answer.headers["content-range"] == f"bytes */{len(CONTENT)}"
    assert answer.json()["code"] == "range_not_satisfiable"


def test_a_range_that_is_none_is_ignored(served: Any, path: str) -> None:
    answer = served.client("read").get(path, headers={"Range": "bytes=" + "9" * 5000 + "-"})
    assert answer.status_code == 200
    assert answer.content == CONTENT


def test_a_range_of_other_content_is_not_mixed_in(served: Any, path: str) -> None:
    answer = served.client("read").get(path, headers={"Range": "bytes=5-", "If-Range": '"something-else"'})
    assert answer.status_code == 200
    assert answer.content == CONTENT
    etag = answer.headers["etag"]
    assert served.client("read").get(path, headers={"Range": "bytes=5-", "If-Range": etag}).content == CONTENT[5:]


def test_a_histogram_shows_its_counts_and_gives_no_images(served: Any) -> None:
    account = served.account()
    job = served.train(served.ready_dataset(account["id"])["id"]).json()
    release_id = served.publish(job["id"], served.claim(job["id"]))
    counts = {"classes": ["cat", "dog"], "counts": [0, 61], "noisy_counts": [-3, 61], "standard_error": 4.5}
    with transaction(served.factory) as session:
        row = session.get_one(Release, release_id)
        row.kind, row.summary = ReleaseKind.HISTOGRAM, {"histogram": counts, "seconds": {}}
    record = served.client("read").get(f"/v1/releases/{release_id}").json()
    assert (record["kind"], record["histogram"], record["summary"]) == ("histogram", counts, {"seconds": {}})
    for name in ("grid.png", "report.html", "report.json"):
        answer = served.client("read").get(f"/v1/releases/{release_id}/{name}")
        assert answer.status_code == 404
        assert "shows this release" in answer.json()["detail"]
    drawn = draw(served, release_id)
    assert (drawn.status_code, drawn.json()["code"], drawn.json()["kind"]) == (409, "conflict", "histogram")
    assert "not a generator" in drawn.json()["detail"]


def test_a_generator_has_no_histogram(served: Any) -> None:
    account = served.account()
    job = served.train(served.ready_dataset(account["id"])["id"]).json()
    record = served.client().get(f"/v1/releases/{served.publish(job['id'], served.claim(job['id']))}").json()
    assert (record["kind"], record["histogram"]) == ("generator", None)


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
