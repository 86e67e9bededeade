"""A kind of job is one file and one line: the toy is asked for, worked on, ends and is shown as every other."""

import threading

import pytest

from service.jobs import KINDS, FailureCode
from tests.service.api import toy_kind
from tests.service.api.conftest import npz
from workers.supervise.attempts import Attempt, ExitStatus
from workers.train.runner import run


@pytest.fixture(scope="module")
def settings(settings):
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(KINDS, toy_kind.KIND.name, toy_kind.KIND)
        yield settings.model_copy(update={"dashboard_public": True})


def work(served, job_id):
    attempt = Attempt(job_id, served.claim(job_id))
    assert run(served.app.state.settings, attempt, stop=threading.Event(), trainers={}) == ExitStatus.ENDED
    return served.read(f"jobs/{job_id}")


def test_the_toy_is_asked_for_worked_on_and_shown(served):
    account = served.account()
    dataset = served.dataset(visibility="private", account_id=account["id"])
    assert served.upload(dataset["id"], npz(20)).status_code == 200
    asked = served.send("toys", {"dataset_id": dataset["id"]}, key="once", status=202)
    assert (asked["kind"], asked["state"], asked["cost_nano"]) == ("toy", "queued", 0)
    assert served.send("toys", {"dataset_id": dataset["id"]}, key="once", status=202)["id"] == asked["id"]
    assert [job["id"] for job in served.read("jobs")["items"]] == [asked["id"]]
    assert work(served, asked["id"])["state"] == "succeeded"
    page = served.client(None).get(f"/jobs/{asked['id']}")
    assert (page.status_code, "Open a dataset" in page.text) == (200, True)


def test_the_toy_fails_in_words_of_the_closed_set(served):
    dataset = served.ready_dataset(served.account()["id"])  # whose files are not there
    job_id = served.send("toys", {"dataset_id": dataset["id"]}, key="k", status=202)["id"]
    ended = work(served, job_id)
    failure = FailureCode.DATASET_UNAVAILABLE
    assert (ended["state"], ended["failure"]) == ("failed", {"code": failure, "message": failure.message})
