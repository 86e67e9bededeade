"""The one way in for new jobs, for routes and for forms: room on the disks, the order, its record, the doorbell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from privacy.plans.plan import Plan
from privacy.plans.registry import plan_from_json
from service import jobs
from service.api.deps import Service
from service.db.job_tables import Job
from service.db.session import transaction
from service.disk import require_room
from service.errors import InvalidInput, ObscuraError
from service.failpoints import failpoint
from service.jobs.kind import Kind
from service.settings import Settings

Record = TypeVar("Record")
_EXTRACTORS_NAMED_MAX = 10


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
        service: that runs.
        principal_id: who asks.
        key: the request's idempotency key.
        kind: of the job.
        fields: of the order, as the kind accepts it.
        show: makes the record.

    Raises:
        OutOfDisk: a disk of the service has too little room for anything to begin.
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


@contextmanager
def accepting(service: Service, *plans: Mapping[str, Any]) -> Iterator[Session]:
    """Open the transaction that accepts new jobs, where a disk has room for them, and ring for them afterwards.

    What a plan needs may take a second, and is remembered: it is found before, while nobody waits for the database.
    What is refused there is refused again, with the right words, where it is asked for.
    """
    require_room(service.settings)
    with transaction(service.factory, read_only=True) as session, suppress(ObscuraError):
        for plan in plans:
            asked = {name: plan[name] for name in ("dataset_id", "recipe", "epsilon", "options")}
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


def require_extractor(settings: Settings, plan: Plan) -> None:
    """Let a plan pass whose extractor, a network that the operator provides, is there, or that needs none.

    An extractor NAME is `NAME.safetensors`, its weights, and `NAME.json`, which says what they are. Only workers read
    them, with torch.

    Args:
        settings: of this process.
        plan: an extractor's name has the form of one there, and is no path.

    Raises:
        InvalidInput: one of its files is missing.
    """
    name = plan.config.needed_extractor
    if not name:
        return
    folder = settings.extractors_path
    if all((folder / f"{name}{suffix}").is_file() for suffix in (".json", ".safetensors")):
        return
    known = sorted(path.stem for path in folder.glob("*.safetensors") if path.with_suffix(".json").is_file())
    there = f"there are {', '.join(known[:_EXTRACTORS_NAMED_MAX])}" if known else "so far there are no networks"
    raise InvalidInput(f"This service has no extractor {name}: {there}. Its operator can add one.", extractor=name)
