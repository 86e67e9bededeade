"""Recovery after crashes: lost jobs, unsent messages, and files that no job will publish.

Everything here is idempotent and may run in several processes at once: claims are compare-and-set, and messages may
repeat. Files are moved to the trash only if no job will use or publish them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sqlalchemy import and_, or_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from obscura.wire.words import ENDED, TRAIN, JobState
from service import disk, inspection, installation, jobs, queue
from service.audit.data_folder import read_accepted
from service.background import Background
from service.datasets import deletion, receiving, states, withdrawal
from service.db.access_tables import Outbox
from service.db.base import is_id, release_id_of
from service.db.job_tables import Job, Release, Sample
from service.db.session import SessionFactory, among, transaction
from service.identity import recording
from service.logs import get_logger
from service.settings import Settings
from service.storage import interface, is_elsewhere, storage_of
from service.times import SETTLED, WatchedClock
from workers.supervise.attempts import claim_job

RECONCILE_SECONDS = 15.0
SWEEP_SECONDS = 900.0
SAMPLES_A_SWEEP_MAX = 1000
OUTBOX_DAYS = 1.0
STALE_FOLDER_SECONDS = 3600.0  # age of an unfinished folder without writes


def reconcile(settings: Settings, factory: SessionFactory, *, send: queue.Send, now: datetime) -> None:
    """Run one round of recovery.

    Do nothing if the database does not belong to the data folder. If an inspection has found a fault, remove nothing.
    """
    if folder := disk.short_of_room(settings):
        get_logger(__name__).warning("out_of_disk", folder=folder)  # jobs keep waiting
    with transaction(factory, read_only=True) as session:
        sound = inspection.may_remove(session, settings)
        ours = sound or installation.belongs(session, settings)
    if not ours:
        return
    _end_hopeless(settings, factory, now=now)
    with transaction(factory, read_only=True) as session:  # usually no write lock is needed
        silent = _silent(session, settings, now)
    if silent:
        with transaction(factory) as session:
            for job_id in _silent(session, settings, now):
                queue.ring(session, job_id, now=now)
    queue.deliver(factory, send, now=now)
    with transaction(factory) as session:
        queue.forget_sent(session, before=now - timedelta(days=OUTBOX_DAYS))
    inspection.watch_over(settings, factory, now=now)
    if sound:
        deletion.go_on(settings, factory)
        withdrawal.go_on(settings, factory)
        if is_elsewhere(settings):
            deletion.destroy_copies(settings, factory)
        receiving.clean_up(settings, factory, now=now)
        with transaction(factory) as session:
            states.check_keys(session, settings, contents=False)


def _end_hopeless(settings: Settings, factory: SessionFactory, *, now: datetime) -> None:
    """End lost jobs that have no attempts left, were cancelled, or must end early. Their armed budget is spent.

    A training that has paid for releases is requeued instead, so that its next attempt publishes them.
    """
    lost = and_(Job.state == JobState.RUNNING, Job.lease_until <= now)
    over = or_(Job.cancel_requested, Job.ended_early.is_not(None), Job.attempts_lost + 1 >= settings.attempts_max)
    with transaction(factory, read_only=True) as session:
        hopeless = session.scalars(select(Job.id).where(lost, over).order_by(Job.created_at).limit(64)).all()
    for job_id in hopeless:
        # The claim ends such a job, and returns an attempt only if something is left to publish, or the job has changed
        # meanwhile.
        attempt = claim_job(settings, factory, job_id=job_id, worker="reconciler", now=now)
        if attempt is not None:
            with transaction(factory) as session:
                jobs.give_back(session, job_id=attempt.job_id, attempt=attempt.number, now=now)


def sweep(settings: Settings, factory: SessionFactory, *, now: datetime, proved: bool = False) -> int:
    """Move folders that no job will use to the trash, and empty the trash; return the number of moved folders.

    These are work folders of ended jobs, artifacts of jobs that ended without publishing, abandoned unfinished folders,
    and samples older than `Settings.samples_days`. Unknown folders stay, because the database may be wrong. For the
    same reason, the ledger is verified again first, and nothing is moved or removed if an inspection has found a fault.
    A clock that has just jumped ahead must not make files look old. So the clock must have run for a day without a jump
    (`proved`, see `service.times.WatchedClock`), or agree with the creation time of a job. Old audit events are deleted
    as well.
    """
    try:
        recording.remove_old(factory, days=settings.audit_log_days, now=now, proved=proved)
    except SQLAlchemyError as error:  # the next round tries again
        get_logger(__name__).error("audit_events_not_removed", error=type(error).__name__)
    storage = storage_of(settings)
    work = [name for name in storage.list("work") if is_id(name, "job")]
    releases, idle_releases = _finished_and_idle(storage, "releases", "rel")
    samples, idle_samples = _finished_and_idle(storage, "samples", "smp")
    # In a snapshot, because a job that publishes between two reads would appear neither live nor published.
    with transaction(factory, read_only=True, snapshot=True) as session:
        ended = among(session, select(Job.id).where(Job.state.in_(ENDED)), Job.id, work)
        doomed = [interface.work_key(job_id) for job_id in work if job_id in ended]
        doomed += [f"releases/{name}" for name in _unpublished_releases(session, releases, idle_releases)]
        doomed += [f"samples/{name}" for name in _unpublished_samples(session, samples, idle_samples)]
    overdue = interface.trashed_before(storage, now - timedelta(days=settings.trash_days))
    if overdue and not (proved or _agrees(factory, now, settings.trash_days)):
        overdue = []
    old: list[str] = []
    if settings.samples_days:
        before = now - timedelta(days=settings.samples_days)
        drawn = select(Sample.id).join(Job, Job.id == Sample.job_id).order_by(Job.finished_at, Sample.id)
        drawn = drawn.where(Sample.sha256.is_not(None), Sample.removed_at.is_(None), Job.finished_at < before)
        with transaction(factory, read_only=True) as session:
            old = list(session.scalars(drawn.limit(SAMPLES_A_SWEEP_MAX)))
    if old and not (proved or _agrees(factory, now, settings.samples_days)):
        old = []
    if not doomed and not overdue and not old:
        return 0
    with transaction(factory, read_only=True) as session:
        allowed = inspection.may_remove(session, settings)
    if not allowed or not inspection.verify_again(settings, factory, full=False, now=now).clean:
        get_logger(__name__).warning("sweep_withheld", folders=len(doomed) + len(old), trash=len(overdue))
        return 0
    if old:  # recorded first, so that the next sweep finds them after a crash
        with transaction(factory) as session:
            session.execute(update(Sample).where(Sample.id.in_(old)).values(removed_at=now))
        doomed += [f"samples/{sample_id}" for sample_id in old]
    for key in overdue:
        get_logger(__name__).info("removed_for_good", folder=key)
        storage.remove(key)  # other processes may do so at the same time
    return sum(interface.put_away(storage, key, now=now) for key in doomed)


def _agrees(factory: SessionFactory, now: datetime, days: int) -> bool:
    """Return whether a job was created within these days, but over a day ago. If so, the clock has not just jumped."""
    if not days:
        return True
    made = select(Job.id).where(Job.created_at >= now - timedelta(days=days), Job.created_at <= now - SETTLED)
    with transaction(factory, read_only=True) as session:
        return session.scalar(made.limit(1)) is not None


def _finished_and_idle(storage: interface.Storage, shelf: str, prefix: str) -> tuple[list[str], dict[str, str]]:
    """Return the names of finished folders; and the ids, by name, of unfinished folders without recent writes."""
    ids = {name: name.split(".", 1)[0] for name in storage.list(shelf)}  # unfinished folders have a suffix after the id
    unfinished = [name for name, of in ids.items() if is_id(of, prefix) and name.endswith(interface.UNFINISHED)]
    idle = [name for name in unfinished if storage.idle_seconds(f"{shelf}/{name}") > STALE_FOLDER_SECONDS]
    return [name for name in ids if is_id(name, prefix)], {name: ids[name] for name in idle}


class Reconciler(Background):
    """Runs `reconcile` and `sweep` in a thread: at the start, then at an interval of at most one lease."""

    def __init__(
        self,
        settings: Settings,
        factory: SessionFactory,
        *,
        send: queue.Send,
        seconds: float = RECONCILE_SECONDS,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__("obscura-reconciler")
        self._settings, self._factory, self._send = settings, factory, send
        self._seconds, self._clock = min(seconds, settings.lease_seconds), clock

    def _work(self) -> None:
        swept = -math.inf
        watched = WatchedClock(self._clock())
        while True:
            try:
                reconcile(self._settings, self._factory, send=self._send, now=self._clock())
                if time.monotonic() - swept > SWEEP_SECONDS:
                    now = self._clock()
                    sweep(self._settings, self._factory, now=now, proved=watched.is_proved(now))
                    swept = time.monotonic()
            except Exception as error:  # the next round tries again
                get_logger(__name__).error("reconcile_failed", error=type(error).__name__)
            if self._stopping.wait(self._seconds):
                return


def _silent(session: Session, settings: Settings, now: datetime) -> list[str]:
    """Return the ids of the queued jobs that need a message, which wakes a worker.

    A message counts for the duration of a lease, because its reader may have died before it claimed the job. A message
    sent before the job's last lease ended does not count. Only the oldest training needs a message, because a message
    about any training starts the oldest.
    """
    since = now - timedelta(seconds=settings.lease_seconds)
    messages = select(Outbox.args, Outbox.created_at).order_by(Outbox.created_at, Outbox.id)
    messages = messages.where(Outbox.task == queue.TASK_RUN_JOB, Outbox.created_at > since)
    rung = {str(message.args[0]): message.created_at for message in session.execute(messages) if message.args}
    waiting = [*jobs.claimable(session, now=now, kind=TRAIN)[:1]]
    free = [kind for kind in jobs.KINDS if kind != TRAIN]
    waiting += [job_id for kind in free for job_id in jobs.claimable(session, now=now, kind=kind)]
    leased = select(Job.id, Job.lease_until).where(Job.id.in_(waiting))
    leases = {row.id: row.lease_until for row in session.execute(leased)}
    return [job_id for job_id in waiting if job_id not in rung or rung[job_id] < (leases[job_id] or since)]


def _unpublished_releases(session: Session, finished: list[str], idle: dict[str, str]) -> list[str]:
    unpublished = set(finished) - among(session, select(Release.id), Release.id, finished)
    if not unpublished and not idle:
        return []
    states = {release_id_of(job_id): state for job_id, state in session.execute(select(Job.id, Job.state))}
    unpublished -= read_accepted(session).releases  # paid for, but missing in a restored database
    doomed = [name for name in finished if name in unpublished and states.get(name) in ENDED]
    return doomed + [name for name, release_id in idle.items() if release_id in states]


def _unpublished_samples(session: Session, finished: list[str], idle: dict[str, str]) -> list[str]:
    lost = select(Sample.id).join(Job, Job.id == Sample.job_id)
    lost = lost.where(or_(Job.state.in_((JobState.FAILED, JobState.CANCELLED)), Sample.removed_at.is_not(None)))
    doomed = among(session, lost, Sample.id, finished)
    known = among(session, select(Sample.id), Sample.id, list(idle.values()))
    return [name for name in finished if name in doomed] + [name for name, of in idle.items() if of in known]
