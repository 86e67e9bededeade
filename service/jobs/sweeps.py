"""Sweeps of recipe options: the whole price is held before the first trial starts.

One transaction holds the price of every trial, or of none, with one hold per trial. It locks the account before it
compares the sum with the remaining budget. So no other hold comes in between, and readers see all the holds or none.
Every trial is paid for. Choosing the best trial by measurements on a *public* dataset is post-processing of releases
and costs nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from obscura.wire.job_schemas import SweepRequest
from obscura.wire.texts import TRIALS_MAX, TRIALS_MIN
from obscura.wire.words import ENDED, TRAIN
from privacy.plans.plan import Plan
from service import ledger, quotas
from service.db.base import new_id
from service.db.job_tables import Job, Sweep
from service.errors import InvalidInput, SweepTooExpensive, require_name
from service.identity.access import find, visible
from service.jobs.kind import Ask
from service.jobs.kinds.train import hold_at_current_rate, hold_price, newest_release
from service.jobs.lifecycle import request_cancel
from service.jobs.planning import TrainingSet, plan_on, require_anchors_ready, require_content
from service.jobs.submission import remember


@dataclass(frozen=True)
class Trial:
    """One training of a sweep: its epsilon at the account's delta, and the recipe's options."""

    epsilon: float
    options: Mapping[str, Any]


def requested_trials(body: SweepRequest) -> list[Trial]:
    """Return the trials of a request; raise InvalidInput if neither a trial nor the sweep has an epsilon."""
    trials = []
    for number, asked in enumerate(body.trials, start=1):
        epsilon = body.epsilon if asked.epsilon is None else asked.epsilon
        if epsilon is None:
            raise InvalidInput(f"Trial {number} has no epsilon: state it for the trial, or for the whole sweep.")
        trials.append(Trial(epsilon, asked.options))
    return trials


def plan_trials(session: Session, trained: TrainingSet, recipe: str, trials: Sequence[Trial]) -> list[Plan]:
    """Compute the plan of each trial, with its price for the account."""
    plans = []
    for number, trial in enumerate(trials, start=1):
        try:
            plans.append(plan_on(session, trained, recipe, trial.epsilon, trial.options))
        except InvalidInput as error:
            raise InvalidInput(f"Trial {number}: {error.message}", **{**error.numbers, "trial": number}) from error
    return plans


def submit_sweep(
    session: Session,
    *,
    principal: str,
    idempotency_key: str | None,
    name: str,
    dataset_id: str,
    recipe: str,
    trials: Sequence[Trial],
    evaluation_dataset_id: str | None,
    now: datetime,
) -> Sweep:
    """Accept a sweep and hold the price of all its trials, or write nothing."""
    if not TRIALS_MIN <= len(trials) <= TRIALS_MAX:
        raise InvalidInput(f"A sweep has {TRIALS_MIN} to {TRIALS_MAX} trials; {len(trials)} were given.")
    name = require_name(name, "A sweep's name")
    body = {
        "kind": "sweep",
        "name": name,
        "dataset_id": dataset_id,
        "recipe": recipe,
        "trials": [{"epsilon": trial.epsilon, "options": dict(trial.options)} for trial in trials],
        "evaluation_dataset_id": evaluation_dataset_id,
    }
    sweep_id = new_id("swp")
    first_id = remember(session, principal, idempotency_key, body, sweep_id, now)
    if first_id is not None:
        return find(session, Sweep, first_id)

    def price_and_hold(trained: TrainingSet) -> Sweep:
        require_content(session, trained, recipe, evaluation_dataset_id)
        plans = plan_trials(session, trained, recipe, trials)
        for plan in plans:  # before the account is locked: deletions also lock datasets before accounts
            require_anchors_ready(session, plan)
        account = ledger.lock_to_hold(session, trained.account.id, trained.privacy_filter)
        # Meanwhile the limit may have been lowered, or other jobs may hold budget.
        budgets_nano = [trained.budget_nano(trial.epsilon) for trial in trials]
        if sum(budgets_nano) > account.left_nano:
            lacking = ledger.insufficient(account, sum(budgets_nano)).suggesting(newest_release(session, account))
            fitting = [sum(budgets_nano[:count]) <= account.left_nano for count in range(1, len(trials) + 1)]
            left_each_nano = account.left_nano // len(trials)
            raise SweepTooExpensive(
                trials=len(trials),
                trials_affordable=sum(fitting),
                epsilon_affordable_for_each=ledger.affordable_epsilon(trained.privacy_filter, left_each_nano),
                requested_epsilon_of_each=float(max(trial.epsilon for trial in trials)),
                **asdict(lacking),
            )
        sweep = Sweep(
            id=sweep_id,
            account_id=trained.account.id,
            dataset_id=dataset_id,
            name=name,
            recipe=recipe,
            cost_nano=sum(plan.cost_nano for plan in plans),
            created_at=now,
        )
        session.add(sweep)
        session.flush()
        for position, (trial, plan) in enumerate(zip(trials, plans, strict=True)):
            # Workers claim the oldest job first, so trials keep their order.
            ask = Ask(new_id("job"), now + timedelta(microseconds=position))
            named = {"evaluation_dataset_id": evaluation_dataset_id, "sweep_id": sweep_id}
            hold_price(session, ask, trained, plan, epsilon=trial.epsilon, options=trial.options, **named)
        quotas.require_jobs(session, trained.account.project_id)
        return sweep

    return hold_at_current_rate(session, dataset_id, price_and_hold)


def jobs_of_sweep(session: Session, sweep_id: str) -> Sequence[Job]:
    """Return the trials of a sweep as jobs, in the order of the request."""
    trials = visible(session, Job).where(Job.sweep_id == sweep_id, Job.kind == TRAIN).order_by(Job.created_at)
    return session.scalars(trials).all()


def cancel_sweep(session: Session, *, sweep_id: str, now: datetime, discard: bool = False) -> Sweep:
    """Cancel every trial and evaluation that has not ended, as `request_cancel` does. Idempotent."""
    sweep = find(session, Sweep, sweep_id)
    # Lock all jobs before the account: ending a queued job locks the account, and workers may be ending running jobs.
    waiting = select(Job).where(Job.sweep_id == sweep_id, Job.state.not_in(ENDED)).order_by(Job.id)
    for job in session.scalars(waiting.with_for_update().execution_options(populate_existing=True)).all():
        request_cancel(session, job_id=job.id, now=now, discard=discard)
    return sweep
