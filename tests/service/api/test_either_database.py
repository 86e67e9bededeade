"""The same interface on either database: pages, holds, idempotency, publishing."""

import pytest

from service.settings import Settings


@pytest.fixture
def settings(tmp_path, database_url) -> Settings:
    """Settings of a service on either database."""
    return Settings(data_dir=tmp_path / "service", database_url=database_url, mode="celery", page_size_max=5)


def test_the_main_job(served):
    dataset = served.ready_dataset(served.account()["id"])
    first = served.train(dataset["id"], key="once", epsilon=0.5)
    assert first.status_code == 202, first.text
    job = first.json()
    assert served.train(dataset["id"], key="once", epsilon=0.5).json()["id"] == job["id"]
    assert served.train(dataset["id"], epsilon=5).status_code == 409
    attempt = served.claim(job["id"])
    served.progress(job["id"], attempt, stage="votes", step=1, steps=2, eta_seconds=1.5)
    assert served.read(f"jobs/{job['id']}")["progress"]["step"] == 1
    body = {"count": 5, "seed": 1, "format": "npz"}
    path = f"releases/{served.publish(job['id'], attempt)}/samples"
    sample = served.send(path, body, key="k", scope="train", status=202)
    served.finish_sample(sample, b"content", "images.npz")
    assert served.client("read").get(f"/v1/samples/{sample['id']}/content").content == b"content"
    with served.client("read").stream("GET", f"/v1/jobs/{job['id']}/events") as answer:
        assert "event: finished" in "".join(answer.iter_text())


def test_lists_show_the_newest_first_in_pages(served):
    made = [served.dataset(name=f"d{number}")["id"] for number in range(5)]
    first = served.read("datasets", limit=3)
    rest = served.read("datasets", limit=3, cursor=first["next_cursor"])
    assert [item["id"] for item in first["items"] + rest["items"]] == made[::-1]
    assert rest["next_cursor"] is None
