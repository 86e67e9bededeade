"""Recipes, plans, jobs and sweeps: plan, start, follow and cancel trainings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query, Response
from sqlalchemy.orm import Session

from obscura.wire import job_schemas as wire
from obscura.wire.schemas import Identifier, Name, Page
from obscura.wire.words import JobState
from privacy.plans.registry import RECIPES
from service import jobs
from service.api.answers import ApiRoute, newest_page
from service.api.deps import READ, TRAIN, IdempotencyKey, OfAccount, Paging, Reader, Running, Service, Trainer
from service.api.events import EventStream, Snapshot, follow
from service.api.middleware import LARGE_BODY_BYTES_MAX, body_limit
from service.api.routes.orders import accepting, require_extractors
from service.db.job_tables import Job, Sweep
from service.db.session import transaction
from service.errors import NotFound
from service.identity import access, auth
from service.views import jobs as views
from service.views import plans, sweeps

if TYPE_CHECKING:
    RecipeName = str
else:
    RecipeName = Literal[tuple(RECIPES)]

recipe_router = APIRouter(prefix="/v1/recipes", tags=["recipes"], route_class=ApiRoute)


@recipe_router.get("", dependencies=[READ], summary="List recipes")
def list_recipes() -> wire.RecipeList:
    """List the recipes with their presets, defaults and the JSON Schema of their options."""
    return wire.RecipeList(items=[plans.describe_recipe(recipe) for recipe in RECIPES.values()])


@recipe_router.get("/{recipe}", dependencies=[READ], summary="Read a recipe")
def read_recipe(recipe: Annotated[Name, Path(description="A name from `GET /v1/recipes`.")]) -> wire.RecipeRecord:
    """Return a recipe with its presets, defaults and the JSON Schema of its options."""
    known = RECIPES.get(recipe)
    if known is None:
        raise NotFound(f"There is no such recipe. Choose one of {', '.join(RECIPES)}.")
    return plans.describe_recipe(known)


plan_router = APIRouter(prefix="/v1/plans", tags=["plans"], route_class=ApiRoute)


@plan_router.post("", dependencies=[READ], summary="Plan a training")
@body_limit(LARGE_BODY_BYTES_MAX)
def create_plan(service: Running, body: wire.PlanRequest) -> wire.PlanRecord:
    """Plan a training: its releases, its cost, and the remaining budget. Opens no data and stores nothing."""
    with transaction(service.factory, read_only=True) as session:
        return plans.plan(session, service.settings, body)


router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=ApiRoute)
JobId = Annotated[Identifier, Path(description="The job.")]

_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events `progress`, and `finished` at the end. Their data is the job's state and progress.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
    204: {"description": "The job has ended and the client has seen its final event."},
}


@router.get("", dependencies=[READ], summary="List jobs")
def list_jobs(
    service: Running,
    page: Paging,
    account_id: OfAccount = None,
    state: Annotated[JobState | None, Query(description="Only jobs in this state.")] = None,
    recipe: Annotated[RecipeName | None, Query(description="Only jobs with this recipe.")] = None,
) -> Page[wire.JobRecord]:
    """List jobs, newest first, optionally of one account, state or recipe."""
    return newest_page(
        service, page, Job, views.records, columns=views.JOBS, account_id=account_id, state=state, recipe=recipe
    )


@router.get("/{job_id}", dependencies=[READ], summary="Read a job")
def read_job(service: Running, response: Response, job_id: JobId) -> wire.JobRecord:
    """Return a job with its state, its planned and charged budget, and its result."""
    with transaction(service.factory, read_only=True) as session:
        (record,) = views.records(session, [jobs.get_job(session, job_id)])
    if record.state not in wire.FINAL_STATES:
        response.headers["Retry-After"] = "2"
    return record


@router.get("/{job_id}/events", summary="Follow a job", response_class=Response, responses=_EVENTS)
def follow_job(
    service: Running,
    principal: Reader,
    job_id: JobId,
    last_event_id: Annotated[
        str | None, Header(alias="Last-Event-ID", max_length=100, description="The last event seen.")
    ] = None,
) -> Response:
    """Follow a job with server-sent events. The last event has the final state.

    Streams are limited in number and duration. Reconnect with Last-Event-ID to receive all later states.
    """

    def may_read(session: Session) -> bool:
        return auth.find_usable(session, principal.id, now=service.clock()) is not None

    return stream_events(service, principal, job_id, may_read, last_event_id)


def stream_events(
    service: Service,
    caller: access.Principal | None,
    job_id: str,
    may_read: Callable[[Session], bool],
    last_event_id: str | None,
) -> Response:
    """Return a job's event stream, which ends once `may_read` is false; 204 if the client has seen the final event."""

    def read() -> Snapshot | None:
        with transaction(service.factory, read_only=True) as session:
            if not may_read(session):
                return None
            job = jobs.get_job(session, job_id)
            return Snapshot(job.progress_version, views.event(session, job))

    first = read()
    if first is not None and first.final and first.id == last_event_id:
        return Response(status_code=204)
    slot = (caller.id, caller.project_id) if caller is not None else ("readers without a key", None)
    service.streams.take(*slot)
    events = follow(read, last_event_id=last_event_id, limits=service.streams.limits, stopping=service.stopping)
    return EventStream(events, on_close=partial(service.streams.give_back, *slot))


@router.post("/{job_id}/cancel", dependencies=[TRAIN], summary="Cancel a job")
def cancel_job(service: Running, job_id: JobId, body: wire.CancelRequest | None = None) -> wire.JobRecord:
    """End a job early. A queued job ends at once, and its reserved budget is returned.

    If a training has charged budget, it publishes its partial result, marked as incomplete, and the rest of its
    reservation is returned. The job's field `publishes_if_cancelled` shows in advance whether there is a result to
    publish. With `discard`, it stops at once and publishes nothing; its charges stay spent.
    """
    discard = body is not None and body.discard
    with transaction(service.factory) as session:
        job = jobs.request_cancel(session, job_id=job_id, now=service.clock(), discard=discard)
        return views.records(session, [job])[0]


sweep_router = APIRouter(prefix="/v1/sweeps", tags=["sweeps"], route_class=ApiRoute)
SweepId = Annotated[Identifier, Path(description="The sweep.")]
SWEEPS_A_PAGE_MAX = 6  # each has up to 64 trials with their holds


@sweep_router.post("", status_code=202, summary="Start a hyper-parameter search")
@body_limit(LARGE_BODY_BYTES_MAX)
def create_sweep(
    service: Running, principal: Trainer, response: Response, key: IdempotencyKey, body: wire.SweepRequest
) -> wire.SweepRecord:
    """Start a sweep: reserve the cost of all trials and queue them, or do nothing.

    409 if the account cannot pay for all trials; the error states how many it can pay for. Every trial costs budget,
    even if you use only one. Choosing a trial by accuracy on a public dataset is post-processing and costs nothing.
    """
    trials = jobs.requested_trials(body)
    facts = body.model_dump(exclude={"trials", "epsilon"})
    with accepting(service, *(facts | vars(trial) for trial in trials)) as session:
        now = service.clock()
        sweep = jobs.submit_sweep(session, principal=principal.id, idempotency_key=key, trials=trials, now=now, **facts)
        require_extractors(service, *jobs.jobs_of_sweep(session, sweep.id))
        (record,) = sweeps.records(session, [sweep])
    response.headers["Location"] = f"/v1/sweeps/{record.id}"
    return record


@sweep_router.get("", dependencies=[READ], summary="List sweeps")
def list_sweeps(service: Running, page: Paging, account_id: OfAccount = None) -> Page[wire.SweepRecord]:
    """List sweeps with their trials, newest first, at most six per page, optionally of one account."""
    short = replace(page, limit=min(page.limit, SWEEPS_A_PAGE_MAX))
    return newest_page(service, short, Sweep, sweeps.records, account_id=account_id)


@sweep_router.get("/{sweep_id}", dependencies=[READ], summary="Read a sweep")
def read_sweep(service: Running, response: Response, sweep_id: SweepId) -> wire.SweepRecord:
    """Return a sweep, with each trial's state, cost, and accuracy on public data."""
    with transaction(service.factory, read_only=True) as session:
        (record,) = sweeps.records(session, [access.find(session, Sweep, sweep_id)])
    if record.state != "ended":
        response.headers["Retry-After"] = "2"
    return record


@sweep_router.post("/{sweep_id}/cancel", dependencies=[TRAIN], summary="Cancel a sweep")
def cancel_sweep(service: Running, sweep_id: SweepId, body: wire.CancelRequest | None = None) -> wire.SweepRecord:
    """Cancel all unfinished trials and evaluations, as for jobs. The reserved budget of queued trials is returned."""
    discard = body is not None and body.discard
    with transaction(service.factory) as session:
        sweep = jobs.cancel_sweep(session, sweep_id=sweep_id, now=service.clock(), discard=discard)
        return sweeps.records(session, [sweep])[0]
