"""The benchmark of neighbours' distances: what it compares, and a row of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.float_safety import COLLECTIONS, collection, distance, measure, neighbours


def test_a_distance_is_that_of_integers_which_no_float_holds() -> None:
    first, second = torch.tensor([2**61 + 3, 0]), torch.tensor([2**61, 4])
    assert distance(first, second) == 5


@pytest.mark.parametrize("kind", COLLECTIONS)
def test_neighbours_have_one_unit_more(kind: str) -> None:
    units = collection(kind, 100)
    assert [len(one) for one in neighbours(units)] == [101] * 3
    assert [np.flatnonzero(one == 1023).tolist() for one in neighbours(units)] == [[0], [51], [100]]
    assert all(np.delete(one, np.flatnonzero(one == 1023)).tolist() == units.tolist() for one in neighbours(units))


def test_a_row_of_the_table() -> None:
    row = measure("topagg", 100, 1e-6)
    assert (row["estimator"], row["units"], row["clip"]) == ("topagg", 100, 1e-6)
    assert 0.9 < row["distance"] <= 1
