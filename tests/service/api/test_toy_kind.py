"""A kind of job is one file and one line: the toy is asked for, worked on, ends and is shown as every other."""

import threading

import pytest

from service.jobs import KINDS
from tests.service.api import toy_kind
from tests.service.api.conftest import SCOPES, npz, serving
from workers.supervise.attempts import Attempt, ExitStatus
from workers.train.runner import run


@pytest.fixture
def playing(own_settings, monkeypatch):
    """A service that knows the toy, by one line."""
    monkeypatch.setitem(KINDS, toy_kind.KIND.name, toy_kind.KIND)
    with serving(own_settings(dashboard_public=True), *SCOPES) as served:
        yield served


def work(served, job_id):
    attempt = Attempt(job_id, served.claim(job_id))
    assert run(served.app.state.settings, attempt, stop=threading.Event(), trainers={}) == ExitStatus.ENDED
    return served.read(f"jobs/{job_id}")


def test_the_toy_is_asked_for_worked_on_and_shown(playing):
    account = playing.account()
    dataset = playing.dataset(visibility="private", account_id=account["id"])
    assert playing.upload(dataset["id"], npz(20)).status_code == 200
    asked = playing.send("toys", {"dataset_id": dataset["id"]}, key="once", status=202)
    assert (asked["kind"], asked["state"], asked["cost_nano"]) == ("toy", "queued", 0)
    assert playing.send("toys", {"dataset_id": dataset["id"]}, key="once", status=202)["id"] == asked["id"]
    assert [job["id"] for job in playing.read("jobs")["items"]] == [asked["id"]]
    assert work(playing, asked["id"])["state"] == "succeeded"
    page = playing.client(None).get(f"/jobs/{asked['id']}")
    assert (page.status_code, "Open a dataset" in page.text) == (200, True)


def test_the_toy_fails_in_words_of_the_closed_set(playing):
    dataset = playing.ready_dataset(playing.account()["id"])  # whose files are not there
    job_id = playing.send("toys", {"dataset_id": dataset["id"]}, key="k", status=202)["id"]
    ended = work(playing, job_id)
    assert (ended["state"], ended["failure"]["code"]) == ("failed", "dataset_unavailable")
