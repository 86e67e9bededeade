"""Jobs: ask for a training, follow it, stop it."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Request, Response

from service import auth, jobs
from service.api import job_views
from service.api.conditional import answer
from service.api.deps import PROBLEMS, READ, TRAIN, IdempotencyKey, Paging, Reader, Running, Service, Trainer
from service.api.events import EventStream, Snapshot, follow
from service.api.pages import cut, newest_first
from service.api.schemas import FINAL_STATES, CancelRequest, Identifier, JobRecord, JobRequest, Page
from service.db.job_tables import Job
from service.db.session import transaction
from service.extractors import require_extractor
from service.failpoints import failpoint

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses=PROBLEMS)
JobId = Annotated[Identifier, Path()]

_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events `progress` and, last, `finished`; the data of each is the job's state and progress.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
    204: {"description": "The job has ended and the client has seen its final event."},
}


@router.post("", status_code=202, response_model=JobRecord, summary="Ask for a training")
def create_job(
    service: Running, principal: Trainer, request: Request, key: IdempotencyKey, body: JobRequest
) -> Response:
    """Hold the plan's price and queue the training. 409 with all numbers when the account cannot pay.

    The unspent rest of the hold returns when the job ends; what was charged by then stays spent.
    """
    with transaction(service.factory) as session:
        job = jobs.submit_training(
            session, principal=principal.id, idempotency_key=key, now=service.clock(), **body.model_dump()
        )
        require_extractor(service.settings.data_dir, job.plan)
        record = job_views.jobs(session, [job])[0]
        failpoint("accept.before")
    failpoint("accept.after")
    service.ring()
    return answer(request, record, status_code=202, headers={"Location": f"/v1/jobs/{record.id}"})


@router.get("", dependencies=[READ], response_model=Page[JobRecord], summary="List jobs")
def list_jobs(service: Running, request: Request, page: Paging) -> Response:
    """List the jobs, newest first."""
    with transaction(service.factory, read_only=True) as session:
        query = newest_first(job_views.JOBS, Job.created_at, Job.id, page.cursor, page.limit)
        rows, cursor = cut(session.execute(query).all(), page.limit)
        shown = job_views.jobs(session, rows)
    return answer(request, Page[JobRecord](items=shown, next_cursor=cursor))


@router.get("/{job_id}", dependencies=[READ], response_model=JobRecord, summary="Read a job")
def read_job(service: Running, request: Request, job_id: JobId) -> Response:
    """Read a job: its state, its planned and charged budget, and what it made."""
    with transaction(service.factory, read_only=True) as session:
        record = job_views.jobs(session, [jobs.get_job(session, job_id)])[0]
    headers = {} if record.state in FINAL_STATES else {"Retry-After": "2"}
    return answer(request, record, headers=headers)


@router.get("/{job_id}/events", summary="Follow a job", response_class=Response, responses=_EVENTS)
def follow_job(
    service: Running,
    principal: Reader,
    job_id: JobId,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID", max_length=100)] = None,
) -> Response:
    """Follow a job as server-sent events; the last one carries the final state.

    Streams are bounded in number and duration: a client reconnects with Last-Event-ID and misses nothing.
    """
    read = partial(_snapshot, service, job_id, principal.id)
    first = read()
    if first is not None and first.final and first.id == last_event_id:
        return Response(status_code=204)
    service.streams.take(principal.id)
    events = follow(read, last_event_id=last_event_id, limits=service.streams.limits, stopping=service.stopping)
    return EventStream(events, on_close=partial(service.streams.give_back, principal.id))


@router.post("/{job_id}/cancel", dependencies=[TRAIN], response_model=JobRecord, summary="Cancel a job")
def cancel_job(service: Running, request: Request, job_id: JobId, body: CancelRequest | None = None) -> Response:
    """End a job early. A queued job ends at once and its hold returns.

    A training that has charged publishes what it has made, marked as incomplete, and the unspent rest of its hold
    returns. `publishes_if_cancelled` of the job says before whether there is anything to publish. With `discard` it
    stops at once and publishes nothing; what was charged stays spent.
    """
    discard = body is not None and body.discard
    with transaction(service.factory) as session:
        job = jobs.request_cancel(session, job_id=job_id, now=service.clock(), discard=discard)
        record = job_views.jobs(session, [job])[0]
    return answer(request, record)


def _snapshot(service: Service, job_id: str, key_id: str) -> Snapshot | None:
    """Look at a job for whoever follows it, whose key may have been revoked since the last look."""
    with transaction(service.factory, read_only=True) as session:
        if not auth.is_valid(session, key_id):
            return None
        job = jobs.get_job(session, job_id)
        return Snapshot(job.progress_version, job_views.event(session, job))
