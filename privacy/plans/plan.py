"""Plans, their stages and recipes: the releases of a job and their cost, from public parameters only."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from obscura.wire.budgets import UNIT_WORDS, UNITS, Unit
from privacy.accounting.events import Event, event_from_json
from privacy.accounting.filter import NANO, Filter
from privacy.errors import BudgetExceeded, EventRefused, InvalidParameter
from privacy.plans.options import USUAL, RecipeConfig, option_schemas

Published = Literal["generator", "histogram", "classifier"]
GENERATOR_NOTES = (
    "Labels of synthetic images are uniform over the declared classes.",
    "If you only need a classifier, dp_classifier gives a better one for the same budget.",
)


UNIT_NOTES: Mapping[Unit, tuple[str, ...]] = {
    "record": (),
    "subject": ("The guarantee hides all records of one subject, however many there are.",),
}


@dataclasses.dataclass(frozen=True)
class PublicFacts:
    """Declared facts of a dataset. Nothing here is inferred from its records.

    Attributes:
        classes: class names in label order.
        channels: 1 or 3.
        records_declared: public upper bound of the number of records.
        unit: "record" or "subject".
        subjects_declared: public upper bound of the number of subjects; None exactly if the unit is the record.

    Raises:
        InvalidParameter: an unknown unit, or a number of subjects that does not match the unit.
    """

    classes: tuple[str, ...]
    height: int
    width: int
    channels: int
    records_declared: int
    unit: Unit
    subjects_declared: int | None = None

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise InvalidParameter("unit", self.unit, f"choose {' or '.join(UNITS)}")
        if (self.unit == "subject") != (self.subjects_declared is not None):
            raise InvalidParameter(
                "subjects_declared", self.subjects_declared, "declare it if, and only if, the unit is the subject"
            )

    @property
    def units_declared(self) -> int:
        """n: the public upper bound of the number of privacy units."""
        return self.records_declared if self.subjects_declared is None else self.subjects_declared

    @property
    def units_per_class(self) -> float:
        """Number of units in a class, if all classes have the same size."""
        return self.units_declared / len(self.classes)

    @property
    def protects(self) -> str:
        """The privacy unit, in words."""
        return UNIT_WORDS[self.unit]

    @property
    def pixels(self) -> int:
        """Number of values in one image, over all channels."""
        return self.height * self.width * self.channels

    @property
    def size(self) -> float:
        """Number of values in one image, relative to a 28 x 28 image with one channel."""
        return self.pixels / 784


C = TypeVar("C", bound=RecipeConfig)


def mu_of(budget_nano: float) -> float:
    """Return mu of one Gaussian release that uses a whole budget."""
    return math.sqrt(max(0.0, budget_nano) / NANO)


@dataclasses.dataclass(frozen=True)
class Stage:
    """One kind of release of a training, made once or many times.

    Attributes:
        name: unique within its plan.
        event: the releases; `event.count` is their number.
        cost_nano: total cost in nano-units of mu^2, including repeats.
        noise_stddev: parameter of the discrete Gaussian noise, slightly above the stddev of the event. None for a
            `PoissonGaussianEvent`, whose noise is relative to a unit's contribution.
        repeats: number of releases that can be repeated after crashes. Only a stage priced as a whole has them, and
            its price includes them.
    """

    name: str
    event: Event
    cost_nano: int
    noise_stddev: float | None = None
    repeats: int = 0

    @property
    def paid_as_whole(self) -> int | None:
        """Number of releases that the first charge pays for; None if each release is charged separately."""
        return self.event.count + self.repeats if self.event.is_sampled else None

    def announces(self, event: Event) -> bool:
        """Return whether an event consists of some of this stage's releases."""
        return dataclasses.replace(self.event, count=event.count) == event

    def price_of(self, count: int) -> int:
        """Return the price of `count` releases. A stage priced as a whole has the same price for any number."""
        return self.cost_nano if self.event.is_sampled else count * (self.cost_nano // self.event.count)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able description for `stage_from_json`."""
        document = {"name": self.name, "event": self.event.to_json(), "cost_nano": self.cost_nano}
        return document if not self.repeats else {**document, "repeats": self.repeats}


def stage_from_json(document: Mapping[str, Any], facts: Mapping[str, Any]) -> Stage:
    """Read a stage of a stored plan. The plan's `facts` contain the stage's noise."""
    noise_stddev = facts.get("noise_stddev", {}).get(document["name"])
    event, repeats = event_from_json(document["event"]), int(document.get("repeats", 0))
    return Stage(document["name"], event, int(document["cost_nano"]), noise_stddev, repeats)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that a training will release, in order.

    Attributes:
        stages: the training's kinds of noisy releases.
        budget_nano: upper limit of the plan's price.
        facts: public numbers for display, such as the number of teachers, and the stages' noise_stddev.
    """

    recipe: str
    config: RecipeConfig
    stages: tuple[Stage, ...]
    budget_nano: int
    notes: tuple[str, ...]
    facts: dict[str, Any]

    @property
    def cost_nano(self) -> int:
        """Sum of the stages' prices: the budget that is reserved for the job."""
        return sum(stage.cost_nano for stage in self.stages)

    @property
    def noise_stddev(self) -> dict[str, float]:
        """Parameter of the discrete Gaussian noise, by stage name, for stages that have such noise."""
        return {stage.name: stage.noise_stddev for stage in self.stages if stage.noise_stddev is not None}

    def config_of(self, kind: type[C]) -> C:
        """Return the configuration, which must be an instance of `kind`."""
        assert isinstance(self.config, kind)
        return self.config

    def stage(self, name: str) -> Stage | None:
        """Return the stage with that name, or None."""
        return next((stage for stage in self.stages if stage.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able description for `privacy.plans.registry.plan_from_json`."""
        return {
            "recipe": self.recipe,
            "config": self.config.model_dump(),
            "stages": [stage.to_json() for stage in self.stages],
            "cost_nano": self.cost_nano,
            "budget_nano": self.budget_nano,
            "notes": list(self.notes),
            "facts": self.facts,
        }


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How the service plans a recipe, and which units the recipe protects. `workers.recipes` has the training loops.

    Attributes:
        name: identifier in jobs.
        publishes: kind of the release; only generators can generate images.
        releases: kind of the release, in words.
        plan: builds a plan from options, the account's filter, the budget in nano-units, and the declared facts. Raises
            InvalidParameter if an option does not fit the dataset or the budget.
        units: the units whose whole contribution every mechanism of the recipe bounds. A recipe with the sensitivity of
            one record (for example, a clipped gradient per record) supports only "record". The records of a subject
            would each add that much, and together exceed the sensitivity for which the noise was computed.
        together: True if several processes train the recipe faster than one.
        presets: named sets of options; the first is the default.
        follows: names of options whose default is computed from facts and budget, at least with some presets.
        start: maps a plan to numbers of releases by stage name. Before these, nothing useful can be published.
        smallest_class: maps a plan and facts to the number of units that a class needs to stand out from the noise;
            None if unknown or impossible.
        bands: maps options, facts and an expected number of units per class to the smallest signal
            (`privacy.plans.warm_start.signal`) of each band of detail, worst first; empty if unknown.
    """

    name: str
    title: str
    publishes: Published
    releases: str
    config: type[RecipeConfig]
    plan: Callable[[Mapping[str, Any], Filter, int, PublicFacts], Plan]
    units: frozenset[Unit]
    together: bool = True
    presets: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    follows: frozenset[str] = frozenset()
    start: Callable[[Plan], Mapping[str, int]] = lambda plan: {plan.stages[0].name: 1}
    smallest_class: Callable[[Plan, PublicFacts], int | None] = lambda _plan, _facts: None
    bands: Callable[[Mapping[str, Any], PublicFacts, float], Mapping[str, float]] = lambda _options, _facts, _units: {}

    @property
    def defaults(self) -> dict[str, Any]:
        """Value of each option with the first preset. A plan may compute other values for the options in `follows`."""
        return self.config(**next(iter(self.presets.values()), {})).model_dump()

    @property
    def options(self) -> dict[str, Any]:
        """JSON Schema of the options in a request, including `preset` if there are presets."""
        properties: dict[str, Any] = {}
        if self.presets:
            named = {"enum": list(self.presets), "type": "string", "default": next(iter(self.presets))}
            words = "Named set of option values; options that you state override it."
            properties["preset"] = {**named, "description": words, "group": USUAL}
        defaults = self.defaults
        properties |= {name: {**it, "default": defaults[name]} for name, it in option_schemas(self.config).items()}
        return {"type": "object", "properties": properties, "additionalProperties": False}


class PlanBudget:
    """An in-memory budget for trainings without a ledger. The rules are those of a hold, a job's reserved budget.

    Args:
        capacity_nano: spending limit; None uses the plan's price.

    Attributes:
        spent_nano: amount spent so far.
        releases: releases paid so far, by stage.
    """

    def __init__(self, stages: Sequence[Stage], capacity_nano: int | None = None) -> None:
        cost_nano = sum(stage.cost_nano for stage in stages)
        self._stages = {stage.name: stage for stage in stages}
        self._left_nano = cost_nano if capacity_nano is None else capacity_nano
        self.spent_nano = 0
        self.releases: Counter[str] = Counter()

    def charge(self, event: Event, stage: str) -> None:
        """Pay for `event.count` releases.

        Raises:
            BudgetExceeded: the releases cost more than is left, or exceed the planned number.
            EventRefused: the plan has no such stage, or the stage has a different event.
        """
        planned = self._stages.get(stage)
        if planned is None or not planned.announces(event):
            raise EventRefused(stage, event)
        made, whole = self.releases[stage], planned.paid_as_whole
        cost_nano = 0 if whole is not None and made else planned.price_of(event.count)
        if cost_nano > self._left_nano or (whole is not None and made + event.count > whole):
            raise BudgetExceeded(cost_nano, self._left_nano)
        self._left_nano -= cost_nano
        self.spent_nano += cost_nano
        self.releases[stage] += event.count
