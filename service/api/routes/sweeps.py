"""Sweeps: hyper-parameter searches whose whole price is held before the first trial starts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from service import jobs
from service.api import job_views
from service.api.conditional import answer
from service.api.deps import PROBLEMS, READ, TRAIN, IdempotencyKey, Paging, Running, Trainer
from service.api.pages import cut, newest_first
from service.api.schemas import CancelRequest, Identifier, Page, SweepRecord, SweepRequest
from service.db.job_tables import Sweep
from service.db.session import transaction
from service.errors import InvalidInput
from service.extractors import require_extractor

router = APIRouter(prefix="/v1/sweeps", tags=["sweeps"], responses=PROBLEMS)
SweepId = Annotated[Identifier, Path()]
SWEEPS_A_PAGE_MAX = 6  # each is shown with up to 64 trials and their holds


@router.post("", status_code=202, response_model=SweepRecord, summary="Ask for a hyper-parameter search")
def create_sweep(
    service: Running, principal: Trainer, request: Request, key: IdempotencyKey, body: SweepRequest
) -> Response:
    """Hold the price of all trials in one transaction and queue them, or do nothing.

    409 with every number, and with how many trials would fit, when the account cannot pay for all. Every trial is paid
    for, whichever is used in the end. Choosing the best by its accuracy on a public dataset is post-processing.
    """
    trials = [_trial(body, position) for position in range(len(body.trials))]
    with transaction(service.factory) as session:
        sweep = jobs.submit_sweep(
            session,
            principal=principal.id,
            idempotency_key=key,
            name=body.name,
            dataset_id=body.dataset_id,
            recipe=body.recipe,
            trials=trials,
            evaluation_dataset_id=body.evaluation_dataset_id,
            now=service.clock(),
        )
        for trial in jobs.jobs_of_sweep(session, sweep.id):
            require_extractor(service.settings.data_dir, trial.plan)
        record = _record(session, sweep)
    service.ring()
    return answer(request, record, status_code=202, headers={"Location": f"/v1/sweeps/{record.id}"})


@router.get("", dependencies=[READ], response_model=Page[SweepRecord], summary="List sweeps")
def list_sweeps(service: Running, request: Request, page: Paging) -> Response:
    """List the sweeps with their trials, newest first, at most six on a page."""
    limit = min(page.limit, SWEEPS_A_PAGE_MAX)
    with transaction(service.factory, read_only=True) as session:
        query = newest_first(select(Sweep), Sweep.created_at, Sweep.id, page.cursor, limit)
        rows, cursor = cut(session.scalars(query).all(), limit)
        shown = job_views.sweeps(session, rows)
    return answer(request, Page[SweepRecord](items=shown, next_cursor=cursor))


@router.get("/{sweep_id}", dependencies=[READ], response_model=SweepRecord, summary="Read a sweep")
def read_sweep(service: Running, request: Request, sweep_id: SweepId) -> Response:
    """Read a sweep: each trial's state, what it holds or has spent, and how good its release is on public data."""
    with transaction(service.factory, read_only=True) as session:
        record = _record(session, jobs.get_sweep(session, sweep_id))
    return answer(request, record, headers={} if record.state == "ended" else {"Retry-After": "2"})


@router.post("/{sweep_id}/cancel", dependencies=[TRAIN], response_model=SweepRecord, summary="Cancel a sweep")
def cancel_sweep(service: Running, request: Request, sweep_id: SweepId, body: CancelRequest | None = None) -> Response:
    """End every trial and evaluation that has not ended, as `cancel` of a job does. Holds of queued trials return."""
    discard = body is not None and body.discard
    with transaction(service.factory) as session:
        made = jobs.cancel_sweep(session, sweep_id=sweep_id, now=service.clock(), discard=discard)
        record = _record(session, made)
    return answer(request, record)


def _trial(body: SweepRequest, position: int) -> jobs.Trial:
    asked = body.trials[position]
    epsilon = body.epsilon if asked.epsilon is None else asked.epsilon
    if epsilon is None:
        raise InvalidInput(f"Trial {position + 1} has no epsilon: give one to it, or to the sweep for all trials.")
    return jobs.Trial(epsilon, asked.options)


def _record(session: Session, sweep: Sweep) -> SweepRecord:
    return job_views.sweeps(session, [sweep])[0]
