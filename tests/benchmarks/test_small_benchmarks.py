"""Benchmarks that need a test or two: their measurements on small inputs."""

import numpy as np
import pytest
import torch

from benchmarks import gradient_memory
from benchmarks.float_safety import COLLECTIONS, collection, distance, measure, neighbours


def test_a_distance_is_that_of_integers_which_no_float_holds():
    first, second = torch.tensor([2**61 + 3, 0]), torch.tensor([2**61, 4])
    assert distance(first, second) == 5


@pytest.mark.parametrize("kind", COLLECTIONS)
def test_neighbours_have_one_unit_more(kind):
    units = collection(kind, 100)
    for one, place in zip(neighbours(units), (0, 51, 100), strict=True):
        assert np.array_equal(one, np.insert(units, place, 1023))


def test_a_row_of_the_table_of_neighbours_distances():
    row = measure("topagg", 100, 1e-6)
    assert (row["estimator"], row["units"], row["clip"]) == ("topagg", 100, 1e-6)
    assert 0.9 < row["distance"] <= 1


def test_explicit_gradients_take_every_parameter_once_for_each_record_and_carriers_far_less():
    model = gradient_memory.network(depth=10, widen=2)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    found = gradient_memory.measure(model, records=3, rank=2)
    assert 1 <= found["dpsgd"]["per_sample_bytes"] / (4 * 3 * parameters) < 1.01
    assert found["rgp"]["per_sample_bytes"] < found["dpsgd"]["per_sample_bytes"] / 4
    for figures in found.values():
        assert figures["peak_bytes"] >= figures["per_sample_bytes"]
