"""A service without disk space rejects uploads and queues jobs; no answer reveals the state of its disks."""

import httpx
import pytest

from service.api.routes.health import VERSION
from service.settings import Settings
from tests.service.api.conftest import npz
from tests.together import ready


@pytest.fixture(scope="module")
def settings(settings: Settings) -> Settings:
    """A service that wants more room than any disk has."""
    return settings.model_copy(update={"disk_free_bytes_min": 2**60})


def assert_says_nothing_of_disks(answer: httpx.Response) -> None:
    assert "disk" not in answer.text.lower()
    assert "folder" not in answer.json()


def test_readiness_does_not_depend_on_the_disks(served):
    assert ready(served.client(None)) == {"status": "ok", "version": VERSION, "trainings": "open", "unavailable": None}


@pytest.mark.parametrize("scope", ["data", "admin"])
def test_an_upload_is_rejected_before_it_is_read_without_a_reason(served, scope):
    dataset = served.dataset()
    answer = served.upload(dataset["id"], npz(20), scope=scope)
    assert (answer.status_code, answer.json()["code"]) == (503, "uploads_stopped")
    assert_says_nothing_of_disks(answer)
    assert served.read(f"datasets/{dataset['id']}")["state"] == "declared"


def test_jobs_are_queued_as_always(served):
    account = served.account()
    dataset = served.ready_dataset(account["id"])
    asked = {"dataset_id": dataset["id"], "recipe": "datalens", "epsilon": 0.1}
    preview = served.client("train").post("/v1/previews", json=asked, headers={"Idempotency-Key": "k"})
    for answer in (served.train(dataset["id"]), preview):
        assert (answer.status_code, answer.json()["state"]) == (202, "queued")
        assert_says_nothing_of_disks(answer)
