"""The doorbell: rung in the job's transaction, sent after its commit, safe to send twice or never."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select

from service.db.access_tables import Outbox
from service.db.session import SessionFactory, transaction
from service.queue import TASK_RUN_JOB, deliver, forget_sent, ring


class Bell:
    """A broker that remembers what it was sent, and fails when told to."""

    def __init__(self, works: int = 1000) -> None:
        self.works = works
        self.heard: list[tuple[str, list[Any]]] = []

    def __call__(self, task: str, args: Sequence[Any]) -> None:
        if len(self.heard) >= self.works:
            raise ConnectionError("broker gone")
        self.heard.append((task, list(args)))


def ring_all(factory: SessionFactory, now: datetime, *jobs: str) -> None:
    with transaction(factory) as session:
        for job in jobs:
            ring(session, job, now=now)


def test_a_message_is_sent_once_after_the_commit(factory, now):
    bell = Bell()
    with factory() as session:
        ring(session, "job_of_nobody", now=now)
        session.rollback()
    ring_all(factory, now, "job_a", "job_b")
    assert [deliver(factory, bell, now=now, limit=1) for _ in range(3)] == [1, 1, 0]
    assert bell.heard == [(TASK_RUN_JOB, ["job_a"]), (TASK_RUN_JOB, ["job_b"])]


def test_what_a_failing_broker_did_not_take_stays(factory, now):
    ring_all(factory, now, "job_a", "job_b", "job_c")
    broken, whole = Bell(works=1), Bell()
    assert deliver(factory, broken, now=now) == 1
    assert deliver(factory, whole, now=now) == 2
    assert [args for _task, args in broken.heard + whole.heard] == [["job_a"], ["job_b"], ["job_c"]]


def test_no_lock_is_held_while_the_broker_is_spoken_to(factory, now):
    ring_all(factory, now, "job_a")
    assert deliver(factory, lambda *_: ring_all(factory, now, "job_b"), now=now) == 1


def test_old_messages_are_forgotten(factory, now):
    ring_all(factory, now, "job_a")
    deliver(factory, Bell(), now=now)
    ring_all(factory, now, "job_b")
    with transaction(factory) as session:
        assert forget_sent(session, before=now) == 0
        assert forget_sent(session, before=now + timedelta(seconds=1)) == 1
        assert [message.args for message in session.scalars(select(Outbox))] == [["job_b"]]
