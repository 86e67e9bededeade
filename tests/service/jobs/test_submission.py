"""Accepting jobs: one transaction, refusals before anything is written, keys that make retries safe."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import InvalidRequestError

from obscura.wire.words import EntryKind, HoldState, JobState
from service import errors, jobs, ledger
from service.db.access_tables import Outbox
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Release, Sample
from service.db.session import transaction
from service.identity.access import find
from service.jobs.kinds.train import PRICINGS_MAX, hold_at_current_rate
from tests.service.jobs.shop import RECIPE, UNREADY
from tests.together import at_once


def test_acceptance_writes_job_hold_and_doorbell_together(shop):
    job_id = shop.train(key="k", evaluation_dataset_id=shop.public_id)
    assert shop.counts() == {"sweeps": 0, "jobs": 1, "holds": 1, "outbox": 1, "idempotency": 1, "samples": 0}
    job = shop.job(job_id)
    price = shop.plan().cost_nano
    assert (job.kind, job.state, job.attempt) == ("train", JobState.QUEUED, 0)
    assert (job.account_id, job.dataset_id, job.epsilon) == (shop.account_id, shop.dataset_id, 1.0)
    assert job.plan["cost_nano"] == price
    assert shop.balance().reserved_nano == price
    hold, last = shop.hold_of(job_id), shop.entries()[-1]
    message = shop.read(lambda session: session.scalars(select(Outbox)).one())
    assert (hold.job_id, hold.amount_nano, hold.state) == (job_id, price, HoldState.HELD)
    assert (last.kind, last.details["recipe"], last.details["epsilon"]) == (EntryKind.HOLD, RECIPE, 1.0)
    assert sum(stage["cost_nano"] for stage in last.details["stages"]) == price
    assert (message.args, message.sent_at) == ([job_id], None)


def test_the_secret_is_not_carried_by_a_loaded_job(shop):
    job_id = shop.train()
    with transaction(shop.factory, read_only=True) as session:
        job = jobs.get_job(session, job_id)
        with pytest.raises(InvalidRequestError):
            _ = job.secret
    for shown in (repr(job), job.plan, job.options):
        assert "secret" not in shown


def test_the_running_attempt_alone_reads_the_secret(shop):
    first, second = shop.train(), shop.train()
    with transaction(shop.factory) as session:
        with pytest.raises(errors.StaleAttempt):
            jobs.secret_of(session, job_id=first, attempt=0)
        for job_id in (first, second):
            jobs.claim(session, worker="w", now=shop.now, lease_seconds=60, job_id=job_id)
        secrets = {jobs.secret_of(session, job_id=job_id, attempt=1) for job_id in (first, second)}
    assert [len(secret) for secret in secrets] == [32, 32]


@pytest.mark.parametrize("epsilon", [8.01, 20.0, 1000.0])
def test_more_than_the_limit_is_refused_with_numbers_and_does_not_use_up_its_key(shop, epsilon):
    with pytest.raises(errors.InsufficientBudget, match=f"needs epsilon {epsilon:g}") as caught:
        shop.train(epsilon=epsilon, key="k")
    assert caught.value.balance.affordable_epsilon == 8.0
    shop.assert_nothing_written()
    shop.train(key="k")


def test_more_than_the_rest_is_refused_with_numbers_and_a_free_alternative(shop):
    release_id = shop.released()
    shop.train(epsilon=7.0)
    before = shop.counts()
    told = r"needs epsilon 5\.0\. Account 'patients' has .* left of 8\.0 \(.* spent, .* reserved; .* You can: "
    told += rf"ask for .*, sample release '{release_id}' again at no cost, or ask the owner for a higher limit\.$"
    with pytest.raises(errors.InsufficientBudget, match=told) as caught:
        shop.train(epsilon=5.0)
    error, balance = caught.value, caught.value.balance
    assert balance.reserved_nano + balance.spent_nano + balance.left_nano == balance.capacity_nano
    assert (balance.limit_epsilon, error.requested_epsilon, error.numbers["release_id"]) == (8.0, 5.0, release_id)
    assert shop.counts() == before
    shop.train(epsilon=balance.affordable_epsilon)  # what the error offers is admitted


def test_a_price_is_found_anew_only_so_often(shop):
    """A limit that is raised each time that a price was found would keep a request busy for ever."""
    pricings = []

    def too_late(trained):
        pricings.append(trained.dataset.id)
        raise ledger.RateChanged("raised")

    with pytest.raises(errors.Conflict, match="raised"), transaction(shop.factory) as session:
        hold_at_current_rate(session, shop.dataset_id, too_late)
    assert pricings == [shop.dataset_id] * PRICINGS_MAX


def test_a_frozen_account_takes_no_training(shop):
    shop.freeze()
    for ask in (shop.train, shop.sweep_of):
        with pytest.raises(errors.AccountFrozen):
            ask()
    shop.assert_nothing_written()


def test_datasets_must_fit_their_role(shop):
    private = shop.declare(account_id=shop.account_id, records_declared=100)
    waiting = shop.declare(account_id=shop.account_id, records_declared=100, **UNREADY)
    for error, change in [
        (errors.NotFound, {"dataset_id": "ds_none"}),
        (errors.InvalidInput, {"dataset_id": shop.public_id}),
        (errors.Conflict, {"dataset_id": waiting}),
        (errors.InvalidInput, {"dataset_id": shop.declare(account_id=shop.account_id, state="deleted")}),
        (errors.NotFound, {"evaluation_dataset_id": "ds_none"}),
        (errors.InvalidInput, {"evaluation_dataset_id": private}),
        (errors.Conflict, {"evaluation_dataset_id": shop.declare(account_id=None, **UNREADY)}),
        (errors.InvalidInput, {"evaluation_dataset_id": shop.declare(account_id=None, classes=["a", "b"])}),
        (errors.InvalidInput, {"evaluation_dataset_id": shop.declare(account_id=None, height=32)}),
        (errors.InvalidInput, {"evaluation_dataset_id": shop.declare(account_id=None, channels=3)}),
    ]:
        for ask in (shop.train, shop.sweep_of):
            with pytest.raises(error):
                ask(key="k", **change)
    shop.assert_nothing_written()


def test_a_gradient_basis_comes_from_public_images_alone(shop):
    account_id = shop.open_account(name="steps")
    dataset_id = shop.declare(account_id=account_id)

    def anchored(anchors_id: str) -> dict[str, Any]:
        options = {"estimator": "gep", "anchors_dataset_id": anchors_id}
        return {"dataset_id": dataset_id, "recipe": "dp_classifier", "options": options, "epsilon": 6.0}

    for private_id in (dataset_id, shop.dataset_id):
        for ask in (shop.plan, shop.train, shop.sweep_of):
            with pytest.raises(
                errors.InvalidInput, match=r"must be public: results computed .* private images would leak"
            ):
                ask(**anchored(private_id))
    with pytest.raises(errors.NotFound):
        shop.plan(**anchored("ds_none"))
    unready = shop.declare(account_id=None, **UNREADY)
    shop.plan(**anchored(unready))
    for ask in (shop.train, shop.sweep_of):
        with pytest.raises(errors.Conflict, match="public dataset that the options name is declared, not ready"):
            ask(**anchored(unready))
    shop.assert_nothing_written()
    other_shape = shop.declare(account_id=None, height=5, classes=["x"])
    assert other_shape in " ".join(shop.plan(**anchored(other_shape)).notes)
    job_id = shop.train(**anchored(other_shape))
    assert shop.job(job_id).plan["config"]["anchors_dataset_id"] == other_shape


# --- idempotency ----------------------------------------------------------------------------------------------------


def test_the_same_key_and_body_give_the_same_job(shop):
    first = shop.train(key="k")
    assert shop.train(key="k", now=shop.now + timedelta(hours=1)) == first
    assert shop.counts()["jobs"] == 1
    assert shop.train(key="k", principal="key_other") != first
    assert shop.train(key="other") != first
    assert shop.train() != shop.train()


def test_the_same_key_with_another_body_is_refused(shop):
    shop.train(key="k")
    for change in ({"epsilon": 2.0}, {"recipe": "alchemy"}, {"evaluation_dataset_id": shop.public_id}):
        with pytest.raises(errors.IdempotencyMismatch):
            shop.train(key="k", **change)
    assert shop.counts()["jobs"] == 1


def test_a_retry_is_answered_after_the_world_has_changed(shop):
    first = shop.train(key="k", epsilon=5.0)  # a second of the kind would not be affordable
    shop.freeze()
    assert shop.train(key="k", epsilon=5.0) == first


@pytest.mark.parametrize("key", ["", "x" * 201])
def test_keys_are_bounded(shop, key):
    with pytest.raises(errors.InvalidInput, match="idempotency key"):
        shop.train(key=key)


def test_the_same_key_at_the_same_moment_gives_one_job(shop):
    made = at_once(*[lambda: shop.train(key="k")] * 4)
    assert len(made) == 4
    assert set(made) == {shop.read(lambda session: session.scalars(select(Job.id)).one())}
    assert shop.counts()["jobs"] == shop.counts()["holds"] == 1


# --- accepting a sample ---------------------------------------------------------------------------------------------


def test_a_sample_job_has_no_hold_and_costs_nothing(shop):
    release_id = shop.released()
    before = shop.balance()
    job_id = shop.sample(release_id, classes=["coat", "boot"], key="k")
    assert shop.sample(release_id, classes=["coat", "boot"], key="k") == job_id
    job = shop.job(job_id)
    assert (job.kind, job.hold_id, job.release_id, job.recipe) == ("sample", None, release_id, RECIPE)
    assert shop.balance() == before
    sample = shop.read(jobs.made_by, Sample, job_id)
    assert shop.read(lambda session: session.scalars(select(Release.id)).all()) == [release_id]
    assert (sample.count, sample.classes, sample.seed, sample.format.value) == (10, ["coat", "boot"], 7, "npz")
    assert (sample.path, sample.sha256, sample.bytes) == (None, None, None)


def test_a_sample_in_proportions_keeps_them_in_label_order(shop):
    release_id = shop.released()
    names = shop.read(find, Dataset, shop.dataset_id).classes
    sample = shop.read(jobs.made_by, Sample, shop.sample(release_id, proportions={names[1]: 1, names[0]: 0.5}))
    assert sample.classes is None
    assert list(sample.proportions.items()) == [(names[0], 0.5), (names[1], 1.0)]
    assert shop.read(jobs.made_by, Sample, shop.sample(release_id)).proportions is None


def test_a_sample_may_come_in_the_balance_that_its_training_was_told(shop):
    stated = shop.released(options={"class_fractions": "boot=1,coat=3,shirt=2"})
    sample = shop.read(jobs.made_by, Sample, shop.sample(stated, proportions="stated"))
    assert sample.proportions == {"coat": 3.0, "boot": 1.0, "shirt": 2.0}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"proportions": {"coat": 1.0}, "classes": ["coat"]}, "not both"),
        ({"proportions": {"unicorn": 1.0}}, "there is no class unicorn"),
        ({"proportions": {"coat": 0.0}}, "coat=0 is not a number"),
        ({"proportions": {"coat": float("inf")}}, "coat=inf is not a number"),
        ({"proportions": {}}, "no number"),
        ({"proportions": "stated"}, "stated no class fractions"),
    ],
)
def test_proportions_that_cannot_be_drawn_are_refused(shop, changes, says):
    with pytest.raises(errors.InvalidInput, match=says):
        shop.sample(shop.released(), **changes)


def test_a_sample_that_cannot_be_drawn_is_refused(shop):
    release_id = shop.released()
    before = shop.counts()
    counts = [{"count": 0}, {"count": -1}, {"count": 11, "samples_max": 10}, {"count": True}]
    seeds = [{"seed": -1}, {"seed": 2**63}]
    classes = [{"classes": []}, {"classes": ["sock"]}, {"classes": ["coat", "coat"]}]
    for change in (*counts, *seeds, *classes, {"format": "tar"}):
        with pytest.raises(errors.InvalidInput):
            shop.sample(release_id, **change)
    with pytest.raises(errors.NotFound):
        shop.sample("rel_none")
    assert shop.counts() == before
