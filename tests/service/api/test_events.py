"""Following a job by server-sent events: snapshots, heartbeats, resuming, bounds."""

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from httpx_sse import EventSource, ServerSentEvent

from service.api.events import StreamLimits
from tests.service.api.conftest import SCOPES, OwnSettings, Served, serving
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


class TestStreamsThatWouldLast:
    """They end with the service, and with the key that opened them."""

    @pytest.fixture
    def served(self, own_settings: OwnSettings) -> Iterator[Served]:
        """Streams last longer than any patience."""
        limits = StreamLimits(poll_seconds=0.05, seconds_max=600)
        with serving(own_settings(), *SCOPES, stream_limits=limits) as served:
            yield served

    def test_a_stream_ends_with_the_final_state(self, served, job):
        attempt = served.claim(job["id"])
        served.progress(job["id"], attempt, stage="votes", step=1, steps=2)
        with served.client("read").stream("GET", f"/v1/jobs/{job['id']}/events") as answer:
            stream = (event for event in EventSource(answer).iter_sse() if event.data)
            found = [next(stream)]
            served.progress(job["id"], attempt, stage="votes", step=2, steps=2)
            found.append(next(stream))
            release_id = served.publish(job["id"], attempt)
            found += stream
        assert found[-1].event == "finished"
        assert {event.event for event in found[:-1]} == {"progress"}
        assert '"step":1' in found[0].data
        assert '"step":2' in found[1].data
        assert f'"release_id":"{release_id}"' in found[-1].data
        assert len({event.id for event in found}) == len(found)

    def test_a_stopping_service_ends_its_streams(self, served, job):
        with served.client("read").stream("GET", f"/v1/jobs/{job['id']}/events", timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            served.app.state.service.stopping.set()
            assert ": still here" not in lines, "it goes on until its next heartbeat"

    def test_a_stream_ends_when_its_key_is_revoked(self, served, job):
        made, other = (served.send("keys", {"name": name, "scopes": ["read"]}, status=201) for name in ("a", "b"))
        path, ended = f"/v1/jobs/{job['id']}/events", threading.Event()

        def follow_until_the_end() -> None:
            headers = {"Authorization": f"Bearer {made['token']}"}
            with httpx.stream("GET", served.url + path, headers=headers, timeout=60) as answer:
                for _ in answer.iter_lines():
                    pass
            ended.set()

        reader = threading.Thread(target=follow_until_the_end, daemon=True)
        reader.start()
        wait_for_streams(served, 1)
        served.send(f"keys/{other['id']}/revoke")
        assert not ended.wait(0.5)
        served.send(f"keys/{made['id']}/revoke")
        assert ended.wait(30), "the stream goes on"
        wait_for_streams(served, 0)
        with served.bearer(made["token"]) as client:
            assert client.get(path).status_code == 401


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
