"""Rows of papers' tables, and the data sets that papers name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.results import Row
from benchmarks.small_data import SETS, Folder

Maker = Callable[..., list[Row]]  # (data set, quick or full) -> rows
FOLDERS: dict[str, Callable[[], Folder]] = {
    "mnist": SETS["mnist"],
    "fashion-mnist": SETS["fashion"],
    "cifar-10": SETS["cifar10"],
}


def row_of(
    paper: str, table: str, method: str, dataset: str | None, epsilon: float | None, setting: str, **found: Any
) -> Row:
    """Return a row of a paper's table; `found` replaces its blanks."""
    row: Row = {"paper": paper, "table": table, "method": method, "dataset": dataset, "epsilon": epsilon}
    empty = {"setting": setting, "ours": None, "sd": None, "seeds": 0, "published": None, "seconds": 0.0}
    return row | empty | found
