"""What a training reads, and who pays for it: a private dataset and its account, or several of each.

Datasets that are read together are one to the recipe. So they must agree in all that is public about an image, and in
what a unit is; and no unit may be in two accounts (docs/parallel.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import and_, exists, func, or_, select
from sqlalchemy.orm import Session

from obscura.wire.words import TRAIN, DatasetState, Visibility
from privacy.accounting.filter import Filter
from privacy.errors import PrivacyError
from privacy.plans.plan import PublicFacts
from service import ledger
from service.access import visible
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.errors import InvalidInput
from service.jobs.lookup import get_dataset, reads
from service.ledger import Account, Unit

FURTHER_MAX = 15  # besides the first
ALIKE = ("classes", "height", "width", "channels")  # of datasets that are read together


@dataclass(frozen=True)
class TrainingSet:
    """A private dataset that may be trained on, and who pays for it: its account, whose filter is open.

    `further` are those that are read together with it, in their order.
    """

    dataset: Dataset
    account: Account
    privacy_filter: Filter
    units_declared: int
    further: tuple[TrainingSet, ...] = ()

    @property
    def all(self) -> tuple[TrainingSet, ...]:
        """This one and those that are read together with it."""
        return (self, *self.further)

    @property
    def payers(self) -> tuple[TrainingSet, ...]:
        """The first of each account, in their order: this one pays, and whoever else has a dataset here."""
        first: dict[str, TrainingSet] = {}
        for one in self.all:
            first.setdefault(one.account.id, one)
        return tuple(first.values())

    @property
    def facts(self) -> PublicFacts:
        """What was declared about all that is read, as of one dataset."""
        return facts_of([one.dataset for one in self.all], self.account)

    @property
    def units(self) -> str:
        """What the account protects, in the plural."""
        return f"{self.account.unit.value}s"

    def budget_nano(self, epsilon: float) -> int:
        """Return the nano-units that an epsilon at the account's delta holds.

        Raises:
            InvalidInput: epsilon is not a finite number above 0, or holds nothing.
        """
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


def training_set(
    session: Session, dataset_id: str, further_ids: Sequence[str] = (), *, lock: bool = False
) -> TrainingSet:
    """Return a private dataset and its account, fit for training as far as their declarations go.

    Args:
        further_ids: of the datasets that are read together with it.
        lock: it can neither be deleted nor join another account, as an upload may make it, before this transaction
            ends. Whoever pays for a training must be found after that.

    Raises:
        NotFound: no such dataset.
        InvalidInput: it is public, was deleted, or its account's promise cannot be kept for it; or those that are
            further cannot be one dataset with it.
    """
    if lock and further_ids:  # in one order, whichever they are named in: who withdraws locks several as well
        named = visible(session, Dataset, select(Dataset.id)).where(Dataset.id.in_([dataset_id, *further_ids]))
        session.execute(named.order_by(Dataset.id).with_for_update(read=True))
    first = _alone(session, dataset_id, lock=lock)
    if not further_ids:
        return first
    if len(further_ids) > FURTHER_MAX:
        raise InvalidInput(f"A training reads at most {FURTHER_MAX + 1} datasets; {len(further_ids) + 1} were given.")
    if len({dataset_id, *further_ids}) <= len(further_ids):
        raise InvalidInput("A dataset is named twice: name each that is to be read once.")
    further = tuple(_alone(session, further_id, lock=lock) for further_id in further_ids)
    for one in further:
        apart = why_apart(first.dataset, first.account, one.dataset, one.account)
        if apart is not None:
            raise apart
    return replace(first, further=further)


def _alone(session: Session, dataset_id: str, *, lock: bool) -> TrainingSet:
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


def why_apart(first: Dataset, payer: Account, other: Dataset, other_payer: Account) -> InvalidInput | None:
    """Say why two private datasets cannot be one; None where they can: their images are alike, and their units are of
    the same kind.

    Nothing that is private is asked: that no unit is in two accounts was settled when the images arrived.

    Args:
        payer: the account of the first one; likewise `other_payer`.
    """
    names = f"Datasets *{first.name}* and *{other.name}*"
    different = [name for name in ALIKE if getattr(first, name) != getattr(other, name)]
    if different:
        return InvalidInput(
            f"{names} cannot be read together: their {', '.join(different)} differ. Declare them alike.",
            different=different,
        )
    if payer.project_id != other_payer.project_id:
        return InvalidInput(f"{names} cannot be read together: they belong to two projects, and a release has one.")
    if (payer.unit, payer.adjacency) != (other_payer.unit, other_payer.adjacency):
        return InvalidInput(
            f"{names} cannot be read together: account *{payer.name}* protects {payer.unit.value}s and account "
            f"*{other_payer.name}* {other_payer.unit.value}s, and a training protects the one or the other."
        )
    if payer.unit is Unit.SUBJECT and not (first.subjects_recognised and other.subjects_recognised):
        return InvalidInput(
            f"{names} cannot be read together: their accounts protect subjects, and nobody knows whether somebody is "
            "in both, for the ids of one of them ended with its upload. Declare it again with subjects_recognised, and "
            "upload it with the same ids."
        )
    return None


def units_declared(session: Session, dataset: Dataset, account: Account) -> int:
    """Return n: how many units an account speaks of when a training on one of its datasets is asked for.

    Its delta is for all that it ever publishes. So what was declared is added up over all of its datasets that have, or
    had, content and over the one asked for. A deleted one counts if a training on it was ever begun: what that
    published stays published. A unit in two datasets counts twice; nobody may look whether it is the same.
    """
    begun = exists().where(reads(Dataset.id), Job.kind == TRAIN, Job.attempt > 0)
    spoken_of = and_(
        Dataset.account_id == account.id,
        Dataset.ready_at.is_not(None),
        or_(Dataset.state != DatasetState.DELETED, begun),
    )
    by_subject = func.coalesce(Dataset.subjects_declared, Dataset.records_declared)
    units = func.sum(by_subject if account.unit is Unit.SUBJECT else Dataset.records_declared)
    return session.scalar(select(units).where(or_(Dataset.id == dataset.id, spoken_of))) or 0


def facts_of(datasets: Sequence[Dataset], account: Account) -> PublicFacts:
    """Return what was declared about private datasets that are read together, and their accounts' unit: all that a
    plan is made from. Bounds add up.

    Args:
        datasets: one or more, alike.
        account: of the first.
    """
    first = datasets[0]
    subjects = [each.subjects_declared for each in datasets if each.subjects_declared is not None]
    return PublicFacts(
        classes=tuple(first.classes),
        height=first.height,
        width=first.width,
        channels=first.channels,
        records_declared=sum(each.records_declared for each in datasets),
        unit=account.unit.value,
        subjects_declared=sum(subjects) if subjects else None,
    )
