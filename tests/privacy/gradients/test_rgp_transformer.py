"""RGP on a small transformer, whose linear layers see several positions of each record."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from privacy.gradients.per_sample import trace_gradients
from tests.privacy.gradients.test_per_sample import TiedTokens, Tokens, losses
from tests.privacy.gradients.test_rgp import assert_projected, noise, rgp

CARRIED = {"query.weight", "key.weight", "value.weight", "head.weight"}


def network() -> Tokens:
    torch.manual_seed(5)
    return Tokens()


def batch(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences of four tokens; the class is how many of them are below three, in steps of two."""
    tokens = torch.randint(1, 7, (n, 4), generator=torch.Generator().manual_seed(n))
    return tokens, ((tokens < 3).sum(dim=1) + 1) // 2


def test_every_linear_layer_gets_carriers_and_the_update_is_the_projected_gradient() -> None:
    model = network()
    assert assert_projected(model, rgp(model, clip=50.0), *batch(6)) == CARRIED


def test_a_tied_weight_has_one_pair_of_carriers_and_the_update_is_the_projected_gradient() -> None:
    torch.manual_seed(5)
    model = TiedTokens()
    assert assert_projected(model, rgp(model, clip=50.0), *batch(6)) == {"embed.weight", "first.weight", "head.weight"}


@pytest.mark.parametrize("network", [network, TiedTokens], ids=["transformer", "tied"])
@pytest.mark.parametrize("random", [False, True])
def test_one_sequence_more_moves_the_sum_by_at_most_the_clip(random: bool, network: Callable[[], nn.Module]) -> None:
    model, (tokens, targets) = network(), batch(5)
    both = []
    for kept in (slice(None), slice(-1)):
        estimator = rgp(model, clip=1e-3, random=random)
        estimator.begin_step(model)
        estimator.add(trace_gradients(model, losses, tokens[kept], targets[kept]))
        both.append(torch.cat([value.flatten() for value in estimator.discard().values()]))
    moved = float((both[0] - both[1]).double().norm()) / estimator.bound
    assert 0.995 < moved <= 1


def test_it_learns() -> None:
    model, (tokens, targets) = network(), batch(300)
    estimator = rgp(model, clip=1.0, noise_multiplier=0.5, expected_batch=300.0, warm_up_steps=30)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    with torch.no_grad():
        before = float(losses(model(tokens), targets).mean())
    for step in range(120):
        estimator.begin_step(model)
        estimator.add(trace_gradients(model, losses, tokens, targets))
        released = estimator.privatise(noise(step))
        for name, parameter in model.named_parameters():
            parameter.grad = released[name].to(parameter)
        optimiser.step()
    with torch.no_grad():
        after = float(losses(model(tokens), targets).mean())
    assert after < 0.4 * before
