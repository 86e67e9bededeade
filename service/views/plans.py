"""Recipes and plans: the releases of a training, and the remaining budget after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from obscura.wire.budgets import EPSILON_LEAST
from obscura.wire.job_schemas import BudgetFacts, PlanRecord, PlanRequest, RecipeRecord, StageFacts, SweepRequest
from obscura.wire.schemas import record_of
from obscura.wire.wording import show_epsilon
from privacy.plans.expectations import expect
from privacy.plans.moments import SEEN
from privacy.plans.plan import Plan, Recipe
from service import jobs, ledger
from service.errors import InvalidInput
from service.jobs.planning import plan_on, training_set
from service.settings import Settings
from service.views.sweeps import differing

_EXTRACTORS_NAMED_MAX = 10


def describe_recipe(recipe: Recipe) -> RecipeRecord:
    presets = {name: dict(chosen) for name, chosen in recipe.presets.items()}
    sets = {"units": sorted(recipe.units), "follows": sorted(recipe.follows)}
    return record_of(RecipeRecord, recipe, presets=presets, **sets)


def plan(session: Session, settings: Settings, asked: PlanRequest) -> PlanRecord:
    """Return a plan with its price, and the budget before and after it. Opens no data."""
    trained = training_set(session, asked.dataset_id)
    made = plan_on(session, trained, asked.recipe, asked.epsilon, asked.options)
    require_extractor(settings, made)
    payer, epsilon_of = trained.account, trained.privacy_filter.epsilon_of
    facts, budget = jobs.facts_of(trained.dataset, payer), _budget(payer, made.cost_nano, made.budget_nano)
    expected = expect(made, asked.options, trained.privacy_filter, facts, budget.left_nano, asked.expected_units)
    if expected.band is not None:
        example = f"/static/{expected.band}_{'colour' if facts.channels > 1 else 'grey'}.png"
        expected = expected.model_copy(update={"example": example})
    stages = [
        record_of(StageFacts, stage, releases=stage.event.count, noise_multiplier=stage.event.noise_multiplier)
        for stage in made.stages
    ]
    return record_of(
        PlanRecord,
        made,
        dataset_id=asked.dataset_id,
        epsilon=asked.epsilon,
        delta=payer.delta,
        unit=payer.unit.value,
        adjacency=payer.adjacency.value,
        cost_epsilon=epsilon_of(made.cost_nano),
        stages=stages,
        config=made.config.model_dump(),
        notes=[note for note in made.notes if note not in SEEN.values()],  # the expectation has them
        budget=budget,
        expectation=expected,
    )


def _budget(payer: ledger.Account, cost_nano: int, budget_nano: int) -> BudgetFacts:
    before, epsilon_of = ledger.balance_of(payer), ledger.filter_of(payer).epsilon_of
    left_after_nano = max(before.left_nano - cost_nano, 0)
    affordable = not payer.frozen and budget_nano <= before.left_nano
    return record_of(
        BudgetFacts,
        before,
        account_id=payer.id,
        left_after_epsilon=epsilon_of(left_after_nano) if affordable else before.left_epsilon,
        left_after_nano=left_after_nano if affordable else before.left_nano,
        affordable=affordable,
    )


@dataclass(frozen=True)
class PlannedSweep:
    """A sweep that is not requested yet, its total price, and the largest affordable epsilon of each trial."""

    trials: Sequence[tuple[jobs.Trial, Plan]]
    differing: Sequence[str]  # options that differ between trials
    cost_nano: int
    cost_epsilon: float
    budget: BudgetFacts
    most_epsilon_of_each: float


def plan_sweep(session: Session, settings: Settings, asked: SweepRequest) -> PlannedSweep:
    """Return a sweep with its price. Opens no data."""
    trained = training_set(session, asked.dataset_id)
    trials = jobs.requested_trials(asked)
    made = jobs.plan_trials(session, trained, asked.recipe, trials)
    for plan in made:
        require_extractor(settings, plan)
    cost_nano = sum(plan.cost_nano for plan in made)
    return PlannedSweep(
        trials=list(zip(trials, made, strict=True)),
        differing=differing([trial.options for trial in trials]),
        cost_nano=cost_nano,
        cost_epsilon=trained.privacy_filter.epsilon_of(cost_nano),
        budget=_budget(trained.account, cost_nano, sum(plan.budget_nano for plan in made)),
        most_epsilon_of_each=ledger.affordable_epsilon(
            trained.privacy_filter, trained.account.left_nano // len(trials)
        ),
    )


def slider_steps(session: Session, account_id: str, trials: int) -> list[tuple[str, float]]:
    """Return the epsilon of each trial at every hundredth of the remaining budget, and all trials' share of the limit.

    Epsilons are rounded to nearest, but not above what is left, and each share is that of its rounded epsilon.
    """
    payer = ledger.get_account(session, account_id)
    privacy_filter, left_nano = ledger.filter_of(payer), payer.left_nano // trials
    most = float(show_epsilon(ledger.affordable_epsilon(privacy_filter, left_nano), up=False))
    hundredths = (privacy_filter.epsilon_of(left_nano * step // 100) for step in range(1, 101))
    steps = [show_epsilon(max(min(epsilon, most), EPSILON_LEAST), up=None) for epsilon in hundredths]
    return [(step, trials * privacy_filter.nano_of(float(step)) / privacy_filter.capacity_nano) for step in steps]


def require_extractor(settings: Settings, plan: Plan) -> None:
    """Raise InvalidInput unless the operator has installed the extractor that a plan needs.

    An extractor NAME consists of `NAME.safetensors`, its weights, and `NAME.json`, its description. Only workers load
    them.
    """
    name = plan.config.needed_extractor
    if not name:
        return
    folder = settings.extractors_path
    if all((folder / f"{name}{suffix}").is_file() for suffix in (".json", ".safetensors")):
        return
    known = sorted(path.stem for path in folder.glob("*.safetensors") if path.with_suffix(".json").is_file())
    there = f"it has {', '.join(known[:_EXTRACTORS_NAMED_MAX])}" if known else "it has no extractors"
    raise InvalidInput(f"This service has no extractor {name}: {there}. Ask the operator to add it.", extractor=name)
