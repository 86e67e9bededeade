"""Accept new jobs and sweeps, for the API and for forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from obscura.wire.job_schemas import PlanRequest, SweepRequest
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
    """Accept a job, or refuse it without writing anything.

    Args:
        fields: Of the order, as the kind accepts them.
        show: Makes the returned record.
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
    """Accept a sweep, all trials or none."""
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
    """Open the transaction that accepts new jobs, and ring the doorbell after it.

    Planning may take a second and is cached, so it runs first, outside the writing transaction. Errors surface later,
    with the right message.
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
    """Raise InvalidInput unless the operator has installed every extractor that the jobs need."""
    for job in planned:
        if job.plan:
            require_extractor(service.settings, plan_from_json(job.plan))
