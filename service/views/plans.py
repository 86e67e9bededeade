"""Plans: what a training would buy, and what it would leave of an account's budget."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Text, cast, literal
from sqlalchemy.orm import Session

from obscura.wire.job_schemas import BudgetFacts, PlannedCohort, PlanRecord, PlanRequest, StageFacts
from obscura.wire.schemas import DatasetRecord
from obscura.wire.words import DatasetState, Visibility
from privacy.plans.plan import Plan
from service import ledger
from service.access import visible
from service.db.dataset_tables import Dataset
from service.errors import InvalidInput
from service.jobs.planning import plan_on
from service.jobs.training_sets import ALIKE, TrainingSet, training_set, why_apart
from service.settings import Settings
from service.views.accounts import Payer, Payments
from service.views.datasets import dataset

_EXTRACTORS_NAMED_MAX = 10


def plan(session: Session, settings: Settings, asked: PlanRequest) -> PlanRecord:
    """Return a plan with its price, what it buys, and the account before and after. No data is touched.

    Raises:
        InvalidInput: The dataset is public, or an argument is out of range.
        NotFound: There is no such dataset.
    """
    trained = training_set(session, asked.dataset_id, asked.further_dataset_ids)
    made = plan_on(session, trained, asked.recipe, asked.epsilon, asked.options)
    require_extractor(settings, made)
    payer, epsilon_of = trained.account, trained.privacy_filter.epsilon_of
    return PlanRecord(
        recipe=made.recipe,
        dataset_id=asked.dataset_id,
        epsilon=asked.epsilon,
        delta=payer.delta,
        unit=payer.unit.value,
        adjacency=payer.adjacency.value,
        price_nano=made.price_nano,
        price_epsilon=epsilon_of(made.price_nano),
        stages=[
            StageFacts(
                name=stage.name,
                releases=stage.event.count,
                repeats=stage.repeats,
                noise_multiplier=stage.event.noise_multiplier,
                price_nano=stage.price_nano,
            )
            for stage in made.stages
        ],
        buys=made.facts,
        notes=list(made.notes),
        config=made.config.model_dump(),
        budget=_budget(payer, made),
        cohorts=_cohorts(trained, made, asked.epsilon) if trained.further else [],
    )


def _budget(payer: ledger.Account, made: Plan) -> BudgetFacts:
    before, epsilon_of = ledger.balance_of(payer), ledger.filter_of(payer).epsilon_of
    left_after_nano = max(before.left_nano - made.price_nano, 0)
    affordable = not payer.frozen and made.budget_nano <= before.left_nano
    return BudgetFacts(
        account_id=payer.id,
        limit_epsilon=before.limit_epsilon,
        left_epsilon=before.left_epsilon,
        left_nano=before.left_nano,
        left_after_epsilon=epsilon_of(left_after_nano) if affordable else before.left_epsilon,
        left_after_nano=left_after_nano if affordable else before.left_nano,
        affordable=affordable,
    )


def _cohorts(trained: TrainingSet, made: Plan, epsilon: float) -> list[PlannedCohort]:
    cohorts = []
    for payer in trained.payers:
        priced = made.priced_by(payer.privacy_filter, payer.budget_nano(epsilon))
        named = [one.dataset.id for one in trained.all if one.account.id == payer.account.id]
        cohorts.append(
            PlannedCohort(
                dataset_ids=named,
                price_nano=priced.price_nano,
                price_epsilon=payer.privacy_filter.epsilon_of(priced.price_nano),
                delta=payer.account.delta,
                budget=_budget(payer.account, priced),
            )
        )
    return cohorts


@dataclass(frozen=True)
class Companion:
    """A private dataset on a page that plans a training, and the account that pays where it is read."""

    dataset: DatasetRecord
    payer: Payer


def read_together(session: Session, first: Dataset, chosen: Collection[str], *, others_max: int) -> list[Companion]:
    """Return a private dataset, and those that have their images and can be read together with it, newest first.

    Args:
        session: Any transaction.
        first: The dataset.
        chosen: Ids of datasets that are among them in any case, if they can be read.
        others_max: How many are looked at beside those.
    """
    shape = [getattr(Dataset, name) == getattr(first, name) for name in ("project_id", *ALIKE) if name != "classes"]
    shape.append(cast(Dataset.classes, Text) == cast(literal(first.classes, Dataset.classes.type), Text))
    there = Dataset.visibility == Visibility.PRIVATE, Dataset.state == DatasetState.READY, Dataset.id != first.id
    picked = Dataset.id.in_(chosen)
    newest = visible(session, Dataset).where(*there, *shape).order_by(picked.desc(), Dataset.created_at.desc())
    rows = [first, *session.scalars(newest.limit(len(chosen) + others_max))]
    paid = Payments.read(session, (row.account_id for row in rows))
    account_of = {row.id: paid.accounts[str(row.account_id)] for row in rows}
    alike = [row for row in rows[1:] if why_apart(first, account_of[first.id], row, account_of[row.id]) is None]
    payers = {account_id: paid.payer(account_id) for account_id in {str(row.account_id) for row in (first, *alike)}}
    return [Companion(dataset(row), payers[str(row.account_id)]) for row in (first, *alike)]


def require_extractor(settings: Settings, plan: Plan) -> None:
    """Let a plan pass whose extractor, a network that the operator provides, is there, or that needs none.

    An extractor NAME is `NAME.safetensors`, its weights, and `NAME.json`, which says what they are. Only workers read
    them, with torch.

    Args:
        settings: of this process.
        plan: an extractor's name has the form of one there, and is no path.

    Raises:
        InvalidInput: one of its files is missing.
    """
    name = plan.config.needed_extractor
    if not name:
        return
    folder = settings.extractors_path
    if all((folder / f"{name}{suffix}").is_file() for suffix in (".json", ".safetensors")):
        return
    known = sorted(path.stem for path in folder.glob("*.safetensors") if path.with_suffix(".json").is_file())
    there = f"there are {', '.join(known[:_EXTRACTORS_NAMED_MAX])}" if known else "so far there are no networks"
    raise InvalidInput(f"This service has no extractor {name}: {there}. Its operator can add one.", extractor=name)
