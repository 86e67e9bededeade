"""What a terminal says of a job that goes on."""

import pytest

from obscura.client.progress import Countdown, describe
from obscura.wire.job_schemas import EventRecord, ProgressFacts


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
    unknown = dict.fromkeys(EventRecord.model_fields)
    event = EventRecord.model_construct(**unknown | {"state": "running", "progress": ProgressFacts(**facts)})
    countdown = Countdown()
    countdown.report(event.progress.eta_seconds)
    assert describe(event, countdown) == said


def test_an_estimate_moves_between_reports():
    now = 100.0
    countdown = Countdown(lambda: now)
    assert str(countdown) == ""
    countdown.report(270)
    assert str(countdown) == "about 4 min 30 s left"
    now += 60
    countdown.report(270)  # repeated, as the service does
    assert str(countdown) == "about 3 min 30 s left"
    countdown.report(240)
    assert str(countdown) == "about 4 min left"
    now += 300
    assert str(countdown) == "almost done"
