"""A service without disk space rejects uploads and queues jobs; no answer reveals the state of its disks."""

from collections.abc import Iterator

import httpx
import pytest

from tests.service.api.conftest import SCOPES, OwnSettings, Served, npz, serving


@pytest.fixture
def short(own_settings: OwnSettings) -> Iterator[Served]:
    """A service that wants more room than any disk has."""
    with serving(own_settings(disk_free_bytes_min=2**60), *SCOPES) as served:
        yield served


def assert_says_nothing_of_disks(answer: httpx.Response) -> None:
    assert "disk" not in answer.text.lower()
    assert "folder" not in answer.json()


def test_readiness_does_not_depend_on_the_disks(short, served):
    full, usual = (each.client(None).get("/v1/health/ready") for each in (short, served))
    assert (full.status_code, full.json()) == (usual.status_code, usual.json()) == (200, usual.json())


@pytest.mark.parametrize("scope", ["data", "admin"])
def test_an_upload_is_rejected_before_it_is_read_without_a_reason(short, scope):
    dataset = short.dataset()
    path = f"/v1/datasets/{dataset['id']}/content?format=npz"
    answer = short.client(scope).put(path, content=npz(20))
    assert (answer.status_code, answer.json()["code"]) == (503, "uploads_stopped")
    assert_says_nothing_of_disks(answer)
    assert short.read(f"datasets/{dataset['id']}")["state"] == "declared"


def test_jobs_are_queued_as_always(short):
    account = short.account()
    dataset = short.ready_dataset(account["id"])
    asked = {"dataset_id": dataset["id"], "recipe": "datalens", "epsilon": 0.1}
    preview = short.client("train").post("/v1/previews", json=asked, headers={"Idempotency-Key": "k"})
    for answer in (short.train(dataset["id"]), preview):
        assert (answer.status_code, answer.json()["state"]) == (202, "queued")
        assert_says_nothing_of_disks(answer)
