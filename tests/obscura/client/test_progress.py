"""What a terminal says of a job that goes on."""

import pytest

from obscura.client.progress import describe
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
    event = EventRecord(
        job_id="job_a",
        state="running",
        cancel_requested=False,
        progress=ProgressFacts(**facts),
        failure=None,
        release_id=None,
        sample_id=None,
    )
    assert describe(event) == said
