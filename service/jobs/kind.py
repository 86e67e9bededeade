"""What each file of `service.jobs.kinds` says of its kind of job, in one `KIND` at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from obscura.wire.words import FailureCode
from service.db.job_tables import Job
from service.jobs.lookup import Made

SAMPLES_MAX = 200_000  # where the service's settings say no other number


@dataclass(frozen=True)
class Ask:
    """A request for a new job: the id that it will have, when it is made, and how many images it may draw."""

    job_id: str
    now: datetime
    samples_max: int = SAMPLES_MAX


@dataclass(frozen=True)
class Kind:
    """A kind of job.

    Attributes:
        name: the word in the job's row.
        title: what pages call such a job, from its row and from what it makes, if that is at hand.
        accept: takes a session, an `Ask` and the fields of the order as keywords; refuses, or queues the job.
        failed: the code of a failure that is nothing special.
        unavailable: the code where something is gone that the job reads.
        makes: the table of what it makes; None where that is no row of its own.
        planned: it carries out a training's plan.
        gives_way: its process takes only the cores that nobody else wants.
        module: of the worker, whose `run(context)` does an attempt's work; by default that of `workers.train.kinds`
            with this name.
    """

    name: str
    title: Callable[[Any, Any], str]
    accept: Callable[..., Job]
    failed: FailureCode
    unavailable: FailureCode = FailureCode.DATASET_UNAVAILABLE
    makes: type[Made] | None = None
    planned: bool = False
    gives_way: bool = False
    module: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "module", self.module or f"workers.train.kinds.{self.name}")
