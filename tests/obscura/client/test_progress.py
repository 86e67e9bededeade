"""What a terminal says of a job that goes on."""

import pytest

from obscura.client.progress import JobStatus
from obscura.wire.job_schemas import EventRecord, ProgressFacts


def running(**facts: float) -> EventRecord:
    unknown = dict.fromkeys(EventRecord.model_fields)
    return EventRecord.model_construct(**unknown | {"state": "running", "progress": ProgressFacts(**facts)})


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"eta_seconds": 150}, "about 3 min left"),
        ({"eta_seconds": 150, "silent_minutes": 5}, "about 3 min left, no sign of life for 5 minutes"),
        ({"silent_minutes": 1}, "no sign of life for 1 minute"),
        ({}, ""),
    ],
)
def test_the_time_left_and_a_silence_are_told(facts, said):
    status = JobStatus()
    status.report(running(**facts))
    assert str(status) == said


def test_an_estimate_moves_between_reports():
    now = 100.0
    status = JobStatus(lambda: now)
    assert str(status) == ""
    status.report(running(eta_seconds=300))
    assert str(status) == "about 5 min left"
    now += 90
    status.report(running(eta_seconds=300))  # repeated, as the service does
    assert str(status) == "about 3 min 30 s left"
    status.report(running(eta_seconds=240))
    assert str(status) == "about 4 min left"
    now += 240
    assert str(status) == "almost done"
    now += 60
    assert str(status) == "almost done"
