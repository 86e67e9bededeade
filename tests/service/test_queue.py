"""The queue: how many jobs a project may have, whose job is next, and the doorbell; on each kind of database."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from service import jobs, quotas
from service.db.access_tables import Outbox, Project
from service.db.session import SessionFactory, transaction
from service.errors import InvalidInput
from service.identity import projects
from service.queue import TASK_RUN_JOB, deliver, forget_sent, ring
from service.quotas import QuotaExceeded
from tests.service.jobs.shop import LEASE, Shop
from tests.together import at_once


class Department:
    """A project with an account and a dataset of its own, whose people ask for trainings that cost next to nothing."""

    def __init__(self, shop: Shop, name: str) -> None:
        self.shop = shop
        with transaction(shop.factory) as session:
            self.id = projects.create(session, name=name, now=shop.now).id
        self.account_id = shop.open_account(name, project_id=self.id)
        self.dataset_id = shop.declare(account_id=self.account_id, project_id=self.id)

    def train(self) -> str:
        self.shop.later(1)
        return self.shop.train(dataset_id=self.dataset_id, epsilon=0.05)

    def quota(self, jobs_max: int | None) -> None:
        with transaction(self.shop.factory) as session:
            quotas.set_quota(session, self.id, jobs_max=jobs_max)


def test_a_project_that_floods_the_queue_gets_every_other_turn(shop):
    flood, drop = Department(shop, "flood"), Department(shop, "drop")
    flooding = [flood.train() for _ in range(8)]
    late = [drop.train(), drop.train()]
    taken = []
    for _ in range(6):
        shop.later(1)
        claim = shop.claimed()
        taken.append(claim.job_id)
        shop.fail(claim)  # before it reads anything, so that its price returns
    assert taken == [flooding[0], late[0], flooding[1], late[1], flooding[2], flooding[3]]


def test_who_has_fewer_jobs_running_comes_first_and_a_lost_worker_is_none(shop):
    busy, idle = Department(shop, "busy"), Department(shop, "idle")
    first = [busy.train() for _ in range(4)]
    assert [shop.claimed().job_id, shop.claimed().job_id] == first[:2]
    shop.later(1)
    waiting = [idle.train() for _ in range(3)]
    assert [shop.claimed().job_id for _ in range(4)] == [*waiting[:2], first[2], waiting[2]]
    shop.later(LEASE)  # all workers are lost: nobody has any running, and whose last turn is longest ago comes first
    assert shop.claimed().job_id == first[0]


def test_the_list_of_what_waits_has_the_order_of_the_claims(shop):
    flood, drop = Department(shop, "flood"), Department(shop, "drop")
    flooding = [flood.train() for _ in range(3)]
    shop.claimed(flooding[0])
    late = drop.train()
    assert list(shop.read(jobs.claimable, now=shop.now)) == [late, *flooding[1:]]
    assert shop.claimed().job_id == late


def test_more_jobs_than_a_quota_allows_are_refused_and_leave_nothing(shop):
    heart, other = Department(shop, "heart"), Department(shop, "other")
    heart.quota(jobs_max=2)
    first, _second = heart.train(), heart.train()
    before = shop.counts()
    with pytest.raises(QuotaExceeded, match="may have 2 jobs waiting or running") as refused:
        heart.train()
    assert refused.value.numbers == {"quota": "jobs", "quota_jobs": 2}
    assert shop.counts() == before
    other.train()
    shop.cancel(first)
    heart.train()
    with pytest.raises(QuotaExceeded):
        heart.train()
    heart.quota(jobs_max=None)
    heart.train()


def test_a_repeated_order_gives_its_job_however_full_the_quota_is(shop):
    heart = Department(shop, "heart")
    heart.quota(jobs_max=1)
    order = {"dataset_id": heart.dataset_id, "epsilon": 0.05, "key": "once"}
    assert shop.train(**order) == shop.train(**order)


def test_a_sweep_of_more_trials_than_are_left_is_refused_whole(shop):
    heart = Department(shop, "heart")
    heart.quota(jobs_max=2)
    before = shop.counts()
    with pytest.raises(QuotaExceeded):
        shop.sweep(0.05, 0.05, 0.05, dataset_id=heart.dataset_id)
    assert shop.counts() == before
    shop.sweep(0.05, 0.05, dataset_id=heart.dataset_id)


def test_two_requests_at_once_do_not_both_take_the_last_place(shop):
    heart = Department(shop, "heart")
    heart.quota(jobs_max=1)

    def ask() -> bool:
        try:
            shop.train(dataset_id=heart.dataset_id, epsilon=0.05)
        except QuotaExceeded:
            return False
        return True

    assert sorted(at_once(*[ask] * 4)) == [False, False, False, True]


def test_a_quota_is_a_whole_number_of_a_project_that_there_is(shop):
    heart = Department(shop, "heart")
    for wrong in (-1, quotas.QUOTA_MAX + 1):
        with pytest.raises(InvalidInput):
            heart.quota(jobs_max=wrong)
    for right in (3, quotas.QUOTA_MAX, None):
        heart.quota(jobs_max=right)
        with transaction(shop.factory, read_only=True) as session:
            assert session.get_one(Project, heart.id).jobs_max == right


# --- the doorbell -----------------------------------------------------------------------------------------------------


class Bell:
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
