"""Accept new jobs, for routes and for forms: the order, its record, the doorbell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from obscura.wire.job_schemas import PlanRequest
from obscura.wire.sweep_schemas import SweepRequest
from privacy.plans.registry import plan_from_json
from service import jobs
from service.api.deps import Service
from service.db.job_tables import Job, Sweep
from service.db.session import transaction
from service.errors import ObscuraError
from service.failpoints import failpoint
from service.jobs.kind import Kind
from service.views.plans import require_extractor

Record = TypeVar("Record")


def order(
    service: Service,
    principal_id: str,
    key: str | None,
    kind: Kind,
    fields: Mapping[str, Any],
    show: Callable[[Session, Job], Record],
) -> Record:
    """Accept a job, and return what is shown of it.

    Args:
        fields: of the order, as the kind accepts it.

    Raises:
        ObscuraError: the order is refused; nothing was written.
    """
    plans = [fields] if kind.planned else []
    with accepting(service, *plans) as session:
        job = jobs.submit(
            session,
            kind,
            principal=principal_id,
            idempotency_key=key,
            now=service.clock(),
            samples_max=service.settings.samples_max,
            **fields,
        )
        require_extractors(service, job)
        return show(session, job)


def order_sweep(
    service: Service, principal_id: str, key: str | None, body: SweepRequest, show: Callable[[Session, Sweep], Record]
) -> Record:
    """Accept a search, all its trials or none, and return what is shown of it.

    Raises:
        ObscuraError: the search is refused; nothing was written.
    """
    trials = jobs.trials_asked(body)
    facts = body.model_dump(exclude={"trials", "epsilon"})
    with accepting(service, *(facts | vars(trial) for trial in trials)) as session:
        sweep = jobs.submit_sweep(
            session, principal=principal_id, idempotency_key=key, trials=trials, now=service.clock(), **facts
        )
        require_extractors(service, *jobs.jobs_of_sweep(session, sweep.id))
        return show(session, sweep)


@contextmanager
def accepting(service: Service, *plans: Mapping[str, Any]) -> Iterator[Session]:
    """Open the transaction that accepts new jobs, and ring for them afterwards. They wait while a disk is short.

    What a plan needs may take a second, and is remembered: it is found before, while nobody waits for the database.
    What is refused there is refused again, with the right words, where it is asked for.
    """
    with transaction(service.factory, read_only=True) as session, suppress(ObscuraError):
        for plan in plans:
            asked = {name: plan[name] for name in PlanRequest.model_fields if name in plan}
            jobs.plan_job(session, **asked)
    with transaction(service.factory) as session:
        yield session
        failpoint("accept.before")
    failpoint("accept.after")
    service.ring()


def require_extractors(service: Service, *planned: Job) -> None:
    """Let jobs pass whose plans name extractors that the operator has provided, or none.

    Raises:
        InvalidInput: one is missing.
    """
    for job in planned:
        if job.plan:
            require_extractor(service.settings, plan_from_json(job.plan))
