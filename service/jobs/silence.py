"""A job whose runner gives no sign of life: what is told of it before it is ended and resumed.

One fact is told, for how many minutes at least, and that is half of what the settings allow, whenever the rest comes:
it says nothing of how long a step takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from obscura.wire.words import JobState
from service.jobs.lookup import lock_job, stale_attempt

SILENT_MINUTES = "silent_minutes"  # in a job's progress, beside what its runner reports there


def minutes_told(silent_seconds: float, silent_seconds_max: float) -> int | None:
    """Return for how many minutes a runner is said to have been silent; None before half of what is allowed is over."""
    told_from = silent_seconds_max / 2
    return None if silent_seconds < told_from else max(math.floor(told_from / 60), 1)


def tell_silence(session: Session, *, job_id: str, attempt: int, minutes: int | None) -> None:
    """Say for how long a running attempt has been silent; None takes it back."""
    job = lock_job(session, job_id)
    if job.attempt != attempt or job.state is not JobState.RUNNING:
        raise stale_attempt(job, attempt)
    progress = without_silence(job.progress) | ({} if minutes is None else {SILENT_MINUTES: minutes})
    if progress != job.progress:
        job.progress = progress
        job.progress_version += 1
        session.flush()


def without_silence(progress: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the runner itself has said."""
    return {name: value for name, value in progress.items() if name != SILENT_MINUTES}
