"""What each file of `service.jobs.kinds` says of its kind of job, in one `KIND` at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from obscura.wire.job_schemas import FailureFacts, JobRecord
from obscura.wire.schemas import ApiRecord, ApiRequest
from service.db.job_tables import FailureCode, Job, Made

SAMPLES_MAX = 200_000  # where the service's settings say no other number


@dataclass(frozen=True)
class Ask:
    """A request for a new job: the id that it will have, when it is made, and how many images it may draw."""

    job_id: str
    now: datetime
    samples_max: int = SAMPLES_MAX


@dataclass(frozen=True)
class Order:
    """How a kind of job is asked for over HTTP, and how the API describes that.

    Attributes:
        path: where it is posted. A `{release_id}` in it is a field of the order.
        request: the body: the other fields of the order.
    """

    path: str
    tag: str
    summary: str
    description: str
    request: type[ApiRequest]


@dataclass(frozen=True)
class Reading:
    """Where what a kind of job makes is read, and how the API describes that.

    Attributes:
        path: below which it has its id.
        prefix: of its ids.
        scope: that a key needs for it.
        picture: the column that holds a PNG picture of it, which has its name below that.
        picture_description: of that picture.
        examples: of fields of the record that mean something else than those of the same name in others.
    """

    path: str
    prefix: str
    tag: str
    description: str
    scope: str = "read"
    picture: str = ""
    picture_description: str = ""
    examples: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of job.

    Attributes:
        name: the word in the job's row.
        many: what several such jobs are called.
        title: what pages call such a job, from its row and from what it makes, if that is at hand.
        accept: takes a session, an `Ask` and the fields of the order as keywords; refuses, or queues the job.
        failed: the code of a failure that is nothing special.
        unavailable: the code where something is gone that the job reads.
        order: how it is asked for over HTTP; None where it cannot be.
        makes: the table of what it makes; None where that is no row of its own.
        record: what is shown of that; of the job, where it makes none.
        show: makes the record, from that and the job.
        reading: where that has an address of its own; None where it has none.
        planned: it carries out a training's plan.
        reads_numbers: of a dataset it reads what was declared alone: one that has ended keeps none from being erased.
        gives_way: its process takes only the cores that nobody else wants.
        module: of the worker, whose `run(context)` does an attempt's work; by default that of `workers.train.kinds`
            with this name.
    """

    name: str
    many: str
    title: Callable[[Any, Any], str]
    accept: Callable[..., Job]
    failed: FailureCode
    unavailable: FailureCode = FailureCode.DATASET_UNAVAILABLE
    order: Order | None = None
    makes: type[Made] | None = None
    record: type[ApiRecord] = JobRecord
    show: Callable[[Any, Job], ApiRecord] | None = None
    reading: Reading | None = None
    planned: bool = False
    reads_numbers: bool = False
    gives_way: bool = False
    module: str = ""

    @property
    def noun(self) -> str:
        """What a job of this kind makes is called."""
        return "job" if self.makes is None else self.makes.__name__.lower()

    def __post_init__(self) -> None:
        object.__setattr__(self, "module", self.module or f"workers.train.kinds.{self.name}")


def failure_of(job: Any) -> FailureFacts | None:
    """Say why a job failed, from the closed set; the job may be a row of its columns."""
    code = job.failure_code
    return None if code is None else FailureFacts(code=code.value, message=code.message)
