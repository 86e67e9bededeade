"""RGP: carriers from released weights, gradients of carriers by record, and the projection of Corollary 2.1.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from privacy.errors import InvalidParameter
from privacy.gradients.estimator import shapes_of
from privacy.gradients.per_sample import trace_gradients
from privacy.gradients.rgp import Rgp, carriers_of, random_carriers
from tests.privacy.gradients.test_dpsgd import noise
from tests.privacy.gradients.test_per_sample import TiedTokens, Tokens, losses


def network() -> nn.Module:
    torch.manual_seed(8)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, stride=2),
        nn.GroupNorm(2, 6),
        nn.ReLU(),
        nn.Conv2d(6, 7, 3, bias=False),
        nn.Flatten(),
        nn.Linear(7 * 4, 9),
        nn.Tanh(),
        nn.Linear(9, 3),
    )


def batch(n: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, 8, 8, generator=generator), torch.randint(0, 3, (n,), generator=generator)


def rgp(model: nn.Module, **changes: float) -> Rgp:
    options = {"rank": 2, "clip": 0.3, "noise_multiplier": 1e-6, "expected_batch": 1.0} | changes
    return Rgp(model, shapes_of(model), **options)


def assert_projected(model: nn.Module, estimator: Rgp, inputs: torch.Tensor, targets: torch.Tensor) -> set[str]:
    """A step's update is L L^T dW + dW R^T R - L L^T dW R^T R where there are carriers, whose names are returned."""
    estimator.begin_step(model)
    carriers = dict(estimator._carriers)
    traces = trace_gradients(model, losses, inputs, targets)
    estimator.add(traces)
    found = estimator.privatise(noise())
    for name, share in traces.shares().items():
        truth = share.sum(dim=0)
        if name in carriers:
            left, right = carriers[name]
            dw = truth.flatten(1)
            on_left, on_right = left @ (left.mT @ dw), dw @ right.mT @ right
            truth = (on_left + on_right - left @ (left.mT @ dw) @ right.mT @ right).reshape(truth.shape)
        torch.testing.assert_close(found[name].to(truth), truth, atol=2e-3, rtol=2e-3)
    return set(carriers)


def test_the_update_is_the_projection_of_the_gradient_on_the_carriers() -> None:
    """Corollary 2.1.1, for linear layers and convolutions alike."""
    model = network()
    assert assert_projected(model, rgp(model, clip=20.0), *batch(6)) == {"0.weight", "3.weight", "5.weight", "7.weight"}


@pytest.mark.parametrize("changes", [{}, {"random": True}, {"rank": 8, "rank_fraction": 0.3, "iterations": 2}], ids=str)
def test_a_worst_case_record_attains_the_sensitivity_and_none_exceeds_it(changes: dict[str, Any]) -> None:
    model, (inputs, targets) = network(), batch(5)
    largest = 0.0
    for scale in (0.01, 1.0, 30.0):
        changed = inputs.clone()
        changed[-1] *= scale
        both = []
        for kept in (slice(None), slice(-1)):
            estimator = rgp(model, clip=0.05, **changes)  # the carriers' seed is public: the same for both
            estimator.begin_step(model)
            estimator.add(trace_gradients(model, losses, changed[kept], targets[kept]))
            both.append(torch.cat([value.flatten() for value in estimator.discard().values()]))
        moved = float((both[0] - both[1]).double().norm()) * estimator.sensitivity / estimator.bound
        assert moved <= estimator.sensitivity
        largest = max(largest, moved / estimator.sensitivity)
    assert largest > 0.995


def test_noise_multiplicity_averages_rows_before_clipping() -> None:
    model, (inputs, targets) = network(), batch(4)
    estimator = rgp(model, clip=20.0)
    estimator.begin_step(model)
    twice = trace_gradients(model, losses, inputs.repeat_interleave(2, dim=0), targets.repeat_interleave(2), repeats=2)
    once = trace_gradients(model, losses, inputs, targets)
    for (name, a), b in zip(
        estimator.carrier_shares(twice).items(), estimator.carrier_shares(once).values(), strict=True
    ):
        torch.testing.assert_close(a, b, msg=name)


def test_carriers_are_orthonormal_and_come_from_the_released_weights_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    low = torch.randn(30, 3, generator=generator) @ torch.randn(3, 50, generator=generator)
    left, right = carriers_of(low, 3, generator)
    torch.testing.assert_close(left.mT @ left, torch.eye(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(right @ right.mT, torch.eye(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(left @ (left.mT @ low @ right.mT) @ right, low, atol=1e-3, rtol=1e-4)
    left, right = random_carriers(torch.Size([30, 50]), 3, generator)
    assert (left.shape, right.shape) == ((30, 3), (3, 50))
    model = network()
    first, second = rgp(model), rgp(model)
    for estimator, seed in ((first, 1), (second, 2)):
        estimator.begin_step(model)
        estimator.add(trace_gradients(model, losses, *batch(4, seed)))
    for name, (left, right) in first._carriers.items():
        assert torch.equal(left, second._carriers[name][0])
        assert torch.equal(right, second._carriers[name][1])


def test_after_the_warm_up_carriers_follow_the_historical_update() -> None:
    model = network()
    estimator = rgp(model, warm_up_steps=1)
    for _ in range(2):
        estimator.begin_step(model)
        estimator.privatise(noise())
    step = torch.outer(torch.randn(9), torch.randn(28))
    with torch.no_grad():
        model[5].weight += 1e-3 * step  # the weights themselves are far larger
    estimator.begin_step(model)
    left, right = estimator._carriers["5.weight"]
    torch.testing.assert_close(left @ (left.mT @ step @ right.mT) @ right, step, atol=1e-2, rtol=1e-2)


def test_a_layer_s_rank_is_bounded_by_a_share_of_its_smaller_side() -> None:
    model = network()  # weights of 6 x 27, 7 x 54, 9 x 28 and 3 x 9
    ranks = {}
    for rank, share in ((8, 0.5), (2, 0.5), (8, 0.01), (6, 1.0)):
        estimator = rgp(model, rank=rank, rank_fraction=share)
        estimator.begin_step(model)
        ranks[rank, share] = [len(right) for _, right in estimator._carriers.values()]
    assert ranks == {(8, 0.5): [3, 3, 4, 1], (2, 0.5): [2, 2, 2, 1], (8, 0.01): [1, 1, 1, 1], (6, 1.0): [6, 6]}


def test_more_power_iterations_find_carriers_of_more_of_a_matrix() -> None:
    matrix = torch.randn(60, 80, generator=torch.Generator().manual_seed(0)) * torch.linspace(2.0, 0.0, 80)
    kept = []
    for iterations in (1, 8):
        left, right = carriers_of(matrix, 4, torch.Generator().manual_seed(1), iterations)
        torch.testing.assert_close(left.mT @ left, torch.eye(4), atol=1e-5, rtol=0)
        kept.append(float((left.mT @ matrix @ right.mT).norm()))
    assert kept[1] > 1.05 * kept[0]


def test_empty_samples_and_misuse() -> None:
    model = network()
    estimator = rgp(model)
    estimator.begin_step(model)
    assert set(estimator.privatise(noise())) == set(shapes_of(model))
    with pytest.raises(InvalidParameter, match="begin_step"):
        rgp(model).add(trace_gradients(model, losses, *batch(2)))
    with pytest.raises(InvalidParameter, match="frozen"):
        rgp(model).freeze(torch.ones(estimator.coordinates, dtype=torch.bool))
    with pytest.raises(InvalidParameter, match="rank"):
        rgp(model, rank=0)
    with pytest.raises(InvalidParameter, match="rank_fraction"):
        rgp(model, rank_fraction=0.0)
    with pytest.raises(InvalidParameter, match="iterations"):
        rgp(model, iterations=0)


# --- a small transformer, whose linear layers see several positions of each record ---


def transformer() -> nn.Module:
    torch.manual_seed(5)
    return Tokens()


def sequences(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences of four tokens; the class is how many of them are below three, in steps of two."""
    tokens = torch.randint(1, 7, (n, 4), generator=torch.Generator().manual_seed(n))
    return tokens, ((tokens < 3).sum(dim=1) + 1) // 2


@pytest.mark.parametrize(
    ("make", "carried"),
    [
        (transformer, {"query.weight", "key.weight", "value.weight", "head.weight"}),
        (TiedTokens, {"embed.weight", "first.weight", "head.weight"}),
    ],
)
def test_every_weight_has_one_pair_of_carriers_tied_or_not(make: Callable[[], nn.Module], carried: set[str]) -> None:
    torch.manual_seed(5)
    model = make()
    assert assert_projected(model, rgp(model, clip=50.0), *sequences(6)) == carried


@pytest.mark.parametrize("network", [transformer, TiedTokens], ids=["transformer", "tied"])
@pytest.mark.parametrize("random", [False, True])
def test_one_sequence_more_moves_the_sum_by_at_most_the_clip(random: bool, network: Callable[[], nn.Module]) -> None:
    model, (tokens, targets) = network(), sequences(5)
    both = []
    for kept in (slice(None), slice(-1)):
        estimator = rgp(model, clip=1e-3, random=random)
        estimator.begin_step(model)
        estimator.add(trace_gradients(model, losses, tokens[kept], targets[kept]))
        both.append(torch.cat([value.flatten() for value in estimator.discard().values()]))
    moved = float((both[0] - both[1]).double().norm()) / estimator.bound
    assert 0.995 < moved <= 1
