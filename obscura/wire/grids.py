"""The trials of a search, from values to try: as `--grid` takes them on a terminal, and a form in its fields."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from obscura.wire.sweep_schemas import TRIALS_MAX, TRIALS_MIN

EPSILON = "epsilon"  # is tried as if it were an option


class GridRefused(ValueError):
    """Values to try are written otherwise than they can be read.

    Attributes:
        position: of the grid at fault, from 0; None where it is what they give together.
    """

    def __init__(self, said: str, position: int | None = None) -> None:
        super().__init__(said)
        self.position = position


def trials_of(grids: Sequence[str], fixed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a trial for every combination of values, as a sweep's request has them; the first grid varies slowest.

    Args:
        grids: `NAME=VALUE,VALUE` or `NAME=[JSON, ...]`, each of another option or of epsilon; values are JSON, or else
            texts.
        fixed: options of every trial that has no value of its own.

    Raises:
        GridRefused: a grid has no name or no values, a name occurs twice, or the trials are too few or too many.
    """
    values: dict[str, list[Any]] = {}
    for position, grid in enumerate(grids):
        name, _, text = (part.strip() for part in grid.partition("="))
        if not name:
            raise GridRefused("Say which option these are values of.", position)
        if not text:
            raise GridRefused(f"Write the values of {name} to try, with a comma between two.", position)
        if name in values:
            raise GridRefused(f"{name} is there already: write all its values in one place.", position)
        listed = json_or_text(text)
        values[name] = listed if isinstance(listed, list) else [json_or_text(part) for part in text.split(",")]
    count = math.prod(map(len, values.values()))
    if not TRIALS_MIN <= count <= TRIALS_MAX:
        given = "1 trial" if count == 1 else f"{count:,} trials"
        raise GridRefused(f"These values give {given}; a search has {TRIALS_MIN} to {TRIALS_MAX}.")
    return [_trial(dict(zip(values, chosen, strict=True)), fixed) for chosen in itertools.product(*values.values())]


def _trial(chosen: dict[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    own = {EPSILON: chosen.pop(EPSILON)} if EPSILON in chosen else {}
    return {"options": {**fixed, **chosen}, **own}


def json_or_text(text: str) -> Any:
    """Read a value as JSON, or else as a text without the blanks around it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text.strip()
