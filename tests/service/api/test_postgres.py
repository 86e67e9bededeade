"""The same interface on PostgreSQL: pages, holds, idempotency, publishing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.settings import Settings

pytestmark = pytest.mark.services


@pytest.fixture
def settings(tmp_path: Path, postgres_url: str) -> Settings:
    """Settings of a service on PostgreSQL."""
    return Settings(data_dir=tmp_path / "service", database_url=postgres_url, mode="celery", page_size_max=5)


def test_the_main_job_on_postgresql(served: Any) -> None:
    account = served.account()
    dataset = served.ready_dataset(account["id"])
    first = served.train(dataset["id"], key="once", epsilon=0.5)
    assert first.status_code == 202, first.text
    assert served.train(dataset["id"], key="once", epsilon=0.5).json()["id"] == first.json()["id"]
    assert served.train(dataset["id"], epsilon=5).status_code == 409
    job = first.json()
    attempt = served.claim(job["id"])
    served.progress(job["id"], attempt, stage="votes", step=1, steps=2, eta_seconds=1.5)
    assert served.client("read").get(f"/v1/jobs/{job['id']}").json()["progress"]["step"] == 1
    release_id = served.publish(job["id"], attempt)
    body = {"count": 5, "seed": 1, "format": "npz"}
    path = f"/v1/releases/{release_id}/samples"
    sample = served.client("train").post(path, json=body, headers={"Idempotency-Key": "k"}).json()
    served.finish_sample(sample, b"content", "images.npz")
    assert served.client("read").get(f"/v1/samples/{sample['id']}/content").content == b"content"
    with served.client("read").stream("GET", f"/v1/jobs/{job['id']}/events") as answer:
        assert "event: finished" in "".join(answer.iter_text())


def test_pages_on_postgresql(served: Any) -> None:
    made = [served.dataset(name=f"d{number}")["id"] for number in range(5)]
    first = served.client("read").get("/v1/datasets", params={"limit": 3}).json()
    rest = served.client("read").get("/v1/datasets", params={"limit": 3, "cursor": first["next_cursor"]}).json()
    assert [item["id"] for item in first["items"] + rest["items"]] == made[::-1]
