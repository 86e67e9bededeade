"""Sweeps with their trials, their total cost, and the best trial on public data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from obscura.wire.job_schemas import FINAL_STATES, SweepRecord, SweepTotals, TrialFacts
from obscura.wire.schemas import record_of
from obscura.wire.words import ENDED, TRAIN, HoldState
from service.db.dataset_tables import Dataset
from service.db.job_tables import Evaluation, Job, Release, Sweep
from service.errors import LedgerCorruption
from service.identity.access import find, visible
from service.jobs.kind import failure_of
from service.jobs.kinds.evaluate import newest_evaluations, with_figures
from service.ledger import Hold
from service.views.accounts import Payer, Payments
from service.views.jobs import ON_PAGES, JobView, payments_of
from service.views.jobs import views as job_views

SWEEPS_SHOWN = 6
# For lists, which only count ended trials and sum holds. Loading records would take a third of a page's time.
_STATES = select(Job.id, Job.kind, Job.account_id, Job.sweep_id, Job.state, Job.hold_id, Job.epsilon).where(
    Job.kind == TRAIN
)
_UNFINISHED_EVALUATIONS = select(Job.sweep_id).where(Job.kind != TRAIN, Job.state.not_in(ENDED))
_TRIALS = (
    ON_PAGES.add_columns(Release.summary, Release.incomplete)
    .outerjoin(Release, Release.id == Job.release_id)
    .where(Job.kind == TRAIN)
    .order_by(Job.created_at)
)


def records(session: Session, rows: Sequence[Sweep]) -> list[SweepRecord]:
    """Return the records of sweeps. Raise LedgerCorruption if an account contradicts its log."""
    trials = _trials(session, rows)
    return _records(session, rows, trials, payments_of(session, trials).require_sound())


def newest_rows(session: Session, account_id: str | None = None) -> list[dict[str, Any]]:
    """Return the latest sweeps, optionally of one account, each with its payer and the totals of its trials.

    If a paying account contradicts its log, no amount may be shown.
    """
    latest = visible(session, Sweep).order_by(Sweep.created_at.desc(), Sweep.id).limit(SWEEPS_SHOWN)
    rows = session.scalars(latest if account_id is None else latest.where(Sweep.account_id == account_id)).all()
    if not rows:
        return []
    found = visible(session, Job, _STATES).where(Job.sweep_id.in_([row.id for row in rows]))
    trials: Sequence[Any] = session.execute(found).all()
    paid = payments_of(session, trials)
    payers = {id: paid.payer(id) for id in {row.account_id for row in rows}}
    shown = []
    for row in rows:
        own = [trial for trial in trials if trial.sweep_id == row.id]
        holds = [_hold_of(trial, paid) for trial in own]
        ended = sum(trial.state in FINAL_STATES for trial in own)
        sums = {"reserved_nano": sum(map(_still_held, holds)), "spent_nano": sum(hold.captured_nano for hold in holds)}
        shown.append({"sweep": row, "payer": payers[row.account_id], "trials": len(own), "ended": ended, **sums})
    return shown


@dataclass(frozen=True)
class SweepView:
    """A sweep on its own page. If the paying account contradicts its log, no amount is shown."""

    sweep: SweepRecord
    payer: Payer
    dataset_name: str
    classes: int
    jobs: Sequence[JobView]  # the trials, in order
    differing: Sequence[str]  # options that differ between trials
    ended: int  # number of ended trials


def view(session: Session, sweep_id: str, now: datetime) -> SweepView:
    row = find(session, Sweep, sweep_id)
    rows = _trials(session, [row])
    paid = payments_of(session, rows)
    (sweep,) = _records(session, [row], rows, paid)
    dataset = find(session, Dataset, row.dataset_id)
    return SweepView(
        sweep=sweep,
        payer=paid.payer(row.account_id),
        dataset_name=dataset.name,
        classes=len(dataset.classes),
        jobs=job_views(session, rows, now),
        differing=differing([trial.options for trial in sweep.trials]),
        ended=sum(trial.state in FINAL_STATES for trial in sweep.trials),
    )


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of options that differ between configurations."""
    names = dict.fromkeys(name for config in configs for name in config)
    return [name for name in names if any(config.get(name) != configs[0].get(name) for config in configs)]


def _trials(session: Session, rows: Sequence[Sweep]) -> Sequence[Row[Any]]:
    trials = visible(session, Job, _TRIALS).where(Job.sweep_id.in_([row.id for row in rows]))
    return session.execute(trials).all() if rows else []


def _records(session: Session, rows: Sequence[Sweep], trials: Sequence[Row[Any]], paid: Payments) -> list[SweepRecord]:
    named = {job.release_id: job.evaluation_dataset_id for job in trials if job.release_id is not None}
    newest = newest_evaluations(session, named, named)
    evaluations = visible(session, Job, _UNFINISHED_EVALUATIONS).where(Job.sweep_id.in_([row.id for row in rows]))
    measuring = set(session.scalars(evaluations))
    shown = []
    for row in rows:
        epsilon_of = paid.epsilon_of(row.account_id)
        own = [_trial(job, paid, newest.get(job.release_id)) for job in trials if job.sweep_id == row.id]
        reserved_nano, spent_nano = sum(trial.reserved_nano for trial in own), sum(trial.spent_nano for trial in own)
        measured = {trial.job_id: figure for trial in own if (figure := trial.compared_by) is not None}
        ended = all(trial.state in FINAL_STATES for trial in own) and row.id not in measuring
        totals = SweepTotals(
            cost_nano=row.cost_nano,
            reserved_nano=reserved_nano,
            spent_nano=spent_nano,
            returned_nano=row.cost_nano - reserved_nano - spent_nano,
            cost_epsilon=epsilon_of(row.cost_nano),
            spent_epsilon=epsilon_of(spent_nano),
        )
        shown.append(
            record_of(
                SweepRecord,
                row,
                state="ended" if ended else "open",
                trials=own,
                totals=totals,
                best_job_id=max(measured, key=measured.__getitem__, default=None),
            )
        )
    return shown


def _still_held(hold: Hold) -> int:
    return hold.amount_nano if hold.state in (HoldState.HELD, HoldState.ARMED) else 0


def _hold_of(trial: Row[Any], paid: Payments) -> Hold:
    if trial.hold_id is None or trial.epsilon is None:
        raise LedgerCorruption("A trial of a sweep lacks its hold or its epsilon.", job_id=trial.id)
    return paid.holds[trial.hold_id]


def _trial(row: Row[Any], paid: Payments, newest: Evaluation | None) -> TrialFacts:
    hold, figures = _hold_of(row, paid), {} if row.summary is None else with_figures(row.summary, newest)
    return record_of(
        TrialFacts,
        row,
        job_id=row.id,
        reserved_nano=_still_held(hold),
        charged_nano=hold.charged_nano,
        spent_nano=hold.captured_nano,
        spent_epsilon=paid.epsilon_of(row.account_id)(hold.captured_nano),
        accuracy=figures.get("accuracy"),
        balanced_accuracy=figures.get("balanced_accuracy"),
        failure=failure_of(row),
        incomplete=row.incomplete is not None,
    )
