"""Reading a recipe's options into a dataclass of public parameters, with a clear refusal of what does not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeVar

from privacy.errors import InvalidParameter


class _Config(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


C = TypeVar("C", bound=_Config)
Ranges = Mapping[str, tuple[float, float]]
Choices = Mapping[str, tuple[str, ...]]
Names = Collection[str]


def read_options(kind: type[C], options: Mapping[str, Any], presets: Mapping[str, Mapping[str, Any]], recipe: str) -> C:
    """Build a configuration from an optional "preset" and fields that replace its values.

    Raises:
        InvalidParameter: an unknown preset or option, or a value that the configuration refuses.
    """
    chosen = dict(options)
    preset = chosen.pop("preset", "default")
    if not isinstance(preset, str) or preset not in presets:
        raise InvalidParameter("preset", preset, f"choose one of {', '.join(sorted(presets))}")
    known = [field.name for field in dataclasses.fields(kind)]
    for name in chosen:
        if name not in known:
            raise InvalidParameter("options", name, f"{recipe} knows {', '.join(known)}")
    return kind(**{**presets[preset], **chosen})


def check_values(
    config: Any,
    *,
    integers: Ranges,
    numbers: Ranges,
    choices: Choices = MappingProxyType({}),
    switches: Names = (),
    optional: Names = (),
) -> None:
    """Check the fields of a frozen dataclass, and turn its numbers into floats; `optional` ones may be None.

    Raises:
        InvalidParameter: a value has another type or lies outside its range.
    """
    for name, (low, high) in integers.items():
        value = getattr(config, name)
        if value is None and name in optional:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidParameter(name, value, f"it is an integer between {low} and {high}")
    for name, (low, high) in numbers.items():
        value = getattr(config, name)
        if value is None and name in optional:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise InvalidParameter(name, value, f"it is a number between {low:g} and {high:g}")
        object.__setattr__(config, name, float(value))
    for name, known in choices.items():
        if getattr(config, name) not in known:
            raise InvalidParameter(name, getattr(config, name), f"choose one of {', '.join(known)}")
    for name in switches:
        if not isinstance(getattr(config, name), bool):
            raise InvalidParameter(name, getattr(config, name), "it is true or false")
