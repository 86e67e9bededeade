"""What a project may take of what all share, and whose job is next; on each kind of database."""

import random
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from obscura.wire.schemas import to_the_minute
from obscura.wire.words import JobState
from service import jobs, projects, quotas
from service.db.job_tables import Job
from service.db.project_tables import Project
from service.db.session import SessionFactory, transaction
from service.errors import InvalidInput
from service.quotas import QuotaExceeded
from tests.service.jobs.shop import LEASE, Shop
from tests.together import at_once


@pytest.fixture
def shop(
    factory: SessionFactory, now: datetime, open_account: Callable[..., str], declare_dataset: Callable[..., str]
) -> Shop:
    return Shop(factory, now, open_account, declare_dataset)


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

    def quota(self, **limits: int | None) -> None:
        with transaction(self.shop.factory) as session:
            quotas.set_quota(session, self.id, limits)

    def use(self) -> quotas.Use:
        with transaction(self.shop.factory, read_only=True) as session:
            return quotas.uses_of(session, [session.get_one(Project, self.id)], now=self.shop.now)[self.id]


def end(shop: Shop, claim: jobs.Claim) -> None:
    """A training that reads nothing and fails, so that its price returns."""
    shop.fail(claim)


def test_a_project_that_floods_the_queue_gets_every_other_turn(shop):
    flood, drop = Department(shop, "flood"), Department(shop, "drop")
    flooding = [flood.train() for _ in range(8)]
    late = [drop.train(), drop.train()]
    taken = []
    for _ in range(6):
        shop.later(1)
        claim = shop.claimed()
        taken.append(claim.job_id)
        end(shop, claim)
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


def test_nobody_starves_however_many_others_come_and_go(shop):
    patient = Department(shop, "patient")
    job_id = patient.train()
    others = [Department(shop, f"other {number}") for number in range(3)]
    taken: list[str] = []
    for other in others:
        other.train()
        other.train()
    while job_id not in taken:
        claim = shop.claimed()
        taken.append(claim.job_id)
        end(shop, claim)
        for other in others:
            other.train()
    assert len(taken) <= len(others) + 1


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
    assert heart.use().jobs == 1
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


def test_disk_is_counted_as_declared_and_as_asked_for(shop):
    heart = Department(shop, "heart")
    declared = heart.use().disk_bytes
    with transaction(shop.factory, read_only=True) as session:
        dataset = jobs.lookup.get_dataset(session, heart.dataset_id)
        image = dataset.height * dataset.width * dataset.channels
        assert declared == image * dataset.records_declared
    release = shop.released(dataset_id=heart.dataset_id, epsilon=0.05)
    heart.quota(disk_bytes_max=declared + 10 * image)
    sample = shop.sample(release, count=10)
    assert heart.use().disk_bytes == declared + 10 * image
    with pytest.raises(QuotaExceeded, match="Delete datasets that nobody needs") as refused:
        shop.sample(release, count=1)
    assert refused.value.numbers["used_bytes"] == declared + 11 * image
    shop.cancel(sample)
    shop.sample(release, count=10)


def test_what_is_told_of_disk_is_rounded_up():
    assert [quotas.shown_bytes(n) for n in (0, 1, 10**8, 10**8 + 1)] == [0, 10**8, 10**8, 2 * 10**8]


def ran(shop: Shop, job_id: str, begin: datetime, end: datetime | None) -> None:
    """Say when a job ran."""
    with transaction(shop.factory) as session:
        job = session.get_one(Job, job_id)
        job.started_at, job.finished_at = begin, end
        job.state = JobState.RUNNING if end is None else JobState.CANCELLED
        job.failure_code = None
        job.lease_until = None if end is not None else begin


def test_hours_are_those_of_this_month_by_the_minutes_that_are_shown(shop):
    heart = Department(shop, "heart")
    month = shop.now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    shop.now = month + timedelta(days=9)
    ran(shop, heart.train(), month - timedelta(hours=5), month + timedelta(hours=2))
    ran(shop, heart.train(), month - timedelta(hours=9), month - timedelta(hours=5))
    begin = month + timedelta(days=1, seconds=59)
    ran(shop, heart.train(), begin, begin + timedelta(minutes=59, seconds=59))  # 60 minutes, as they are shown
    runs = heart.train()
    ran(shop, runs, shop.now - timedelta(minutes=30), None)
    assert heart.use().worker_hours == 3
    heart.quota(worker_hours_max=4)
    heart.train()
    shop.later(1800)
    with pytest.raises(QuotaExceeded, match="has used 4 hours of workers this month") as refused:
        heart.train()
    assert refused.value.numbers == {"quota": "worker_hours", "used_hours": 4, "quota_hours": 4}
    end(shop, shop.claimed())  # what waits already is done all the same
    ran(shop, runs, shop.now - timedelta(minutes=90), shop.now)
    shop.now = month + timedelta(days=32)
    heart.train()


def test_hours_are_those_of_the_minutes_of_all_jobs_to_the_minute(shop):
    rng = random.Random(0)
    heart, other, minute = Department(shop, "heart"), Department(shop, "lung"), timedelta(minutes=1)
    ids, filling = [heart.train() for _ in range(12)], heart.train()
    month = shop.now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    ran(shop, other.train(), month, None)
    for _ in range(8):
        shop.now = month + timedelta(seconds=rng.uniform(1, 20 * 86400))
        minutes = 0
        for job_id in ids:
            begin = month + timedelta(seconds=rng.uniform(-3e5, 2e6))
            begin = begin.replace(second=59, microsecond=999_900) if rng.random() < 0.3 else begin
            lasts = timedelta(seconds=rng.choice([-5, 0, 0.0005, 59.9996, rng.uniform(0, 9e5)]))
            end = None if rng.random() < 0.2 else begin + lasts
            ran(shop, job_id, begin, end)
            if (end or shop.now) >= max(begin, month):
                minutes += (to_the_minute(end or shop.now) - to_the_minute(max(begin, month))) // minute
        ran(shop, filling, month, month + (120 - minutes % 60) * minute)  # full hours, so that one minute less is told
        assert heart.use().worker_hours == minutes // 60 + 2
        ran(shop, filling, month, month + (119 - minutes % 60) * minute)
        assert heart.use().worker_hours == minutes // 60 + 1


def test_a_quota_is_a_whole_number_of_a_project_that_there_is(shop):
    heart = Department(shop, "heart")
    for wrong in (-1, quotas.QUOTA_MAX + 1):
        with pytest.raises(InvalidInput):
            heart.quota(jobs_max=wrong)
    heart.quota(jobs_max=3, disk_bytes_max=5)
    heart.quota(jobs_max=None)
    with transaction(shop.factory, read_only=True) as session:
        project = session.get_one(Project, heart.id)
        assert (project.jobs_max, project.disk_bytes_max) == (None, 5)
