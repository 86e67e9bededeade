"""Sweeps: all trials are held together or none is, whoever else is asking at the same moment."""

import threading

import pytest
from sqlalchemy import func, select

from obscura.wire.words import HoldState
from service import jobs, ledger
from service.db.job_tables import Job, Sweep
from service.db.ledger_tables import Hold
from service.db.session import transaction
from service.errors import IdempotencyMismatch, InsufficientBudget, InvalidInput, SweepTooExpensive
from service.identity.access import find
from tests.together import PATIENCE_SECONDS, at_once


def test_a_sweep_holds_the_price_of_every_trial_at_once(shop):
    sweep_id = shop.sweep(0.5, 0.6, 0.7, evaluation_dataset_id=shop.public_id)
    trials = shop.trials(sweep_id)
    assert [trial.epsilon for trial in trials] == [0.5, 0.6, 0.7]
    assert [trial.options["beta"] for trial in trials] == [0.01, 0.02, 0.03]
    assert {trial.evaluation_dataset_id for trial in trials} == {shop.public_id}
    assert shop.counts() == {"sweeps": 1, "jobs": 3, "holds": 3, "outbox": 3, "idempotency": 0, "samples": 0}
    held = [shop.hold_of(trial.id).amount_nano for trial in trials]
    assert held == [trial.plan["cost_nano"] for trial in trials]
    assert sum(held) == shop.read(find, Sweep, sweep_id).cost_nano == shop.balance().reserved_nano


def test_trials_are_taken_in_their_order(shop):
    trials = [trial.id for trial in shop.trials(shop.sweep(0.2, 0.2, 0.2, 0.2))]
    assert [shop.claimed().job_id for _ in trials] == trials


def test_every_trial_has_noise_of_its_own(shop):
    sweep_id = shop.sweep(0.2, 0.2, 0.2)
    secrets = shop.read(lambda session: session.scalars(select(Job.secret).where(Job.sweep_id == sweep_id)).all())
    assert len(set(secrets)) == 3


def test_what_does_not_fit_as_a_whole_is_refused_as_a_whole_with_every_number(shop):
    with pytest.raises(SweepTooExpensive) as refused:
        shop.sweep(*[3.0] * 12, key="k")
    shop.assert_nothing_written()
    numbers, balance = refused.value.numbers, shop.balance()
    one_nano = ledger.filter_of(shop.read(ledger.get_account, shop.account_id)).nano_of(3.0)
    assert (numbers["requested_nano"], numbers["trials"]) == (12 * one_nano, 12)
    assert numbers["trials_affordable"] == balance.left_nano // one_nano > 1
    assert numbers["left_nano"] == balance.capacity_nano
    assert f"try the first {numbers['trials_affordable']}" in refused.value.message
    assert isinstance(refused.value, InsufficientBudget), "the same code and exit status as any other lack of budget"
    each = float(str(numbers["epsilon_affordable_for_each"]))
    assert f"ask for {each:g} or less for each of the 12" in refused.value.message
    shop.sweep(*[each] * 12)  # both ways out are ways out


@pytest.mark.parametrize("count", [0, 1, 65])
def test_a_sweep_is_bounded(shop, count):
    with pytest.raises(InvalidInput, match="2 to 64"):
        shop.sweep(*[0.01] * count)


def test_a_bad_trial_or_name_is_refused_and_nothing_is_written(shop):
    trials = [jobs.Trial(0.2, {}), jobs.Trial(0.2, {"no_such_option": 1}), jobs.Trial(0.2, {})]
    with pytest.raises(InvalidInput, match=r"Trial 2: .*no_such_option") as refused:
        shop.sweep(trials=trials, key="k")
    assert refused.value.numbers["trial"] == 2
    for name in (" ", "a\nb"):
        with pytest.raises(InvalidInput):
            shop.sweep(0.2, 0.3, name=name)
    shop.assert_nothing_written()


def test_the_same_key_and_body_give_the_same_sweep(shop):
    first = shop.sweep(0.2, 0.3, key="k")
    assert shop.sweep(0.2, 0.3, key="k") == first
    assert shop.counts()["holds"] == 2
    with pytest.raises(IdempotencyMismatch):
        shop.sweep(0.2, 0.4, key="k")


def test_nobody_squeezes_in_between_the_trials(shop):
    """The budget is enough for the sweep alone. Whoever asks while it is being accepted waits, and then is refused."""
    with pytest.raises(SweepTooExpensive) as refused:
        shop.sweep(*[3.0] * 12)
    trials, answers, asking = refused.value.numbers["trials_affordable"], list[str](), threading.Event()

    def intrude() -> None:
        asking.set()
        try:
            shop.train(epsilon=3.0)
            answers.append("accepted")
        except InsufficientBudget:
            answers.append("refused")

    intruder = threading.Thread(target=intrude)
    with transaction(shop.factory) as session:
        sweep_id = shop.submit_sweep(session, [3.0] * trials).id
        intruder.start()
        asking.wait(PATIENCE_SECONDS)
        intruder.join(0.3)
        assert answers == [], "it was answered before the sweep was committed"
    intruder.join(PATIENCE_SECONDS)
    assert answers == ["refused"]
    assert len(shop.trials(sweep_id)) == trials


def test_sweeps_and_jobs_at_once_never_leave_half_a_sweep(shop):
    """Budget for nearly three sweeps of four, asked for by six callers beside four that ask for single jobs."""
    outcomes = at_once(*[lambda: shop.sweep(*[2.1] * 4)] * 6, *[lambda: shop.train(epsilon=2.1)] * 4)
    accepted = [made for made in outcomes if not isinstance(made, InsufficientBudget)]
    assert len(outcomes) == 10 > len(accepted)
    with transaction(shop.factory, read_only=True) as session:
        sweeps = session.scalars(select(Sweep.id)).all()
        of_each = dict(session.execute(select(Job.sweep_id, func.count()).group_by(Job.sweep_id)).all())
        alone = session.scalars(select(Job.id).where(Job.sweep_id.is_(None))).all()
        reserved_nano = session.scalar(select(func.sum(Hold.amount_nano)).where(Hold.state == HoldState.HELD))
    assert sweeps
    assert sorted(accepted) == sorted([*sweeps, *alone])
    assert {sweep: of_each[sweep] for sweep in sweeps} == dict.fromkeys(sweeps, 4)
    balance = shop.balance()
    assert reserved_nano == balance.reserved_nano <= balance.capacity_nano


def test_cancelling_returns_what_has_not_started_and_leaves_what_has_ended(shop):
    sweep_id = shop.sweep(0.3, 0.3, 0.3, 0.3)
    done = shop.charged(77)
    shop.fail(done, jobs.FailureCode.LEDGER_UNAVAILABLE)
    shop.claimed()
    for _ in range(2):
        shop.do(jobs.cancel_sweep, sweep_id=sweep_id)
    trials = shop.trials(sweep_id)
    assert [trial.state.value for trial in trials] == ["failed", "running", "cancelled", "cancelled"]
    assert trials[1].cancel_requested
    balance = shop.balance()
    assert (balance.spent_nano, balance.reserved_nano) == (77, trials[1].plan["cost_nano"])
