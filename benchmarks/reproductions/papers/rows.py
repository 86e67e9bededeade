"""What a row of a table has: `row_of` makes one, `spread` sums up what several seeds found."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def row_of(
    paper: str, table: str, method: str, dataset: str | None, epsilon: float | None, setting: str, **found: Any
) -> Row:
    """Return a row of a paper's table or figure; what was found replaces its blanks."""
    row: Row = {"paper": paper, "table": table, "method": method, "dataset": dataset, "epsilon": epsilon}
    empty = {"setting": setting, "ours": None, "sd": None, "seeds": 0, "published": None, "seconds": 0.0}
    return row | empty | found


def spread(values: Sequence[float], scale: float = 1.0) -> dict[str, Any]:
    """Return each run's value, their mean and standard deviation as a row has them; one run has no deviation.

    Args:
        values: one a seed.
        scale: by which values are multiplied, such as 100 for per cent.
    """
    runs = [scale * value for value in values]
    deviation = statistics.stdev(runs) if len(runs) > 1 else None
    return {"ours": statistics.mean(runs), "sd": deviation, "seeds": len(runs), "runs": runs}


def since(started: float) -> float:
    """Return the seconds since a reading of `time.monotonic`, as a row has them."""
    return round(time.monotonic() - started, 1)
