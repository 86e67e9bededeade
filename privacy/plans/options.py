"""A recipe's options: one pydantic model with the type, bounds, default and meaning of each.

Validation errors, the API's schema, the pages' form, the command line and the tables in docs derive from this model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from obscura.wire.texts import FRACTIONS_TEXT_MAX, read_class_fractions
from obscura.wire.wording import values_in_words
from privacy.errors import InvalidParameter

USUAL = "Usual"  # group of options that people change first
PUBLIC_DATASET_OPTIONS = ("anchors_dataset_id", "public_dataset_id")  # at most one per recipe
EXTRACTOR_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # used as a file name, so no dot and no slash
EvaluationSamples = Annotated[
    int, Field(ge=100, le=200_000, description="Number of synthetic images on which usefulness is measured.")
]
EvaluationSeed = Annotated[int, Field(ge=0, le=2**31 - 1, description="Public seed of the measurement of usefulness.")]


class RecipeConfig(BaseModel):
    """Public parameters of one training. Each recipe has a subclass with its own options.

    Raises:
        InvalidParameter: an option is unknown, has another type (a boolean is not a number, 1.0 not an integer), is out
            of bounds, or conflicts with another.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    # The group that begins with an option and contains the next options, until another group begins. Forms show groups.
    groups: ClassVar[Sequence[tuple[str, str]]] = (("class_fractions", USUAL), ("evaluation_samples", "Evaluation"))
    # The purpose of the public dataset's images, in words for a card.
    public_images_serve: ClassVar[str] = "from which the gradient's basis was computed"
    drawing_cost: ClassVar[float] = 1e-3  # `drawing_seconds` unless options change it

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _refusal(type(self), error) from None
        self.check()

    def check(self) -> None:
        """Raise InvalidParameter if options conflict."""

    def refusal(self, name: str, why: str) -> InvalidParameter:
        """Return the error for an invalid value of an option."""
        return InvalidParameter(name, getattr(self, name), why)

    def with_values(self, **values: Any) -> Self:
        """Return a copy with new values of some options, after validation."""
        return type(self)(**{**dict(self), **values})

    @property
    def needed_extractor(self) -> str:
        """Name of the pretrained network that the operator must install for the training; empty: none."""
        return str(getattr(self, "extractor", ""))

    @property
    def needed_anchors(self) -> str:
        """Id of the public dataset that the training needs; empty: none."""
        return next((str(value) for name in PUBLIC_DATASET_OPTIONS if (value := getattr(self, name, ""))), "")

    def require_public(self, images: int, public_classes: tuple[str, ...], classes: tuple[str, ...]) -> None:
        """Raise InvalidParameter unless the declared public dataset (`needed_anchors`) suffices.

        Args:
            images: upper bound of the number of public images.
            public_classes: class names of the public dataset.
            classes: class names of the private dataset.
        """

    def stated_fractions(self, classes: Sequence[str]) -> dict[str, float] | None:
        """Return the stated share of each class in label order, adding up to 1; None if nothing is stated.

        Raises:
            InvalidParameter: `class_fractions` does not have a number above 0 for each of these classes.
        """
        stated = str(getattr(self, "class_fractions", ""))
        if not stated:
            return None
        try:
            numbers = read_class_fractions(stated, classes)
        except ValueError as error:
            raise self.refusal("class_fractions", str(error)) from None
        whole = math.fsum(numbers.values())
        return {name: number / whole for name, number in numbers.items()}

    @property
    def changes_its_start(self) -> bool:
        """True if later releases only change generated images.

        Images can then also be generated from the initial release alone.
        """
        return False

    @property
    def drawing_seconds(self) -> float:
        """Seconds to generate a grey 28 x 28 image on two cores; only ratios matter (`workers.recipes.interface`)."""
        return self.drawing_cost


class ClassFractionsConfig(RecipeConfig):
    """Options of all recipes that train on classes."""

    class_fractions: str = Field(
        "",
        max_length=FRACTIONS_TEXT_MAX,
        description="How many records you expect in each class, without looking at the data: "
        "`normal=2000,sick=20`, or numbers in the order of the labels. Only ratios count. Plans warn of classes "
        "that will be lost in the noise, and previews use public images in these proportions. Empty: equal classes "
        "are assumed.",
    )


C = TypeVar("C", bound=RecipeConfig)


def read_options(kind: type[C], options: Mapping[str, Any], presets: Mapping[str, Mapping[str, Any]]) -> C:
    """Build a configuration from an optional "preset" (by default the first) and options that override its values.

    Raises:
        InvalidParameter: an unknown preset or option, or an invalid value.
    """
    chosen = dict(options)
    preset = chosen.pop("preset", next(iter(presets)))
    if not isinstance(preset, str) or preset not in presets:
        raise InvalidParameter("preset", preset, f"choose one of {', '.join(sorted(presets))}")
    return kind(**{**presets[preset], **chosen})


@cache
def option_schemas(kind: type[RecipeConfig]) -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of each option of a configuration class, with its group."""
    groups = dict(pair for each in reversed(kind.__mro__) for pair in vars(each).get("groups", ()))
    group, schemas = USUAL, {}
    for name, schema in kind.model_json_schema()["properties"].items():
        group = groups.get(name, group)
        schemas[name] = {**{key: value for key, value in schema.items() if key != "title"}, "group": group}
    return schemas


def _refusal(kind: type[RecipeConfig], error: ValidationError) -> InvalidParameter:
    """Return the error for the first unknown option or, if all are known, for the first invalid one."""
    faults = error.errors(include_url=False)
    fault = next((each for each in faults if each["type"] == "extra_forbidden"), faults[0])
    name = str(fault["loc"][0])
    if fault["type"] == "extra_forbidden":
        return InvalidParameter("options", name, f"this recipe has the options {', '.join(kind.model_fields)}")
    words = values_in_words(option_schemas(kind)[name])
    return InvalidParameter(name, fault["input"], f"{'choose' if words.startswith('one of') else 'it must be'} {words}")
