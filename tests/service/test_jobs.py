"""Planning and accepting jobs: one transaction, refusals before anything is written, keys that make retries safe."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import func, select
from sqlalchemy.exc import InvalidRequestError

from privacy.plans.registry import RECIPES
from service import jobs, ledger
from service.audit.signing import SigningKey
from service.db.access_tables import Idempotency, Outbox
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Release, Sample
from service.db.ledger_tables import HoldRow
from service.db.session import SessionFactory, transaction
from service.db.words import DatasetState, EntryKind, HoldState, JobKind, JobState
from service.errors import (
    AccountFrozen,
    Conflict,
    IdempotencyMismatch,
    InsufficientBudget,
    InvalidInput,
    NotFound,
    StaleAttempt,
)

RECIPE = "datalens"

SHA = "ab" * 32
KEY = SigningKey(Ed25519PrivateKey.generate())


class Desk:
    """An account with a private and a public dataset, and a caller who asks for jobs."""

    def __init__(
        self,
        factory: SessionFactory,
        now: datetime,
        open_account: Callable[..., str],
        declare_dataset: Callable[..., str],
    ) -> None:
        self.factory, self.now = factory, now
        self.open_account, self.declare = open_account, declare_dataset
        self.account_id = open_account(factory)
        self.dataset_id = declare_dataset(factory, account_id=self.account_id)
        self.public_id = declare_dataset(factory, account_id=None)

    def train(self, *, key: str | None = None, principal: str = "key_me", **changes: Any) -> str:
        request = {
            "dataset_id": self.dataset_id,
            "recipe": RECIPE,
            "epsilon": 1.0,
            "options": {},
            "evaluation_dataset_id": None,
            "now": self.now,
            **changes,
        }
        with transaction(self.factory) as session:
            return jobs.submit_training(session, principal=principal, idempotency_key=key, **request).id

    def sample(self, release_id: str, *, key: str | None = None, **changes: Any) -> str:
        request = {"count": 10, "classes": None, "seed": 7, "format": "npz", "now": self.now, **changes}
        with transaction(self.factory) as session:
            return jobs.submit_sample(
                session, principal="key_me", idempotency_key=key, release_id=release_id, **request
            ).id

    def released(self) -> str:
        """Train and publish, as a worker would."""
        job_id = self.train()
        with transaction(self.factory) as session:
            claim = jobs.claim(session, worker="w", now=self.now, lease_seconds=60, job_id=job_id)
            assert claim is not None
            assert claim.hold_id is not None
            ledger.arm(session, hold_id=claim.hold_id, attempt=1, now=self.now)
            ledger.charge(session, hold_id=claim.hold_id, attempt=1, amount_nano=9, stage="votes", now=self.now)
            return jobs.publish(
                session,
                job_id=job_id,
                attempt=1,
                release_id="rel_" + "a" * 20,
                name="first",
                artifact_sha256=SHA,
                artifact_dir="releases/x",
                card={},
                summary={},
                key=KEY,
                now=self.now,
            ).id

    def counts(self) -> dict[str, int]:
        with transaction(self.factory, read_only=True) as session:
            return {
                table.__tablename__: session.scalar(select(func.count()).select_from(table)) or 0
                for table in (Job, HoldRow, Outbox, Idempotency, Sample)
            }

    def balance(self) -> ledger.Balance:
        with transaction(self.factory, read_only=True) as session:
            return ledger.balance(session, self.account_id)

    def job(self, job_id: str) -> Job:
        with transaction(self.factory, read_only=True) as session:
            return jobs.get_job(session, job_id)


@pytest.fixture
def desk(
    factory: SessionFactory, now: datetime, open_account: Callable[..., str], declare_dataset: Callable[..., str]
) -> Desk:
    return Desk(factory, now, open_account, declare_dataset)


# --- planning -------------------------------------------------------------------------------------------------------


def plan(desk: Desk, **changes: Any) -> Any:
    request = {"dataset_id": desk.dataset_id, "recipe": RECIPE, "epsilon": 1.0, "options": {}, **changes}
    with transaction(desk.factory, read_only=True) as session:
        return jobs.plan_job(session, **request)


def test_a_plan_costs_at_most_what_was_offered_and_writes_nothing(desk: Desk) -> None:
    made = plan(desk)
    with transaction(desk.factory, read_only=True) as session:
        budget = ledger.filter_of(ledger.get_account(session, desk.account_id))
    assert 0 < made.price_nano <= budget.nano_of(1.0)
    assert made.price_nano == sum(stage.price_nano for stage in made.stages)
    assert made.price_nano == sum(budget.price_nano(stage.event) for stage in made.stages)
    assert set(desk.counts().values()) == {0}


def test_a_plan_needs_no_content_and_no_budget(desk: Desk) -> None:
    account_id = desk.open_account(desk.factory, name="nothing yet")
    dataset_id = desk.declare(
        desk.factory, account_id=account_id, state=DatasetState.DECLARED, content_sha256=None, ready_at=None
    )
    assert plan(desk, dataset_id=dataset_id, epsilon=20.0).price_nano > 0


@pytest.mark.parametrize("epsilon", [0, 0.0, -1.0, math.nan, math.inf, -math.inf, True, "1", None, 1e9])
def test_an_epsilon_that_is_no_budget_is_refused(desk: Desk, epsilon: Any) -> None:
    with pytest.raises(InvalidInput, match="epsilon"):
        plan(desk, epsilon=epsilon)
    with pytest.raises(InvalidInput, match="epsilon"):
        desk.train(epsilon=epsilon)
    assert set(desk.counts().values()) == {0}


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": "alchemy"},
        {"options": {"no_such_option": 1}},
        {"options": {"k": 10**6}},
        {"options": {"x": math.nan}},
        {"options": {"x": object()}},
        {"options": {"x": "y" * 20_000}},
    ],
)
def test_what_no_recipe_can_do_is_refused_and_changes_nothing(desk: Desk, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        plan(desk, **change)
    with pytest.raises(InvalidInput):
        desk.train(key="k", **change)
    assert set(desk.counts().values()) == {0}


def test_delta_above_one_over_the_records_is_refused_with_both(desk: Desk) -> None:
    exact, above = (
        desk.declare(
            desk.factory, account_id=desk.open_account(desk.factory, name=f"{count} people"), records_declared=count
        )
        for count in (100_000, 100_001)
    )
    plan(desk, dataset_id=exact)
    with pytest.raises(InvalidInput, match="delta 1e-05, which is above 1/100001") as caught:
        desk.train(dataset_id=above)
    assert caught.value.numbers == {"delta": 1e-5, "delta_max": 1 / 100_001, "records_declared": 100_001}
    assert set(desk.counts().values()) == {0}


def test_delta_is_compared_with_all_that_was_declared_in_the_account(desk: Desk) -> None:
    """Two datasets of 60,000 records are one population of 120,000, and delta is for all of it."""
    plan(desk)
    not_there = {"state": DatasetState.DECLARED, "content_sha256": None, "ready_at": None}
    waiting = desk.declare(desk.factory, account_id=desk.account_id, records_declared=50_000, **not_there)
    desk.declare(desk.factory, account_id=desk.account_id, records_declared=90_000, state=DatasetState.DELETED)
    desk.declare(desk.factory, account_id=desk.open_account(desk.factory, name="others"), records_declared=90_000)
    plan(desk)  # neither content that never came, nor what was deleted untouched, nor another account's counts
    second = desk.declare(desk.factory, account_id=desk.account_id, records_declared=40_000)
    plan(desk, dataset_id=second)  # 100,000 in all
    with pytest.raises(InvalidInput, match="above 1/150000") as caught:
        plan(desk, dataset_id=waiting)
    assert caught.value.numbers == {"delta": 1e-5, "delta_max": 1 / 150_000, "records_declared": 150_000}
    third = desk.declare(desk.factory, account_id=desk.account_id, records_declared=1)
    for dataset_id in (desk.dataset_id, second, third):
        with pytest.raises(InvalidInput, match="above 1/100001"):
            desk.train(dataset_id=dataset_id)
    assert set(desk.counts().values()) == {0}


def test_what_was_published_about_a_deleted_dataset_still_counts(desk: Desk) -> None:
    desk.released()
    desk.declare(desk.factory, account_id=desk.account_id, records_declared=40_001)
    with transaction(desk.factory) as session:
        session.get_one(Dataset, desk.dataset_id).state = DatasetState.DELETED
    new = desk.declare(desk.factory, account_id=desk.account_id, records_declared=10)
    with pytest.raises(InvalidInput, match="above 1/100011"):
        plan(desk, dataset_id=new)


@pytest.mark.parametrize(("records", "remarked"), [(10_000, False), (10_001, True), (100_000, True)])
def test_a_delta_above_a_tenth_of_one_over_n_is_remarked_on(desk: Desk, records: int, remarked: bool) -> None:
    account_id = desk.open_account(desk.factory, name="some")
    dataset_id = desk.declare(desk.factory, account_id=account_id, records_declared=records)
    few = {"teachers": 100}
    notes = [note for note in plan(desk, dataset_id=dataset_id, options=few).notes if "tenth" in note]
    assert bool(notes) is remarked
    assert all(f"choose at most 1/{10 * records}" in note for note in notes)
    stored = desk.job(desk.train(dataset_id=dataset_id, options=few)).plan["notes"]
    assert [note for note in stored if "tenth" in note] == notes


def test_a_subject_account_counts_subjects(desk: Desk) -> None:
    """n is the number of subjects: for delta, and for the teachers that they support."""

    def declared(subjects: int | None) -> str:
        account_id = desk.open_account(desk.factory, name=f"families {subjects}", unit="subject")
        return desk.declare(desk.factory, account_id=account_id, records_declared=900_000, subjects_declared=subjects)

    made = plan(desk, dataset_id=declared(100_000))
    assert made.facts["protects"] == "all records of one subject"
    assert made.facts["units_declared"] == 100_000
    with pytest.raises(InvalidInput, match=r"above 1/100001 .* for the 100001 subjects declared") as caught:
        desk.train(dataset_id=declared(100_001))
    assert caught.value.numbers == {"delta": 1e-5, "delta_max": 1 / 100_001, "subjects_declared": 100_001}
    with pytest.raises(InvalidInput, match="400 declared subjects support at most 100 teachers"):
        desk.train(dataset_id=declared(400), options={"teachers": 101})
    with pytest.raises(InvalidInput, match="carries no subject ids"):
        desk.train(dataset_id=declared(None))
    assert set(desk.counts().values()) == {0}


def test_a_recipe_that_bounds_records_only_is_refused_where_subjects_are_protected(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a clipped gradient for each record: a subject with fifty of them has fifty times the say."""
    record_only = replace(RECIPES["datalens"], units=frozenset({"record"}))
    monkeypatch.setitem(RECIPES, "clipped_gradients", record_only)
    plan(desk, recipe="clipped_gradients")
    account_id = desk.open_account(desk.factory, name="families", unit="subject")
    dataset_id = desk.declare(desk.factory, account_id=account_id, subjects_declared=20_000)
    with pytest.raises(InvalidInput, match="protects all records of one subject") as caught:
        desk.train(dataset_id=dataset_id, recipe="clipped_gradients")
    assert "Until it bounds contributions" in caught.value.message
    offered = caught.value.message.rpartition("choose one of ")[2].rstrip(".").split(", ")
    assert set(offered) == set(RECIPES) - {"clipped_gradients"}
    assert set(desk.counts().values()) == {0}


# --- accepting a training -------------------------------------------------------------------------------------------


def test_acceptance_writes_job_hold_and_doorbell_together(desk: Desk) -> None:
    job_id = desk.train(key="k", evaluation_dataset_id=desk.public_id)
    assert desk.counts() == {"jobs": 1, "holds": 1, "outbox": 1, "idempotency": 1, "samples": 0}
    job = desk.job(job_id)
    price = plan(desk).price_nano
    assert (job.kind, job.state, job.attempt) == (JobKind.TRAIN, JobState.QUEUED, 0)
    assert (job.account_id, job.dataset_id, job.epsilon) == (desk.account_id, desk.dataset_id, 1.0)
    assert job.plan["price_nano"] == price
    assert desk.balance().held_nano == price
    with transaction(desk.factory, read_only=True) as session:
        hold = ledger.get_hold(session, job.hold_id or "")
        last = ledger.entries(session, desk.account_id, 1, 10)[-1]
        message = session.scalars(select(Outbox)).one()
    assert (hold.job_id, hold.amount_nano, hold.state) == (job_id, price, HoldState.HELD)
    assert (last.kind, last.details["recipe"], last.details["epsilon"]) == (EntryKind.HOLD, RECIPE, 1.0)
    assert sum(stage["price_nano"] for stage in last.details["stages"]) == price
    assert (message.args, message.sent_at) == ([job_id], None)


def test_the_secret_is_not_carried_by_a_loaded_job(desk: Desk) -> None:
    job_id = desk.train()
    with transaction(desk.factory, read_only=True) as session:
        job = jobs.get_job(session, job_id)
        with pytest.raises(InvalidRequestError):
            _ = job.secret
    assert "secret" not in repr(job)
    assert "secret" not in job.plan
    assert "secret" not in job.options


def test_the_running_attempt_alone_reads_the_secret(desk: Desk) -> None:
    first, second = desk.train(), desk.train()
    with transaction(desk.factory) as session:
        with pytest.raises(StaleAttempt):
            jobs.secret_of(session, job_id=first, attempt=0)
        for job_id in (first, second):
            jobs.claim(session, worker="w", now=desk.now, lease_seconds=60, job_id=job_id)
        secrets = {jobs.secret_of(session, job_id=job_id, attempt=1) for job_id in (first, second)}
    assert [len(secret) for secret in secrets] == [32, 32]


@pytest.mark.parametrize(("epsilon", "affordable"), [(8.01, 8.0), (20.0, 8.0), (1000.0, 8.0)])
def test_more_than_the_limit_is_refused_with_numbers(desk: Desk, epsilon: float, affordable: float) -> None:
    with pytest.raises(InsufficientBudget, match=f"needs epsilon {epsilon:g}") as caught:
        desk.train(epsilon=epsilon, key="k")
    assert caught.value.affordable_epsilon == affordable
    assert set(desk.counts().values()) == {0}


def test_more_than_the_rest_is_refused_with_numbers_and_a_free_alternative(desk: Desk) -> None:
    release_id = desk.released()
    desk.train(epsilon=7.0)
    before = desk.counts()
    with pytest.raises(InsufficientBudget, match=rf"needs epsilon 5\.0.*sample release \*{release_id}\*") as caught:
        desk.train(epsilon=5.0)
    error = caught.value
    assert error.held_nano + error.spent_nano + error.left_nano == error.capacity_nano
    assert (error.limit_epsilon, error.requested_epsilon) == (8.0, 5.0)
    assert desk.counts() == before
    desk.train(epsilon=error.affordable_epsilon)  # what the error offers is admitted


def test_the_whole_budget_may_be_asked_for_at_once(desk: Desk) -> None:
    desk.train(epsilon=8.0)


def test_a_frozen_account_takes_no_job(desk: Desk) -> None:
    with transaction(desk.factory) as session:
        ledger.set_frozen(session, account_id=desk.account_id, frozen=True, reason="audit", now=desk.now)
    with pytest.raises(AccountFrozen):
        desk.train()
    assert set(desk.counts().values()) == {0}


def test_datasets_must_fit_their_role(desk: Desk) -> None:
    unready = {"state": DatasetState.DECLARED, "content_sha256": None, "ready_at": None}
    private = desk.declare(desk.factory, account_id=desk.account_id, records_declared=100)
    waiting = desk.declare(desk.factory, account_id=desk.account_id, records_declared=100, **unready)
    for error, change in [
        (NotFound, {"dataset_id": "ds_none"}),
        (InvalidInput, {"dataset_id": desk.public_id}),
        (Conflict, {"dataset_id": waiting}),
        (InvalidInput, {"dataset_id": desk.declare(desk.factory, account_id=desk.account_id, state="deleted")}),
        (NotFound, {"evaluation_dataset_id": "ds_none"}),
        (InvalidInput, {"evaluation_dataset_id": private}),
        (Conflict, {"evaluation_dataset_id": desk.declare(desk.factory, account_id=None, **unready)}),
        (InvalidInput, {"evaluation_dataset_id": desk.declare(desk.factory, account_id=None, classes=["a", "b"])}),
        (InvalidInput, {"evaluation_dataset_id": desk.declare(desk.factory, account_id=None, height=32)}),
        (InvalidInput, {"evaluation_dataset_id": desk.declare(desk.factory, account_id=None, channels=3)}),
    ]:
        with pytest.raises(error):
            desk.train(key="k", **change)
    assert set(desk.counts().values()) == {0}


def test_a_gradient_basis_comes_from_public_images_alone(desk: Desk) -> None:
    account_id = desk.open_account(desk.factory, name="steps", filter_name="rdp")
    dataset_id = desk.declare(desk.factory, account_id=account_id)

    def anchored(anchors_id: str) -> dict[str, Any]:
        options = {"estimator": "gep", "anchors_dataset_id": anchors_id}
        return {"dataset_id": dataset_id, "recipe": "dp_classifier", "options": options, "epsilon": 6.0}

    for private_id in (dataset_id, desk.dataset_id):
        for ask in (partial(plan, desk), desk.train):
            with pytest.raises(InvalidInput, match=r"must be public: the basis .* private images would leak"):
                ask(**anchored(private_id))
    with pytest.raises(NotFound):
        plan(desk, **anchored("ds_none"))
    unready = desk.declare(
        desk.factory, account_id=None, state=DatasetState.DECLARED, content_sha256=None, ready_at=None
    )
    plan(desk, **anchored(unready))
    with pytest.raises(Conflict, match="dataset of the anchors is declared, not ready"):
        desk.train(**anchored(unready))
    assert set(desk.counts().values()) == {0}
    other_shape = desk.declare(desk.factory, account_id=None, height=5, classes=["x"])
    assert other_shape in " ".join(plan(desk, **anchored(other_shape)).notes)
    job_id = desk.train(**anchored(other_shape))
    assert desk.job(job_id).plan["config"]["anchors_dataset_id"] == other_shape


# --- idempotency ----------------------------------------------------------------------------------------------------


def test_the_same_key_and_body_give_the_same_job(desk: Desk) -> None:
    first = desk.train(key="k")
    assert desk.train(key="k", now=desk.now + timedelta(hours=1)) == first
    assert desk.counts()["jobs"] == 1
    assert desk.train(key="k", principal="key_other") != first
    assert desk.train(key="other") != first
    assert desk.train() != desk.train()


def test_the_same_key_with_another_body_is_refused(desk: Desk) -> None:
    desk.train(key="k")
    for change in ({"epsilon": 2.0}, {"recipe": "alchemy"}, {"evaluation_dataset_id": desk.public_id}):
        with pytest.raises(IdempotencyMismatch):
            desk.train(key="k", **change)
    assert desk.counts()["jobs"] == 1


def test_a_retry_is_answered_after_the_world_has_changed(desk: Desk) -> None:
    first = desk.train(key="k", epsilon=5.0)  # a second of the kind would not be affordable
    with transaction(desk.factory) as session:
        ledger.set_frozen(session, account_id=desk.account_id, frozen=True, reason="audit", now=desk.now)
    assert desk.train(key="k", epsilon=5.0) == first


def test_a_refused_request_does_not_use_up_its_key(desk: Desk) -> None:
    with pytest.raises(InsufficientBudget):
        desk.train(key="k", epsilon=9.0)
    desk.train(key="k")


@pytest.mark.parametrize("key", ["", "x" * 201])
def test_keys_are_bounded(desk: Desk, key: str) -> None:
    with pytest.raises(InvalidInput, match="idempotency key"):
        desk.train(key=key)


def test_the_same_key_at_the_same_moment_gives_one_job(desk: Desk) -> None:
    made: list[str] = []
    start = threading.Barrier(4)

    def ask() -> None:
        start.wait()
        made.append(desk.train(key="k"))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert len(set(made)) == 1
    assert desk.counts()["jobs"] == desk.counts()["holds"] == 1


# --- accepting a sample ---------------------------------------------------------------------------------------------


def test_a_sample_job_has_no_hold_and_costs_nothing(desk: Desk) -> None:
    release_id = desk.released()
    before = desk.balance()
    job_id = desk.sample(release_id, classes=["coat", "boot"], key="k")
    assert desk.sample(release_id, classes=["coat", "boot"], key="k") == job_id
    job = desk.job(job_id)
    assert (job.kind, job.hold_id, job.release_id, job.recipe) == (JobKind.SAMPLE, None, release_id, RECIPE)
    assert desk.balance() == before
    with transaction(desk.factory, read_only=True) as session:
        sample = jobs.sample_of(session, job_id)
        assert session.scalars(select(Release)).one().id == release_id
    assert (sample.count, sample.classes, sample.seed, sample.format.value) == (10, ["coat", "boot"], 7, "npz")
    assert (sample.path, sample.sha256, sample.bytes) == (None, None, None)


def test_a_sample_that_cannot_be_drawn_is_refused(desk: Desk) -> None:
    release_id = desk.released()
    before = desk.counts()
    changes: list[dict[str, Any]] = [
        {"count": 0},
        {"count": -1},
        {"count": 11, "count_max": 10},
        {"count": True},
        {"seed": -1},
        {"seed": 2**63},
        {"format": "tar"},
        {"classes": []},
        {"classes": ["sock"]},
        {"classes": ["coat", "coat"]},
    ]
    for change in changes:
        with pytest.raises(InvalidInput):
            desk.sample(release_id, **change)
    with pytest.raises(NotFound):
        desk.sample("rel_none")
    assert desk.counts() == before
