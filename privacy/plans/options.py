"""A recipe's options: one pydantic model, which says of each its type, bounds, default and meaning.

Refusals, the API's document, the pages' form, the command line and the tables in docs follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from obscura.wire.wording import values_in_words
from privacy.errors import InvalidParameter

PUBLIC_DATASET_OPTIONS = ("anchors_dataset_id", "public_dataset_id")  # which a recipe may have one of
EvaluationSamples = Annotated[
    int, Field(ge=100, le=200_000, description="Synthetic images on which usefulness is measured.")
]
EvaluationSeed = Annotated[int, Field(ge=0, le=2**31 - 1, description="Public seed of the measurement of usefulness.")]


class RecipeConfig(BaseModel):
    """Public parameters of one training: each recipe's own class adds its options, and says what follows if it can.

    Raises:
        InvalidParameter: an option is unknown, has another type (a boolean is no number, 1.0 no integer) or lies
            outside its bounds, or options do not go together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _refusal(type(self), error) from None

    def model_post_init(self, _context: Any) -> None:
        """Check what no option can say alone."""
        self.check()

    def check(self) -> None:
        """Refuse options that do not go together.

        Raises:
            InvalidParameter: they do not.
        """

    def with_values(self, **values: Any) -> Self:
        """Return the same with other values of some options; they are checked."""
        return type(self)(**{**dict(self), **values})

    @property
    def needed_extractor(self) -> str:
        """Name of the operator's network whose features it needs; empty: none."""
        return str(getattr(self, "extractor", ""))

    @property
    def needed_anchors(self) -> str:
        """Public dataset whose images it needs; empty: none."""
        return next((str(value) for name in PUBLIC_DATASET_OPTIONS if (value := getattr(self, name, ""))), "")

    @property
    def public_images_serve(self) -> str:
        """What the images of that dataset are there for, in words for a card."""
        return "of the gradient's basis"

    def require_public(self, images: int, public_classes: tuple[str, ...], classes: tuple[str, ...]) -> None:
        """Let that dataset pass if what was declared of it suffices: how many images at most, and which classes.

        Args:
            images: that it has at most.
            public_classes: its class names.
            classes: those of the private dataset.

        Raises:
            InvalidParameter: it does not.
        """

    @property
    def changes_its_start(self) -> bool:
        """Whether a generator that starts from released statistics is changed after that, and can be had without."""
        return False

    @property
    def drawing_seconds(self) -> float:
        """Cost of drawing an image of 28 x 28 grey pixels, in the unit of `workers.recipes.interface.Piece`."""
        return 1e-3

    @property
    def measured_samples(self) -> int:
        """Images that are drawn to measure how useful they are."""
        return int(getattr(self, "evaluation_samples", 30_000))

    @property
    def measuring_seed(self) -> int:
        """Public seed of that measurement."""
        return int(getattr(self, "evaluation_seed", 0))


C = TypeVar("C", bound=RecipeConfig)


def read_options(kind: type[C], options: Mapping[str, Any], presets: Mapping[str, Mapping[str, Any]]) -> C:
    """Build a configuration from an optional "preset" (by default the first) and options that replace its values.

    Raises:
        InvalidParameter: an unknown preset or option, or a value that the configuration refuses.
    """
    if not presets:
        return kind(**options)
    chosen = dict(options)
    preset = chosen.pop("preset", next(iter(presets)))
    if not isinstance(preset, str) or preset not in presets:
        raise InvalidParameter("preset", preset, f"choose one of {', '.join(sorted(presets))}")
    return kind(**{**presets[preset], **chosen})


def options_schema(
    kind: type[RecipeConfig], presets: Mapping[str, Mapping[str, Any]], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the JSON Schema of a recipe's options as a request has them, each with its bounds and meaning.

    Args:
        kind: the class of the recipe's configurations.
        presets: the recipe's; where there are any, `preset` is an option as well.
        defaults: values that hold where nothing is given.
    """
    properties: dict[str, Any] = {}
    if presets:
        named = {"enum": list(presets), "type": "string", "default": next(iter(presets))}
        properties["preset"] = {**named, "description": "Named values of the other options, which those given replace."}
    for name, schema in _schemas(kind).items():
        properties[name] = {**schema, "default": defaults[name]}
    return {"type": "object", "properties": properties, "additionalProperties": False}


@cache
def _schemas(kind: type[RecipeConfig]) -> dict[str, dict[str, Any]]:
    schemas = kind.model_json_schema()["properties"]
    return {name: {key: value for key, value in schema.items() if key != "title"} for name, schema in schemas.items()}


def _refusal(kind: type[RecipeConfig], error: ValidationError) -> InvalidParameter:
    """Say what is wrong with one option: with an unknown one, if there is one, or else the first."""
    faults = error.errors(include_url=False)
    fault = next((each for each in faults if each["type"] == "extra_forbidden"), faults[0])
    cause = fault.get("ctx", {}).get("error")
    if isinstance(cause, InvalidParameter):
        return cause
    name = str(fault["loc"][0])
    if fault["type"] == "extra_forbidden":
        return InvalidParameter("options", name, f"the options are {', '.join(kind.model_fields)}")
    words = values_in_words(_schemas(kind)[name])
    return InvalidParameter(name, fault["input"], f"{'choose' if words.startswith('one of') else 'it is'} {words}")
