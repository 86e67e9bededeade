"""A service without disk space rejects uploads and queues jobs; no answer reveals the state of its disks."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from service.settings import Settings
from tests.service.api.conftest import SCOPES, Served, npz, serving


@pytest.fixture
def short(settings: Settings) -> Iterator[Served]:
    """A service that wants more room than any disk has."""
    with serving(settings.model_copy(update={"disk_free_bytes_min": 2**60}), *SCOPES) as served:
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
    answer = short.train(dataset["id"])
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    assert_says_nothing_of_disks(answer)


OTHERS: dict[str, dict[str, Any]] = {
    "releases/rel_aaaaaaaaaaaaaaaaaaaa/samples": {"count": 1, "seed": 1, "format": "npz"},
    "releases/rel_aaaaaaaaaaaaaaaaaaaa/evaluations": {"dataset_id": "ds_aaaaaaaaaaaaaaaaaaaa"},
    "previews": {"dataset_id": "ds_aaaaaaaaaaaaaaaaaaaa", "recipe": "datalens", "epsilon": 1.0, "options": {}},
    "sweeps": {
        "dataset_id": "ds_aaaaaaaaaaaaaaaaaaaa", "recipe": "datalens", "epsilon": 1.0, "name": "s", "trials": [{}, {}],
    },
}  # fmt: skip


@pytest.mark.parametrize("path", OTHERS)
def test_other_requests_are_answered_as_with_room(short, served, path):
    def answer(service: Served) -> httpx.Response:
        return service.client("train").post(f"/v1/{path}", json=OTHERS[path], headers={"Idempotency-Key": "k"})

    assert answer(short).status_code == answer(served).status_code == 404
    assert_says_nothing_of_disks(answer(short))
