"""DataLens' Table 1: each method that is here makes its rows, and the others are told with what was published."""

import pytest

from benchmarks.paper import datalens
from tests.benchmarks.test_orders import pictures


def test_methods_are_run_and_the_others_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(datalens.FOLDERS, "fashion-mnist", lambda: pictures(True))
    monkeypatch.setitem(datalens._SAMPLES, "quick", 40)
    monkeypatch.setitem(datalens._MERF, "quick", (20, 2))
    rows = datalens.table_1("fashion-mnist", "quick")
    ours = [(row["method"], row["epsilon"]) for row in rows if row["ours"] is not None]
    assert ours == [(name, epsilon) for name in ("DataLens, our default", "DP-MERF") for epsilon in (1.0, 10.0)]
    assert all(0 <= row["ours"] <= 1 and row["seeds"] == 1 for row in rows[:4])
    others = {(row["method"], row["epsilon"]): row["published"] for row in rows[4:]}
    assert others["DataLens, Algorithms 1-3", 10.0] == 0.7061
    assert others["G-PATE", 1.0] == 0.5567
    assert len(others) == 12
    assert {row["setting"] for row in rows[4:]} == {"not run"}
