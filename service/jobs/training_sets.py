"""The private dataset that a training reads, and the account that pays for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sqlalchemy import and_, exists, func, or_, select
from sqlalchemy.orm import Session

from obscura.wire.words import TRAIN, DatasetState, Visibility
from privacy.accounting.filter import Filter
from privacy.errors import PrivacyError
from privacy.plans.plan import PublicFacts
from service import ledger
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.errors import InvalidInput
from service.jobs.lookup import get_dataset
from service.ledger import Account, Unit


@dataclass(frozen=True)
class TrainingSet:
    """A private dataset that may be trained on, its account, and the account's filter."""

    dataset: Dataset
    account: Account
    privacy_filter: Filter
    units_declared: int

    @property
    def facts(self) -> PublicFacts:
        """The declaration of the dataset."""
        return facts_of(self.dataset, self.account)

    @property
    def units(self) -> str:
        """The account's privacy unit, in the plural."""
        return f"{self.account.unit.value}s"

    def budget_nano(self, epsilon: float) -> int:
        """Return the nano-units of an epsilon at the account's delta."""
        is_number = not isinstance(epsilon, bool) and isinstance(epsilon, int | float)
        if not is_number or not math.isfinite(epsilon) or epsilon <= 0:
            raise InvalidInput(
                f"epsilon must be a finite number above 0; {epsilon!r} was given.", epsilon=repr(epsilon)
            )
        try:
            budget_nano = self.privacy_filter.nano_of(epsilon)
        except PrivacyError as error:
            raise InvalidInput(f"This epsilon cannot be planned: {error}.") from error
        if budget_nano < 1:
            account = self.account
            raise InvalidInput(
                f"epsilon {epsilon:g} buys nothing on account *{account.name}*: at its delta it is less than the "
                "smallest amount that is counted. Ask for more.",
                epsilon=epsilon,
            )
        return budget_nano


def training_set(session: Session, dataset_id: str, *, lock: bool = False) -> TrainingSet:
    """Return a private dataset and its account, if their declarations allow a training.

    Args:
        lock: until this transaction ends, the dataset can neither be deleted nor join another account, as an upload may
            make it. Lock before you read which account pays.
    """
    dataset = get_dataset(session, dataset_id)
    if lock:
        session.refresh(dataset, with_for_update={"read": True})
    if dataset.visibility is not Visibility.PRIVATE or dataset.account_id is None:
        raise InvalidInput(
            "Training needs a private dataset, which belongs to an account. This one is public: "
            "it can be the evaluation dataset of a job."
        )
    if dataset.state is DatasetState.DELETED:
        raise InvalidInput("This dataset was deleted.")
    account = ledger.get_account(session, dataset.account_id)
    if account.unit is Unit.SUBJECT and dataset.subjects_declared is None:
        raise InvalidInput(
            f"Account *{account.name}* protects whole subjects, but this dataset carries no subject ids: a training "
            "on it would protect single records only. Declare it again with subjects_declared, and upload the ids."
        )
    n = units_declared(session, dataset, account)
    trained = TrainingSet(dataset, account, ledger.filter_of(account), n)
    if account.delta > 1 / n:
        raise InvalidInput(
            f"Account *{account.name}* has delta {account.delta:g}, which is above 1/{n} ({1 / n:.3g}) for the {n} "
            f"{trained.units} declared in its datasets: such a guarantee would allow publishing some of them. Use an "
            "account with a smaller delta.",
            **{"delta": account.delta, "delta_max": 1 / n, f"{trained.units}_declared": n},
        )
    return trained


def units_declared(session: Session, dataset: Dataset, account: Account) -> int:
    """Return n: the number of units that an account's delta is compared with when one of its datasets is trained on.

    The delta covers everything that the account ever publishes. So n sums the declared numbers of this dataset and of
    all others of the account that have content, or had content and a training that was begun. A unit in two datasets
    counts twice, because nobody may look whether it is the same.
    """
    begun = exists().where(Job.dataset_id == Dataset.id, Job.kind == TRAIN, Job.attempt > 0)
    covered = and_(
        Dataset.account_id == account.id,
        Dataset.ready_at.is_not(None),
        or_(Dataset.state != DatasetState.DELETED, begun),
    )
    by_subject = func.coalesce(Dataset.subjects_declared, Dataset.records_declared)
    units = func.sum(by_subject if account.unit is Unit.SUBJECT else Dataset.records_declared)
    return session.scalar(select(units).where(or_(Dataset.id == dataset.id, covered))) or 0


def facts_of(dataset: Dataset, account: Account) -> PublicFacts:
    """Return the facts from which a plan is made: a dataset's declaration, and its account's unit."""
    return PublicFacts(
        classes=tuple(dataset.classes),
        height=dataset.height,
        width=dataset.width,
        channels=dataset.channels,
        records_declared=dataset.records_declared,
        unit=account.unit.value,
        subjects_declared=dataset.subjects_declared,
    )
