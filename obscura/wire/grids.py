"""Parse the grids of a sweep: from `--grid` on the command line, and from the fields of a form."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from obscura.wire.job_schemas import TRIALS_MAX, TRIALS_MIN

EPSILON = "epsilon"  # varies like an option


class GridRefused(ValueError):
    """A grid cannot be parsed. position: its index; None if the combination of all grids is invalid."""

    def __init__(self, said: str, position: int | None = None) -> None:
        super().__init__(said)
        self.position = position


def trials_of(grids: Sequence[str], fixed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one trial per combination of values, in the form of a sweep request; the first grid varies slowest.

    Args:
        grids: `NAME=VALUE,VALUE` or `NAME=[JSON, ...]`, each for a different option or epsilon. A value that is not
            JSON is text.
        fixed: Options of every trial that has no value of its own.

    Raises:
        GridRefused: A grid has no name or values, a name occurs twice, or the trials are too few or too many.
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
        raise GridRefused(f"These values give {given}; a sweep has {TRIALS_MIN} to {TRIALS_MAX}.")
    trials = []
    for combination in itertools.product(*values.values()):
        options = {**fixed, **dict(zip(values, combination, strict=True))}
        own = {EPSILON: options.pop(EPSILON)} if EPSILON in values else {}
        trials.append({"options": options, **own})
    return trials


def json_or_text(text: str) -> Any:
    """Parse a value as JSON; return it as stripped text if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text.strip()
