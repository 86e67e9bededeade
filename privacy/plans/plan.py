"""A plan: what a job would release and what that costs, from public parameters only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from privacy.accounting.events import Event, event_from_json
from privacy.errors import InvalidParameter
from privacy.units import UNIT_WORDS, UNITS, Unit


@dataclasses.dataclass(frozen=True)
class PublicFacts:
    """What the owner declared about a dataset. Nothing here is inferred from its records.

    Attributes:
        classes: class names in label order.
        height: pixels.
        width: pixels.
        channels: 1 or 3.
        records_declared: public upper bound of the number of records.
        unit: "record" or "subject".
        subjects_declared: public upper bound of the number of subjects; given exactly when the unit is the subject.
    """

    classes: tuple[str, ...]
    height: int
    width: int
    channels: int
    records_declared: int
    unit: Unit
    subjects_declared: int | None = None

    def __post_init__(self) -> None:
        """Refuse facts that do not say how many units there may be.

        Raises:
            InvalidParameter: an unknown unit, or a number of subjects that does not go with it.
        """
        if self.unit not in UNITS:
            raise InvalidParameter("unit", self.unit, f"the units are {' and '.join(UNITS)}")
        if (self.unit == "subject") != (self.subjects_declared is not None):
            raise InvalidParameter(
                "subjects_declared", self.subjects_declared, "it is declared exactly when the unit is the subject"
            )

    @property
    def units_declared(self) -> int:
        """n: the public upper bound of the number of units that the guarantee speaks of."""
        return self.records_declared if self.subjects_declared is None else self.subjects_declared

    @property
    def protects(self) -> str:
        """The unit in words."""
        return UNIT_WORDS[self.unit]

    @property
    def pixels(self) -> int:
        """Numbers in one image."""
        return self.height * self.width * self.channels


@dataclasses.dataclass(frozen=True)
class Stage:
    """One kind of release of a training.

    Attributes:
        name: unique within its plan.
        event: the release; its count is the number of releases.
        price_nano: of all of them, in the filter's nano-units.
    """

    name: str
    event: Event
    price_nano: int

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able description; `plan_from_json` reads it back."""
        return {"name": self.name, "event": self.event.to_json(), "price_nano": self.price_nano}


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that a training will release, in order.

    Attributes:
        recipe: name of the training loop.
        config: its complete configuration, JSON-able.
        stages: what it releases.
        price_nano: sum of the stages' prices: what the job holds.
        budget_nano: what the plan was made for; price_nano never exceeds it.
        notes: sentences for people.
        facts: public numbers for people, such as teachers and images_to_aggregate.
    """

    recipe: str
    config: dict[str, Any]
    stages: tuple[Stage, ...]
    price_nano: int
    budget_nano: int
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    def stage(self, name: str) -> Stage | None:
        """Return the stage of that name, or None when the plan does not have it."""
        return next((stage for stage in self.stages if stage.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able description; `plan_from_json` reads it back."""
        return {
            "recipe": self.recipe,
            "config": self.config,
            "stages": [stage.to_json() for stage in self.stages],
            "price_nano": self.price_nano,
            "budget_nano": self.budget_nano,
            "notes": list(self.notes),
            "facts": self.facts,
        }


def plan_from_json(document: Mapping[str, Any]) -> Plan:
    """Read what `Plan.to_json` wrote.

    Raises:
        InvalidParameter: an event is out of range.
        KeyError: a field is missing.
    """
    stages = tuple(
        Stage(stage["name"], event_from_json(stage["event"]), int(stage["price_nano"])) for stage in document["stages"]
    )
    return Plan(
        recipe=document["recipe"],
        config=dict(document["config"]),
        stages=stages,
        price_nano=int(document["price_nano"]),
        budget_nano=int(document["budget_nano"]),
        notes=tuple(document["notes"]),
        facts=dict(document["facts"]),
    )
