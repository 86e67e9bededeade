"""What a training would do and cost, from public parameters only; every refusal comes before anything is written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import and_, exists, func, or_, select
from sqlalchemy.orm import Session

from obscura.wire.words import TRAIN, DatasetState, Visibility
from privacy.accounting.filter import Filter
from privacy.errors import InvalidParameter, PrivacyError
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import RECIPES, build_plan, plan_from_json, useful_from_nano
from service import ledger
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.errors import Conflict, InvalidInput, LedgerCorruption
from service.jobs.lookup import get_dataset
from service.ledger import Account, Unit
from service.ledger.chain import canonical_json

OPTIONS_BYTES_MAX = 16 * 1024
DELTA_SHARE = 10  # a delta above 1 / (10 n) is remarked on; the field asks for "much less than 1/n"


@dataclass(frozen=True)
class TrainingSet:
    """A private dataset that may be trained on, and who pays for it: its account, whose filter is open."""

    dataset: Dataset
    account: Account
    privacy_filter: Filter
    units_declared: int

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


def plan_job(session: Session, *, dataset_id: str, recipe: str, epsilon: float, options: Mapping[str, Any]) -> Plan:
    """Compute a plan and its price. Reads public parameters, never data, and does not ask whether the account has it.

    Args:
        dataset_id: a private dataset; its content need not have arrived.
        epsilon: what the job may spend at the account's delta, > 0 and finite.

    Raises:
        NotFound: no such dataset.
        InvalidInput: an argument is out of range, delta > 1/n, the recipe does not bound what the account's unit
            contributes, the dataset cannot be trained on, or the public one that the options name is of no use.
    """
    return plan_on(session, training_set(session, dataset_id), recipe, epsilon, options)


def plan_on(session: Session, trained: TrainingSet, recipe: str, epsilon: float, options: Mapping[str, Any]) -> Plan:
    """As `plan_job`, on a training set that was looked up already."""
    plan = _plan(trained, recipe, epsilon, options)
    _require_public(session, plan, trained.dataset)
    note = delta_note(trained.account.delta, trained.units_declared, trained.units)
    return plan if note is None else replace(plan, notes=(*plan.notes, note))


def charged_before_useful(plan: Any) -> int | None:
    """Return how many nano-units a training must have charged to have something to publish.

    None for a stored plan that cannot be read: one damaged row must not hide the others of its page.
    """
    try:
        return useful_from_nano(plan_from_json(plan))
    except (InvalidParameter, KeyError, TypeError, ValueError):
        return None


def training_set(session: Session, dataset_id: str, *, lock: bool = False) -> TrainingSet:
    """Return a private dataset and its account, fit for training as far as their declarations go.

    Args:
        lock: it can neither be deleted nor join another account, as an upload may make it, before this transaction
            ends. Whoever pays for a training must be found after that.

    Raises:
        NotFound: no such dataset.
        InvalidInput: it is public, was deleted, or its account's promise cannot be kept for it.
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
    """Return n: how many units an account speaks of when a training on one of its datasets is asked for.

    Its delta is for all that it ever publishes. So what was declared is added up over all of its datasets that have, or
    had, content and over the one asked for. A deleted one counts if a training on it was ever begun: what that
    published stays published. A unit in two datasets counts twice; nobody may look whether it is the same.
    """
    begun = exists().where(Job.dataset_id == Dataset.id, Job.kind == TRAIN, Job.attempt > 0)
    spoken_of = and_(
        Dataset.account_id == account.id,
        Dataset.ready_at.is_not(None),
        or_(Dataset.state != DatasetState.DELETED, begun),
    )
    by_subject = func.coalesce(Dataset.subjects_declared, Dataset.records_declared)
    units = func.sum(by_subject if account.unit is Unit.SUBJECT else Dataset.records_declared)
    return session.scalar(select(units).where(or_(Dataset.id == dataset.id, spoken_of))) or 0


def delta_note(delta: float, n: int, units: str) -> str | None:
    """Return a remark on a delta that is allowed, and more than a tenth of 1/n; None where it is less."""
    if delta <= 1 / (DELTA_SHARE * n):
        return None
    return (
        f"delta {delta:g} is more than a tenth of 1/n for the {n} {units} declared in the account's datasets: in the "
        f"worst case that delta allows, about {delta * n:.2g} of them would be left unprotected. For a new account, "
        f"choose at most 1/{DELTA_SHARE * n}."
    )


def facts_of(dataset: Dataset, account: Account) -> PublicFacts:
    """Return what was declared about a private dataset and its account's unit: all that a plan is made from."""
    return PublicFacts(
        classes=tuple(dataset.classes),
        height=dataset.height,
        width=dataset.width,
        channels=dataset.channels,
        records_declared=dataset.records_declared,
        unit=account.unit.value,
        subjects_declared=dataset.subjects_declared,
    )


def evaluation_set(session: Session, dataset_id: str, training: Dataset) -> Dataset:
    """Return a public dataset that a release trained on `training` can be measured on.

    Raises:
        NotFound: no such dataset.
        InvalidInput: it is private, or has other classes or another image shape.
        Conflict: its content has not arrived.
    """
    dataset = get_dataset(session, dataset_id)
    if dataset.visibility is not Visibility.PUBLIC:
        raise InvalidInput("The evaluation dataset must be public: numbers measured on private data would leak it.")
    for field in ("classes", "height", "width", "channels"):
        if getattr(dataset, field) != getattr(training, field):
            raise InvalidInput(
                f"The evaluation dataset's {field} differ from the training dataset's: declare both alike."
            )
    require_ready(session, dataset, "evaluation dataset")
    return dataset


def anchors_set(session: Session, plan: Plan) -> Dataset | None:
    """Return the public dataset whose images a plan needs; None where it names none.

    Its shape may be any: its images are resized.

    Raises:
        NotFound: no such dataset.
        InvalidInput: it is private.
    """
    dataset_id = plan.config.needed_anchors
    if not dataset_id:
        return None
    dataset = get_dataset(session, dataset_id)
    if dataset.visibility is not Visibility.PUBLIC:
        raise InvalidInput(
            "The dataset that the options name must be public: what is computed from it gets no noise, so private "
            "images would leak through it."
        )
    return dataset


def require_content(session: Session, trained: TrainingSet, recipe: str, evaluation_dataset_id: str | None) -> None:
    """Let a training pass whose own dataset is ready, and whose release the other one, if named, can measure.

    Raises:
        NotFound: no such dataset.
        InvalidInput: the evaluation dataset is of no use for this training.
        Conflict: a dataset's content has not arrived.
    """
    require_ready(session, trained.dataset, "training dataset")
    if evaluation_dataset_id is None:
        return
    if recipe in RECIPES and RECIPES[recipe].publishes == "histogram":
        raise InvalidInput(
            f"The recipe {recipe} publishes counts, which are not measured on images: leave the evaluation dataset out."
        )
    evaluation_set(session, evaluation_dataset_id, trained.dataset)


def require_anchors_ready(session: Session, plan: Plan) -> None:
    """As `require_ready`, for the public dataset whose images a plan needs, if it names one."""
    anchors = anchors_set(session, plan)
    if anchors is not None:
        require_ready(session, anchors, "public dataset that the options name")


def require_ready(session: Session, dataset: Dataset, role: str) -> None:
    """Let a dataset pass whose content has arrived. It cannot be deleted before this transaction ends.

    Raises:
        Conflict: it has not.
    """
    session.refresh(dataset, with_for_update={"read": True})
    if dataset.state is not DatasetState.READY:
        raise Conflict(f"The {role} is {dataset.state.value}, not ready: upload its content.", dataset_id=dataset.id)
    if dataset.unchecked:
        raise Conflict(
            f"The {role} has not been compared with the private images yet, which the service does when it starts. If "
            "this stays, upload it again as a new dataset.",
            dataset_id=dataset.id,
        )


def _require_public(session: Session, plan: Plan, training: Dataset) -> None:
    """Let a plan pass whose public dataset, if it names one, has been declared to have what the plan needs of it."""
    public = anchors_set(session, plan)
    if public is None:
        return
    try:
        plan.config.require_public(public.records_declared, tuple(public.classes), tuple(training.classes))
    except InvalidParameter as error:
        raise InvalidInput(f"This cannot be planned: {error}.", parameter=error.name) from error


def _plan(trained: TrainingSet, recipe: str, epsilon: float, options: Mapping[str, Any]) -> Plan:
    budget_nano = trained.budget_nano(epsilon)
    facts = facts_of(trained.dataset, trained.account)
    try:
        too_long = len(canonical_json(dict(options))) > OPTIONS_BYTES_MAX
    except (TypeError, ValueError):
        raise InvalidInput("The options must be a JSON object of finite numbers, texts and lists.") from None
    if too_long:
        raise InvalidInput(f"The options are longer than {OPTIONS_BYTES_MAX} bytes.")
    try:
        plan = build_plan(recipe, dict(options), trained.privacy_filter, budget_nano, facts)
    except PrivacyError as error:
        refused = {"parameter": error.name} if isinstance(error, InvalidParameter) else {}
        raise InvalidInput(f"This cannot be planned: {error}.", **refused) from error
    if not 0 < plan.price_nano <= budget_nano:
        raise LedgerCorruption(
            "A plan's price is above the budget it was made for.", price_nano=plan.price_nano, budget_nano=budget_nano
        )
    return plan
