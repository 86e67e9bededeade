"""Plan a training on a private dataset and compute its price, from public parameters only. Validate before writing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sqlalchemy import and_, exists, func, or_, select
from sqlalchemy.orm import Session

from obscura.wire.schemas import DatasetRecord
from obscura.wire.words import TRAIN, DatasetState, Unit, Visibility
from privacy.accounting.filter import Filter
from privacy.errors import InvalidParameter, PrivacyError
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import RECIPES, build_plan, plan_from_json, useful_from_nano
from service import ledger
from service.db.dataset_tables import KEY_MISSING, Dataset
from service.db.job_tables import Job
from service.errors import Conflict, InvalidInput, LedgerCorruption
from service.identity.access import find
from service.ledger import Account
from service.ledger.chain import canonical_json

OPTIONS_BYTES_MAX = 16 * 1024
PLANS_KEPT = 256  # a few kilobytes each
ROUNDING = 2e-7  # relative difference between the remaining epsilon and its display; see `show_epsilon`
DELTA_SHARE = 10  # a delta above 1 / (10 n) gets a note: it should be far below 1/n


@dataclass(frozen=True)
class TrainingSet:
    """A private dataset for a training, its account, and the account's privacy filter."""

    dataset: Dataset
    account: Account
    privacy_filter: Filter
    units_declared: int

    def budget_nano(self, epsilon: float) -> int:
        """Convert an epsilon at the account's delta to nano-units."""
        try:
            budget_nano = self.privacy_filter.nano_of(epsilon)
            left_nano = self.account.left_nano
            if left_nano < budget_nano and epsilon <= self.privacy_filter.epsilon_of(left_nano) * (1 + ROUNDING):
                budget_nano = left_nano  # the remaining epsilon, as it is shown
        except PrivacyError as error:
            raise InvalidInput(f"This epsilon cannot be planned: {error}.") from error
        if budget_nano < 1:
            raise InvalidInput(
                f"epsilon {epsilon:g} is too small for account '{self.account.name}': at its delta, it is less than "
                "the smallest amount that the ledger counts. Request a larger epsilon.",
                epsilon=epsilon,
            )
        return budget_nano


def training_set(session: Session, dataset_id: str, *, lock: bool = False) -> TrainingSet:
    """Return a private dataset and its account; raise unless their declarations allow a training.

    With `lock`, the dataset can neither be deleted nor be moved to another account until this transaction ends.
    """
    dataset = find(session, Dataset, dataset_id)
    if lock:
        session.refresh(dataset, with_for_update={"read": True})
    if dataset.visibility is not Visibility.PRIVATE or dataset.account_id is None:
        raise InvalidInput(
            "Training needs a private dataset, which belongs to an account. This dataset is public: "
            "a job can use it only for the evaluation."
        )
    if dataset.state is DatasetState.DELETED:
        raise InvalidInput("This dataset was deleted.")
    account = ledger.get_account(session, dataset.account_id)
    if account.unit is Unit.SUBJECT and dataset.subjects_declared is None:
        raise InvalidInput(
            f"Account '{account.name}' protects whole subjects, but this dataset has no subject ids: a training on it "
            "would protect single records only. Declare the dataset again with subjects_declared, and upload the ids."
        )
    # The delta covers everything that the account ever publishes. So n sums the declared numbers of this dataset, of
    # the account's other datasets with content, and of deleted datasets on which a training began. A unit in two
    # datasets counts twice, because comparing datasets would read private data.
    begun = exists().where(Job.dataset_id == Dataset.id, Job.kind == TRAIN, Job.attempt > 0)
    kept = or_(Dataset.state != DatasetState.DELETED, begun)
    covered = and_(Dataset.account_id == account.id, Dataset.ready_at.is_not(None), kept)
    by_subject = func.coalesce(Dataset.subjects_declared, Dataset.records_declared)
    declared = func.sum(by_subject if account.unit is Unit.SUBJECT else Dataset.records_declared)
    n = session.scalar(select(declared).where(or_(Dataset.id == dataset.id, covered))) or 0
    if account.delta > 1 / n:
        units = f"{account.unit.value}s"
        raise InvalidInput(
            f"Account '{account.name}' has delta {account.delta:g}, which is above 1/{n} ({1 / n:.3g}) for the {n} "
            f"{units} declared in its datasets: such a guarantee would allow publishing some of them. Use an account "
            "with a smaller delta.",
            **{"delta": account.delta, "delta_max": 1 / n, f"{units}_declared": n},
        )
    return TrainingSet(dataset, account, ledger.filter_of(account), n)


def facts_of(dataset: Dataset, account: Account) -> PublicFacts:
    """Return the input of a plan: a dataset's declaration, and its account's unit."""
    return PublicFacts(
        classes=tuple(dataset.classes),
        height=dataset.height,
        width=dataset.width,
        channels=dataset.channels,
        records_declared=dataset.records_declared,
        unit=account.unit.value,
        subjects_declared=dataset.subjects_declared,
    )


def plan_on(session: Session, trained: TrainingSet, recipe: str, epsilon: float, options: Mapping[str, Any]) -> Plan:
    """Compute a plan and its price, even if the account cannot pay it. Reads public parameters, never data.

    `epsilon` limits the job's spending at the account's delta. The dataset need not have content yet.
    """
    budget_nano = trained.budget_nano(epsilon)
    try:
        written = canonical_json(dict(options))
    except (TypeError, ValueError):
        raise InvalidInput("The options must be a JSON object of finite numbers, texts and lists.") from None
    if len(written) > OPTIONS_BYTES_MAX:
        raise InvalidInput(f"The options are longer than {OPTIONS_BYTES_MAX} bytes.")
    account, declared = trained.account, trained.dataset
    try:
        facts = facts_of(declared, account)
        plan = _build(account.id, recipe, written, trained.privacy_filter, budget_nano, facts)
        if not 0 < plan.cost_nano <= budget_nano:
            raise LedgerCorruption(
                "The plan costs more than the requested epsilon.", cost_nano=plan.cost_nano, budget_nano=budget_nano
            )
        public = anchors_set(session, plan)
        if public is not None:
            plan.config.require_public(public.records_declared, tuple(public.classes), tuple(declared.classes))
    except PrivacyError as error:
        refused = {"parameter": error.name} if isinstance(error, InvalidParameter) else {}
        raise InvalidInput(f"This cannot be planned: {error}.", **refused) from error
    delta, n = account.delta, trained.units_declared
    if delta <= 1 / (DELTA_SHARE * n):
        return plan
    note = (
        f"delta {delta:g} is more than a tenth of 1/n for the {n} {account.unit.value}s declared in the account's "
        f"datasets: in the worst case that delta allows, about {delta * n:.2g} of them would be left unprotected. For "
        f"a new account, choose at most 1/{DELTA_SHARE * n}."
    )
    return replace(plan, notes=(*plan.notes, note))


@lru_cache(maxsize=PLANS_KEPT)
def _build(
    _account_id: str, recipe: str, options: bytes, privacy_filter: Filter, budget_nano: int, facts: PublicFacts
) -> Plan:
    # Cached, because a page shows the plan, then its price, then the order form. The cache is per account, so that
    # response times reveal nothing about the plans of another account.
    return build_plan(recipe, json.loads(options), privacy_filter, budget_nano, facts)


def charged_before_useful(plan: Any) -> int | None:
    """Return the nano-units that a training must charge before it has something to publish.

    Return None if the stored plan is damaged, because one damaged row must not break the page that lists it.
    """
    try:
        return useful_from_nano(plan_from_json(plan))
    except (InvalidParameter, KeyError, TypeError, ValueError):
        return None


def evaluation_set(session: Session, dataset_id: str, training: Dataset) -> Dataset:
    """Return a public dataset, if it can measure a release that is trained on `training`; otherwise raise."""
    dataset = find(session, Dataset, dataset_id)
    if dataset.visibility is not Visibility.PUBLIC:
        raise InvalidInput("The evaluation dataset must be public: an evaluation on private data would leak it.")
    if reason := why_unfit(dataset, training):
        raise InvalidInput(f"The evaluation dataset does not fit the training dataset: {reason}. Declare both alike.")
    require_ready(session, dataset, "evaluation dataset")
    return dataset


def why_unfit(dataset: Dataset, training: Dataset | DatasetRecord) -> str:
    """Return why a dataset cannot measure a release that is trained on `training`; empty if it can."""

    def facts(of: Dataset | DatasetRecord) -> Iterator[str]:
        yield "grey images" if of.channels == 1 else "colour images"
        yield f"{of.width} × {of.height} pixels"
        yield f"{len(of.classes)} classes"
        yield from (f"{name} as class {number}" for number, name in enumerate(of.classes, 1))

    pairs = zip(facts(dataset), facts(training), strict=False)
    return next((f"it has {own}, not {wanted}" for own, wanted in pairs if own != wanted), "")


def anchors_set(session: Session, plan: Plan) -> Dataset | None:
    """Return the public dataset that a plan names, if any. Its images may have any size, because they are resized."""
    dataset_id = plan.config.needed_anchors
    if not dataset_id:
        return None
    dataset = find(session, Dataset, dataset_id)
    if dataset.visibility is not Visibility.PUBLIC:
        raise InvalidInput(
            "The dataset that the options name must be public: results computed from it get no noise, so private "
            "images would leak through them."
        )
    return dataset


def require_content(session: Session, trained: TrainingSet, recipe: str, evaluation_dataset_id: str | None) -> None:
    """Raise unless the training dataset is ready, and the evaluation dataset, if any, is ready and matches it."""
    require_ready(session, trained.dataset, "training dataset")
    if evaluation_dataset_id is None:
        return
    if recipe in RECIPES and RECIPES[recipe].publishes == "histogram":
        raise InvalidInput(
            f"The recipe {recipe} publishes counts, which are not measured on images: leave the evaluation dataset out."
        )
    evaluation_set(session, evaluation_dataset_id, trained.dataset)


def require_anchors_ready(session: Session, plan: Plan) -> None:
    """Raise if a plan names a public dataset that is not ready. Lock the dataset against deletion."""
    anchors = anchors_set(session, plan)
    if anchors is not None:
        require_ready(session, anchors, "public dataset that the options name")


def require_ready(session: Session, dataset: Dataset, role: str) -> None:
    """Raise unless a dataset is ready. Lock it against deletion until this transaction ends."""
    session.refresh(dataset, with_for_update={"read": True})
    if dataset.state is DatasetState.WITHDRAWING:
        raise Conflict(
            f"The {role} is locked until the subjects who withdrew are removed from it, which waits for the trainings "
            "that read it. Retry when the dataset is ready again.",
            dataset_id=dataset.id,
        )
    if dataset.failure_code == KEY_MISSING:
        raise Conflict(
            f"The {role} cannot be opened: the key of its images is missing, as after a restore without keys. Ask the "
            "operator to restore the key and restart the service, or delete the dataset and upload it again.",
            dataset_id=dataset.id,
            reason=KEY_MISSING,
        )
    if dataset.state is not DatasetState.READY:
        raise Conflict(f"The {role} is {dataset.state.value}, not ready: upload its content.", dataset_id=dataset.id)
