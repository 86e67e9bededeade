"""The description of a kind of job: each file of `service.jobs.kinds` ends with its `KIND`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from obscura.wire.job_schemas import FailureFacts, JobRecord
from obscura.wire.schemas import ApiRecord, ApiRequest
from obscura.wire.words import JobState
from service.db.job_tables import FailureCode, Job, Made
from service.errors import NotFound
from service.identity.access import visible
from service.jobs.endings import end_job, lock_attempt
from service.ledger import stale_attempt

SAMPLES_MAX = 200_000  # default of the setting
MadeByJob = TypeVar("MadeByJob", bound=Made)


@dataclass(frozen=True)
class Ask:
    """A request for a new job: its id, its time, and the number of images that it may generate."""

    job_id: str
    now: datetime
    samples_max: int = SAMPLES_MAX


@dataclass(frozen=True)
class Order:
    """The route that accepts a kind of job. The body's fields, and a `release_id`, are the arguments of `accept`."""

    path: str
    tag: str
    summary: str
    description: str
    request: type[ApiRequest]


@dataclass(frozen=True)
class Reading:
    """The route that reads the result of a kind of job, below `path`."""

    path: str
    prefix: str  # of the results' ids
    tag: str
    description: str
    scope: str = "read"  # that the key must have
    image: str = ""  # name of a column with a PNG image, and the last segment of its route
    image_description: str = ""
    examples: Mapping[str, Any] = field(default_factory=dict)  # for fields whose meaning differs between records


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of job."""

    name: str  # in the job's row
    many: str  # the plural noun on pages
    title: Callable[[Any, Any], str]  # on pages, from the job's row and, if loaded, the row of its result
    accept: Callable[..., Job]  # validates and queues a job, from a session, an `Ask`, and the order's fields
    failed: FailureCode  # by default
    unavailable: FailureCode = FailureCode.DATASET_UNAVAILABLE  # if an input is missing
    order: Order | None = None  # None if it cannot be requested over HTTP
    makes: type[Made] | None = None  # the table of the result's row
    same: str = "results"  # the column of the result that must not differ if an attempt ends the job again
    record: type[ApiRecord] = JobRecord  # the schema of the result; of the job if there is no result row
    show: Callable[[Any, Job], ApiRecord] | None = None  # returns the record, from the result and the job
    reading: Reading | None = None  # the route of the record
    planned: bool = False  # it carries out a training's plan
    reads_numbers: bool = False  # only of a dataset's declaration, so the dataset can be erased after the job has ended
    gives_way: bool = False  # its process uses only idle cores
    module: str = ""  # its `run(context)` runs an attempt; by default `workers.train.kinds.NAME`

    @property
    def noun(self) -> str:
        """The noun for the result of this kind of job."""
        return "job" if self.makes is None else self.makes.__name__.lower()

    def finish(self, session: Session, *, job_id: str, attempt: int, now: datetime, **results: Any) -> None:
        """End a running job successfully and fill in the columns of its result. Idempotent."""
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


def made_by(session: Session, table: type[MadeByJob], job_id: str) -> MadeByJob:
    made = session.scalar(visible(session, table).where(table.job_id == job_id))
    if made is None:
        raise NotFound(f"There is no {table.__name__.lower()} of this job.", job_id=job_id)
    return made


def failure_of(job: Any) -> FailureFacts | None:
    """Return the failure of a job, or of a row with a job's columns; None if the job did not fail."""
    code = job.failure_code
    return None if code is None else FailureFacts(code=code.value, message=code.message)
