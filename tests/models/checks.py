"""What the tests of several networks ask of each."""

from typing import Any

import torch

from privacy.gradients.per_sample import trace_gradients, trainable


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def filled(network: Any) -> Any:
    """Add noise to every tensor of a network, and return it."""
    for value in network.state_dict().values():
        noise = 0.1 * torch.randn(value.shape, generator=stream(value.numel()))
        value += noise if value.is_floating_point() else (1000 * noise.abs()).byte()
    return network


def assert_gradients_are_autograds(
    network: Any, losses: Any, rows: torch.Tensor, targets: torch.Tensor, *, repeats: int = 1, atol: float = 1e-6
) -> None:
    """Of each record, whose rows follow each other, the gradient is the mean over its rows."""
    traced = trace_gradients(network, losses, rows, targets, repeats=repeats).shares()
    for record in range(len(rows) // repeats):
        network.zero_grad()
        own = slice(repeats * record, repeats * (record + 1))
        losses(network(rows[own]), targets[own]).mean().backward()
        for name, parameter in trainable(network).items():
            assert parameter.grad is not None
            torch.testing.assert_close(traced[name][record], parameter.grad, rtol=1e-3, atol=atol)
