"""Plan a training and its price from public parameters only, and validate it before anything is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from sqlalchemy.orm import Session

from obscura.wire.words import DatasetState, Visibility
from privacy.accounting.filter import Filter
from privacy.errors import InvalidParameter, PrivacyError
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import RECIPES, build_plan, plan_from_json, useful_from_nano
from service.db.dataset_tables import KEY_MISSING, Dataset
from service.errors import Conflict, InvalidInput, LedgerCorruption
from service.jobs.lookup import get_dataset
from service.jobs.training_sets import TrainingSet, training_set
from service.ledger.chain import canonical_json

OPTIONS_BYTES_MAX = 16 * 1024
PLANS_KEPT = 256  # a few kilobytes each
DELTA_SHARE = 10  # a delta above 1 / (10 n) gets a note: it should be much less than 1/n


def plan_job(session: Session, *, dataset_id: str, recipe: str, epsilon: float, options: Mapping[str, Any]) -> Plan:
    """Compute a plan and its price, whether the account can pay it or not. Reads public parameters, never data.

    Args:
        dataset_id: a private dataset; its content may not have arrived.
        epsilon: the most that the job may spend at the account's delta, > 0 and finite.
    """
    return plan_on(session, training_set(session, dataset_id), recipe, epsilon, options)


def plan_on(session: Session, trained: TrainingSet, recipe: str, epsilon: float, options: Mapping[str, Any]) -> Plan:
    """As `plan_job`, on a loaded training set."""
    plan = _plan(trained, recipe, epsilon, options)
    _require_public(session, plan, trained.dataset)
    note = delta_note(trained.account.delta, trained.units_declared, trained.units)
    return plan if note is None else replace(plan, notes=(*plan.notes, note))


def charged_before_useful(plan: Any) -> int | None:
    """Return the nano-units that a training must have charged to have something to publish.

    None if the stored plan is damaged: one row must not hide the others of its page.
    """
    try:
        return useful_from_nano(plan_from_json(plan))
    except (InvalidParameter, KeyError, TypeError, ValueError):
        return None


def delta_note(delta: float, n: int, units: str) -> str | None:
    """Return a note on a delta that is allowed, but above a tenth of 1/n; else None."""
    if delta <= 1 / (DELTA_SHARE * n):
        return None
    return (
        f"delta {delta:g} is more than a tenth of 1/n for the {n} {units} declared in the account's datasets: in the "
        f"worst case that delta allows, about {delta * n:.2g} of them would be left unprotected. For a new account, "
        f"choose at most 1/{DELTA_SHARE * n}."
    )


def evaluation_set(session: Session, dataset_id: str, training: Dataset) -> Dataset:
    """Return a public dataset that a release trained on `training` can be measured on."""
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
    """Return the public dataset that a plan names, of any image size: its images are resized."""
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
    """Raise unless the training dataset is ready, and the evaluation dataset, if any, fits it and is ready."""
    require_ready(session, trained.dataset, "training dataset")
    if evaluation_dataset_id is None:
        return
    if recipe in RECIPES and RECIPES[recipe].publishes == "histogram":
        raise InvalidInput(
            f"The recipe {recipe} publishes counts, which are not measured on images: leave the evaluation dataset out."
        )
    evaluation_set(session, evaluation_dataset_id, trained.dataset)


def require_anchors_ready(session: Session, plan: Plan) -> None:
    """As `require_ready`, for the public dataset that a plan names, if any."""
    anchors = anchors_set(session, plan)
    if anchors is not None:
        require_ready(session, anchors, "public dataset that the options name")


def require_ready(session: Session, dataset: Dataset, role: str) -> None:
    """Raise unless a dataset is ready, and lock it against deletion until this transaction ends."""
    session.refresh(dataset, with_for_update={"read": True})
    if dataset.state is DatasetState.WITHDRAWING:
        raise Conflict(
            f"The {role} is being written anew without subjects who withdraw. Ask again when it is ready: as soon as "
            "trainings that read it have stopped.",
            dataset_id=dataset.id,
        )
    if dataset.failure_code == KEY_MISSING:
        raise Conflict(
            f"The {role} cannot be opened: the key of its images is missing, as after a restore without it. Ask the "
            "operator to bring the key back and to restart the service, or delete the dataset and upload it again.",
            dataset_id=dataset.id,
            reason=KEY_MISSING,
        )
    if dataset.state is not DatasetState.READY:
        raise Conflict(f"The {role} is {dataset.state.value}, not ready: upload its content.", dataset_id=dataset.id)


def _require_public(session: Session, plan: Plan, training: Dataset) -> None:
    public = anchors_set(session, plan)
    if public is None:
        return
    try:
        plan.config.require_public(public.records_declared, tuple(public.classes), tuple(training.classes))
    except InvalidParameter as error:
        raise InvalidInput(f"This cannot be planned: {error}.", parameter=error.name) from error


def _plan(trained: TrainingSet, recipe: str, epsilon: float, options: Mapping[str, Any]) -> Plan:
    budget_nano = trained.budget_nano(epsilon)
    try:
        asked = canonical_json(dict(options))
    except (TypeError, ValueError):
        raise InvalidInput("The options must be a JSON object of finite numbers, texts and lists.") from None
    if len(asked) > OPTIONS_BYTES_MAX:
        raise InvalidInput(f"The options are longer than {OPTIONS_BYTES_MAX} bytes.")
    try:
        plan = _built(trained.account.id, recipe, asked, trained.privacy_filter, budget_nano, trained.facts)
    except PrivacyError as error:
        refused = {"parameter": error.name} if isinstance(error, InvalidParameter) else {}
        raise InvalidInput(f"This cannot be planned: {error}.", **refused) from error
    if not 0 < plan.price_nano <= budget_nano:
        raise LedgerCorruption(
            "A plan's price is above the budget it was made for.", price_nano=plan.price_nano, budget_nano=budget_nano
        )
    return plan


@lru_cache(maxsize=PLANS_KEPT)
def _built(
    _account_id: str, recipe: str, options: bytes, privacy_filter: Filter, budget_nano: int, facts: PublicFacts
) -> Plan:
    """Build a plan. Cached, because a page asks for it, then its price, then the form that orders it.

    The cache is per account, so that response times reveal nothing about the plans of another account.
    """
    return build_plan(recipe, json.loads(options), privacy_filter, budget_nano, facts)
