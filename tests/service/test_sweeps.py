"""Sweeps: all trials are held together or none is, whoever else is asking at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import func, select

from service import jobs, ledger
from service.db.access_tables import Idempotency, Outbox
from service.db.job_tables import Job, Sweep
from service.db.ledger_tables import HoldRow
from service.db.session import SessionFactory, transaction
from service.db.words import DatasetState, HoldState, JobState
from service.errors import (
    AccountFrozen,
    Conflict,
    IdempotencyMismatch,
    InsufficientBudget,
    InvalidInput,
    NotFound,
    SweepTooExpensive,
)

WAIT_SECONDS = 60


class Desk:
    """An account with a private and a public dataset, and a caller who asks for sweeps."""

    def __init__(
        self,
        factory: SessionFactory,
        now: datetime,
        open_account: Callable[..., str],
        declare_dataset: Callable[..., str],
        **account: Any,
    ) -> None:
        self.factory, self.now = factory, now
        self.open_account, self.declare = open_account, declare_dataset
        self.account_id = open_account(factory, **account)
        self.dataset_id = declare_dataset(factory, account_id=self.account_id)
        self.public_id = declare_dataset(factory, account_id=None)

    def submit(self, session: Any, epsilons: list[float], *, key: str | None = None, **changes: Any) -> Sweep:
        request = {
            "name": "vote shares",
            "dataset_id": self.dataset_id,
            "recipe": "datalens",
            "trials": [jobs.Trial(epsilon, {"vote_share": number / 100}) for number, epsilon in enumerate(epsilons)],
            "evaluation_dataset_id": None,
            "now": self.now,
            **changes,
        }
        return jobs.submit_sweep(session, principal="key_me", idempotency_key=key, **request)

    def sweep(self, *epsilons: float, **changes: Any) -> str:
        with transaction(self.factory) as session:
            return self.submit(session, list(epsilons), **changes).id

    def train(self, epsilon: float) -> str:
        with transaction(self.factory) as session:
            return jobs.submit_training(
                session,
                principal="key_me",
                idempotency_key=None,
                dataset_id=self.dataset_id,
                recipe="datalens",
                epsilon=epsilon,
                options={},
                evaluation_dataset_id=None,
                now=self.now,
            ).id

    def trials(self, sweep_id: str) -> list[Job]:
        with transaction(self.factory, read_only=True) as session:
            return list(jobs.jobs_of_sweep(session, sweep_id))

    def counts(self) -> dict[str, int]:
        with transaction(self.factory, read_only=True) as session:
            return {
                table.__tablename__: session.scalar(select(func.count()).select_from(table)) or 0
                for table in (Sweep, Job, HoldRow, Outbox, Idempotency)
            }

    def balance(self) -> ledger.Balance:
        with transaction(self.factory, read_only=True) as session:
            return ledger.balance(session, self.account_id)


NOTHING = {"sweeps": 0, "jobs": 0, "holds": 0, "outbox": 0, "idempotency": 0}


@pytest.fixture
def desk(
    factory: SessionFactory, now: datetime, open_account: Callable[..., str], declare_dataset: Callable[..., str]
) -> Desk:
    return Desk(factory, now, open_account, declare_dataset)


def test_a_sweep_holds_the_price_of_every_trial_at_once(desk: Desk) -> None:
    sweep_id = desk.sweep(0.5, 0.6, 0.7, evaluation_dataset_id=desk.public_id)
    trials = desk.trials(sweep_id)
    assert [trial.epsilon for trial in trials] == [0.5, 0.6, 0.7]
    assert [trial.options["vote_share"] for trial in trials] == [0.0, 0.01, 0.02]
    assert {trial.evaluation_dataset_id for trial in trials} == {desk.public_id}
    assert desk.counts() == {"sweeps": 1, "jobs": 3, "holds": 3, "outbox": 3, "idempotency": 0}
    with transaction(desk.factory, read_only=True) as session:
        sweep = jobs.get_sweep(session, sweep_id)
        held = [ledger.get_hold(session, trial.hold_id or "").amount_nano for trial in trials]
    assert held == [trial.plan["price_nano"] for trial in trials]
    assert sum(held) == sweep.price_nano == desk.balance().held_nano


def test_trials_are_taken_in_their_order(desk: Desk) -> None:
    trials = [trial.id for trial in desk.trials(desk.sweep(0.2, 0.2, 0.2, 0.2))]
    taken = []
    for _ in trials:
        with transaction(desk.factory) as session:
            claim = jobs.claim(session, worker="w", now=desk.now, lease_seconds=60)
        assert claim is not None
        taken.append(claim.job_id)
    assert taken == trials


def test_every_trial_has_noise_of_its_own(desk: Desk) -> None:
    sweep_id = desk.sweep(0.2, 0.2, 0.2)
    with transaction(desk.factory, read_only=True) as session:
        secrets = session.scalars(select(Job.secret).where(Job.sweep_id == sweep_id)).all()
    assert len(set(secrets)) == 3


def test_what_does_not_fit_as_a_whole_is_refused_as_a_whole_with_every_number(desk: Desk) -> None:
    with pytest.raises(SweepTooExpensive) as refused:
        desk.sweep(*[3.0] * 12, key="k")
    assert desk.counts() == NOTHING
    numbers, balance = refused.value.numbers, desk.balance()
    with transaction(desk.factory, read_only=True) as session:
        privacy_filter = ledger.filter_of(ledger.get_account(session, desk.account_id))
    one_nano = privacy_filter.nano_of(3.0)
    assert numbers["requested_nano"] == 12 * one_nano
    assert numbers["trials"] == 12
    assert numbers["trials_affordable"] == balance.left_nano // one_nano > 1
    assert numbers["left_nano"] == balance.capacity_nano
    assert f"try the first {numbers['trials_affordable']}" in refused.value.message
    assert isinstance(refused.value, InsufficientBudget), "the same code and exit status as any other lack of budget"
    each = float(str(numbers["epsilon_affordable_for_each"]))
    assert f"ask for {each:g} or less for each of the 12" in refused.value.message
    desk.sweep(*[each] * 12)  # both ways out are ways out


def test_as_many_trials_as_it_says_do_fit(desk: Desk) -> None:
    with pytest.raises(SweepTooExpensive) as refused:
        desk.sweep(*[3.0] * 12)
    fitting = int(str(refused.value.numbers["trials_affordable"]))
    desk.sweep(*[3.0] * fitting)
    with pytest.raises(InsufficientBudget):
        desk.train(3.0)


def test_paying_as_one_goes_stops_half_way_which_is_what_sweeps_are_for(desk: Desk) -> None:
    with pytest.raises(InsufficientBudget):
        list(map(desk.train, [3.0] * 12))
    assert 0 < desk.counts()["jobs"] < 12
    assert desk.balance().held_nano > 0


@pytest.mark.parametrize("count", [0, 1, 65])
def test_a_sweep_is_bounded(desk: Desk, count: int) -> None:
    with pytest.raises(InvalidInput, match="2 to 64"):
        desk.sweep(*[0.01] * count)


def test_a_bad_trial_is_named_and_nothing_is_written(desk: Desk) -> None:
    trials = [jobs.Trial(0.2, {}), jobs.Trial(0.2, {"no_such_option": 1}), jobs.Trial(0.2, {})]
    with pytest.raises(InvalidInput, match=r"Trial 2: .*no_such_option") as refused:
        desk.sweep(trials=trials, key="k")
    assert refused.value.numbers["trial"] == 2
    for epsilon in (0.0, -1.0, float("nan")):
        with pytest.raises(InvalidInput):
            desk.sweep(0.2, epsilon)
    assert desk.counts() == NOTHING


def test_sweeps_that_cannot_be(desk: Desk) -> None:
    for changes, error in (
        ({"name": " "}, InvalidInput),
        ({"name": "a\nb"}, InvalidInput),
        ({"dataset_id": "ds_x"}, NotFound),
        ({"dataset_id": desk.public_id}, InvalidInput),
        ({"evaluation_dataset_id": desk.dataset_id}, InvalidInput),
        ({"recipe": "gan"}, InvalidInput),
    ):
        with pytest.raises(error):
            desk.sweep(0.2, 0.3, **changes)
    with transaction(desk.factory) as session:
        ledger.set_frozen(session, account_id=desk.account_id, frozen=True, reason="audit", now=desk.now)
    with pytest.raises(AccountFrozen):
        desk.sweep(0.2, 0.3)
    assert desk.counts() == NOTHING


def test_the_anchors_of_every_trial_must_be_public_and_there(desk: Desk) -> None:
    account_id = desk.open_account(desk.factory, name="steps", filter_name="rdp")
    dataset_id = desk.declare(desk.factory, account_id=account_id)
    unready = desk.declare(
        desk.factory, account_id=None, state=DatasetState.DECLARED, content_sha256=None, ready_at=None
    )
    for anchors_id, error in ((desk.dataset_id, InvalidInput), (unready, Conflict)):
        options = [{"architecture": "cnn"}, {"estimator": "gep", "anchors_dataset_id": anchors_id}]
        trials = [jobs.Trial(4.5, chosen) for chosen in options]
        with pytest.raises(error, match="anchors"):
            desk.sweep(4.5, 4.5, dataset_id=dataset_id, recipe="dp_classifier", trials=trials)
    assert desk.counts() == NOTHING


def test_the_same_key_and_body_give_the_same_sweep(desk: Desk) -> None:
    first = desk.sweep(0.2, 0.3, key="k")
    assert desk.sweep(0.2, 0.3, key="k") == first
    assert desk.counts()["holds"] == 2
    with pytest.raises(IdempotencyMismatch):
        desk.sweep(0.2, 0.4, key="k")


# --- at the same moment ---------------------------------------------------------------------------------------------


def test_nobody_squeezes_in_between_the_trials(desk: Desk) -> None:
    """The budget is enough for the sweep alone. Whoever asks while it is being accepted waits, and then is refused."""
    with pytest.raises(SweepTooExpensive) as refused:
        desk.sweep(*[3.0] * 12)
    fitting = int(str(refused.value.numbers["trials_affordable"]))
    answers: list[str] = []
    asking = threading.Event()

    def intrude() -> None:
        asking.set()
        try:
            desk.train(3.0)
            answers.append("accepted")
        except InsufficientBudget:
            answers.append("refused")

    intruder = threading.Thread(target=intrude)
    with transaction(desk.factory) as session:
        sweep_id = desk.submit(session, [3.0] * fitting).id
        intruder.start()
        asking.wait(WAIT_SECONDS)
        intruder.join(0.3)
        assert answers == [], "it was answered before the sweep was committed"
    intruder.join(WAIT_SECONDS)
    assert answers == ["refused"]
    assert len(desk.trials(sweep_id)) == fitting


def test_sweeps_and_jobs_at_once_never_leave_half_a_sweep(desk: Desk) -> None:
    """Budget for nearly three sweeps of four, asked for by six callers beside four that ask for single jobs."""
    each = 2.1
    start = threading.Barrier(10)
    outcomes: list[str] = []

    def ask(what: Callable[[], str], kind: str) -> None:
        start.wait(WAIT_SECONDS)
        try:
            what()
            outcomes.append(kind)
        except InsufficientBudget:
            outcomes.append("refused")

    threads = [threading.Thread(target=ask, args=(lambda: desk.sweep(*[each] * 4), "sweep")) for _ in range(6)]
    threads += [threading.Thread(target=ask, args=(lambda: desk.train(each), "job")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert len(outcomes) == 10
    assert "refused" in outcomes
    with transaction(desk.factory, read_only=True) as session:
        sweeps = session.scalars(select(Sweep)).all()
        of_each = dict(session.execute(select(Job.sweep_id, func.count()).group_by(Job.sweep_id)).all())
        held_nano = session.scalar(select(func.sum(HoldRow.amount_nano)).where(HoldRow.state == HoldState.HELD))
    assert len(sweeps) == outcomes.count("sweep") > 0
    assert {sweep.id: of_each[sweep.id] for sweep in sweeps} == {sweep.id: 4 for sweep in sweeps}
    assert of_each.get(None, 0) == outcomes.count("job")
    balance = desk.balance()
    assert held_nano == balance.held_nano <= balance.capacity_nano


# --- cancelling -----------------------------------------------------------------------------------------------------


def test_cancelling_returns_what_has_not_started_and_leaves_what_has_ended(desk: Desk) -> None:
    sweep_id = desk.sweep(0.3, 0.3, 0.3, 0.3)
    with transaction(desk.factory) as session:
        done = jobs.claim(session, worker="w", now=desk.now, lease_seconds=60)
        assert done is not None
        assert done.hold_id is not None
        ledger.arm(session, hold_id=done.hold_id, attempt=1, now=desk.now)
        ledger.charge(session, hold_id=done.hold_id, attempt=1, amount_nano=77, stage="votes", now=desk.now)
        jobs.finish_failed(
            session, job_id=done.job_id, attempt=1, failure_code=jobs.FailureCode.LEDGER_UNAVAILABLE, now=desk.now
        )
        running = jobs.claim(session, worker="w", now=desk.now, lease_seconds=60)
        assert running is not None
    for _ in range(2):
        with transaction(desk.factory) as session:
            jobs.cancel_sweep(session, sweep_id=sweep_id, now=desk.now)
    trials = desk.trials(sweep_id)
    assert [trial.state for trial in trials] == [
        JobState.FAILED,
        JobState.RUNNING,
        JobState.CANCELLED,
        JobState.CANCELLED,
    ]
    assert trials[1].cancel_requested
    balance = desk.balance()
    assert (balance.spent_nano, balance.held_nano) == (77, trials[1].plan["price_nano"])


def test_an_unknown_sweep_is_not_found(desk: Desk) -> None:
    with transaction(desk.factory) as session:
        for call in (
            lambda: jobs.get_sweep(session, "swp_x"),
            lambda: jobs.cancel_sweep(session, sweep_id="swp_x", now=desk.now),
        ):
            with pytest.raises(NotFound):
                call()


def test_a_trial_alone_can_be_cancelled_and_the_others_go_on(desk: Desk) -> None:
    first, _second = desk.trials(desk.sweep(0.3, 0.3))
    with transaction(desk.factory) as session:
        jobs.request_cancel(session, job_id=first.id, now=desk.now)
    assert [trial.state for trial in desk.trials(first.sweep_id or "")] == [JobState.CANCELLED, JobState.QUEUED]
