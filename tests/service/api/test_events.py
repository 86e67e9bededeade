"""Following a job by server-sent events: heartbeats, resuming, bounds; streams that last: routes/test_jobs.py."""

from typing import Any

import pytest
from httpx_sse import EventSource, ServerSentEvent

from service.api.events import StreamLimits
from tests.together import wait_until


@pytest.fixture(scope="module")
def limits() -> dict[str, Any]:
    """Short waits; at most two streams a key and three in all."""
    waits = {"seconds_max": 1.0, "poll_seconds": 0.02, "heartbeat_seconds": 0.2}
    return {"stream_limits": StreamLimits(process_max=3, per_key_max=2, **waits)}


def events_of(served: Any, job_id: str, last: str | None = None, scope: str = "read") -> list[ServerSentEvent]:
    headers = {"Last-Event-ID": last} if last else {}
    with served.client(scope).stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        return [event for event in EventSource(answer).iter_sse() if event.data]


def test_a_client_that_comes_back_hears_only_what_is_new(served, job):
    attempt = served.claim(job["id"])
    served.progress(job["id"], attempt, stage="votes", step=1, steps=2)
    (seen,) = events_of(served, job["id"])  # ends after its bounded duration
    assert seen.event == "progress"
    assert events_of(served, job["id"], last=seen.id) == []
    served.publish(job["id"], attempt)
    (final,) = events_of(served, job["id"], last=seen.id)
    assert final.event == "finished"
    answer = served.client("read").get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": final.id or ""})
    assert answer.status_code == 204


def test_silence_is_filled_with_comments(served, job):
    with served.client("read").stream("GET", f"/v1/jobs/{job['id']}/events") as answer:
        text = "".join(answer.iter_text())
    assert text.startswith("retry: ")
    assert 1 <= text.count(": still here\n\n") <= 8
    assert text.count("event: ") == 1


def test_streams_are_bounded_by_key_and_in_all(served, job):
    path = f"/v1/jobs/{job['id']}/events"
    with served.client("read").stream("GET", path), served.client("read").stream("GET", path):
        wait_for_streams(served, 2)
        third = served.client("read").get(path)
        assert (third.status_code, third.json()["code"]) == (429, "too_many_streams_for_key")
        assert int(third.headers["retry-after"]) > 0
        with served.client("admin").stream("GET", path):
            wait_for_streams(served, 3)
            assert served.read(path.removeprefix("/v1/"), scope="admin", status=503)["code"] == "too_many_streams"
    wait_for_streams(served, 0)


def wait_for_streams(served: Any, count: int) -> None:
    wait_until(lambda: served.app.state.service.streams._taken.total() == count)
