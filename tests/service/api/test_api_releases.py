"""Releases and samples over HTTP: cards, reports, free sampling, downloads by range."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from service.db.job_tables import Release
from service.db.session import transaction
from service.db.words import ReleaseKind

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
