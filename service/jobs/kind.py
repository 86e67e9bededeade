"""The description of a kind of job: each file of `service.jobs.kinds` ends with its `KIND`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from obscura.wire.job_schemas import FailureFacts, JobRecord
from obscura.wire.schemas import ApiRecord, ApiRequest
from obscura.wire.words import JobState
from service.db.job_tables import FailureCode, Job, Made
from service.jobs.endings import end_job, lock_attempt
from service.jobs.lookup import made_by, stale_attempt

SAMPLES_MAX = 200_000  # unless the settings have another number


@dataclass(frozen=True)
class Ask:
    """A request for a new job: its future id, its time, and the number of images it may generate."""

    job_id: str
    now: datetime
    samples_max: int = SAMPLES_MAX


@dataclass(frozen=True)
class Order:
    """The route that accepts a kind of job. The order has the fields of the body, and a `{release_id}` of the path."""

    path: str
    tag: str
    summary: str
    description: str
    request: type[ApiRequest]


@dataclass(frozen=True)
class Reading:
    """The route that reads the result of a kind of job, below `path`.

    Attributes:
        prefix: of the ids.
        scope: required of the key.
        image: a column with a PNG image, and the last segment of its route.
        examples: of record fields whose meaning differs from that of the same name in other records.
    """

    path: str
    prefix: str
    tag: str
    description: str
    scope: str = "read"
    image: str = ""
    image_description: str = ""
    examples: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of job.

    Attributes:
        name: as stored in the job's row.
        many: the plural on pages.
        title: on pages, from the job's row and, if loaded, the row that it makes.
        accept: takes a session, an `Ask` and the fields of the order as keywords; validates, and queues the job.
        failed: the default failure code.
        unavailable: the failure code if an input of the job is gone.
        order: None if it cannot be requested over HTTP.
        makes: the table of the row that it makes, if any.
        same: the column of that row that distinguishes a replay from another outcome.
        record: the schema of that row; of the job if it makes none.
        show: returns the record, from that row and the job.
        reading: the route of that record, if any.
        planned: it carries out a training's plan.
        reads_numbers: it reads only the declaration of a dataset, so ended jobs do not prevent that it is erased.
        gives_way: its process takes only idle cores.
        module: of the worker, whose `run(context)` does the work of an attempt; by default `workers.train.kinds.NAME`.
    """

    name: str
    many: str
    title: Callable[[Any, Any], str]
    accept: Callable[..., Job]
    failed: FailureCode
    unavailable: FailureCode = FailureCode.DATASET_UNAVAILABLE
    order: Order | None = None
    makes: type[Made] | None = None
    same: str = "results"
    record: type[ApiRecord] = JobRecord
    show: Callable[[Any, Job], ApiRecord] | None = None
    reading: Reading | None = None
    planned: bool = False
    reads_numbers: bool = False
    gives_way: bool = False
    module: str = ""

    @property
    def noun(self) -> str:
        """The noun for the result of such a job."""
        return "job" if self.makes is None else self.makes.__name__.lower()

    def finish(self, session: Session, *, job_id: str, attempt: int, now: datetime, **results: Any) -> None:
        """End a running job and fill in the row that it makes, by column. Idempotent."""
        assert self.makes is not None
        job = lock_attempt(session, job_id, attempt, self.name, replay=JobState.SUCCEEDED)
        made = made_by(session, self.makes, job_id)
        if job.state is JobState.SUCCEEDED:
            if getattr(made, self.same) != results[self.same]:
                raise stale_attempt(job, attempt)
            return
        if hasattr(made, "finished_at"):
            made.finished_at = now
        for column, value in results.items():
            setattr(made, column, value)
        end_job(session, job, JobState.SUCCEEDED, now=now)


def failure_of(job: Any) -> FailureFacts | None:
    """Return why a job, or a row of its columns, failed."""
    code = job.failure_code
    return None if code is None else FailureFacts(code=code.value, message=code.message)
