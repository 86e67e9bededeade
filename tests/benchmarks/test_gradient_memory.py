"""The benchmark that counts the bytes of per-sample gradients."""

from __future__ import annotations

import torch

from benchmarks.gradient_memory import LiveBytes, measure, network


def test_live_and_peak_bytes_are_those_of_the_tensors_that_exist() -> None:
    with LiveBytes() as counter:
        kept = torch.zeros(100)  # 400 bytes
        passing = torch.ones(1000) * 2  # 4,000 bytes twice
        assert counter.now == 4400
        kept[:50].add_(1)  # a view and an operation in place make nothing new
        del passing
        assert counter.now == 400
    assert counter.peak == 8400
    assert kept.sum() == 50


def test_explicit_gradients_take_every_parameter_once_for_each_record_and_carriers_far_less() -> None:
    model = network(depth=10, widen=2)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    found = measure(model, records=3, rank=2)
    assert 1 <= found["dpsgd"]["per_sample_bytes"] / (4 * 3 * parameters) < 1.01
    assert found["rgp"]["per_sample_bytes"] < found["dpsgd"]["per_sample_bytes"] / 4
    for figures in found.values():
        assert figures["peak_bytes"] >= figures["per_sample_bytes"]
