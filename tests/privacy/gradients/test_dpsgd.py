"""DP-SGD's estimate: clipped by record, attained by a worst case, noisy as priced, unbiased without clipping."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from privacy.errors import InvalidParameter
from privacy.gradients import integers as release_module
from privacy.gradients.dpsgd import DpSgd
from privacy.gradients.estimator import shapes_of
from privacy.gradients.integers import noisy_sum
from privacy.gradients.per_sample import trace_gradients
from privacy.mechanisms.noise import SecureNoise
from privacy.mechanisms.sampling import poisson_sample
from tests.privacy.gradients.test_per_sample import losses


def noise(label: str = "step") -> SecureNoise:
    return SecureNoise.derive(b"a fixed secret for these tests", label)


def estimator(model: nn.Module, **changes: float) -> DpSgd:
    options = {"clip": 0.5, "noise_multiplier": 1e-6, "expected_batch": 1.0} | changes
    return DpSgd(shapes_of(model), **options)


def released(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, parts: int = 1, **changes: float
) -> torch.Tensor:
    """The (d,) release of a step over these records."""
    taken = estimator(model, **changes)
    for x, y in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
        if len(x):
            taken.add(trace_gradients(model, losses, x, y))
    return torch.cat([value.flatten() for value in taken.privatise(noise("step")).values()])


def test_one_record_more_moves_the_sum_by_at_most_the_clip_and_a_long_gradient_attains_it() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(3 * 16, 4))
    inputs, targets = torch.randn(9, 1, 6, 6), torch.randint(0, 4, (9,))
    quiet = {"noise_multiplier": 1e-6}
    for clip, attained in ((0.05, True), (1e4, False)):
        with_it = released(model, inputs, targets, clip=clip, **quiet)
        without = released(model, inputs[:-1], targets[:-1], clip=clip, **quiet)
        moved = float((with_it - without).norm())
        assert moved <= clip * (1 + 1e-5)  # the noise of this test, and float32
        assert (moved >= clip * 0.99) is attained


def test_micro_batches_change_nothing_and_a_far_clip_gives_the_plain_gradient() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    inputs, targets = torch.randn(8, 5), torch.randint(0, 3, (8,))
    losses(model(inputs), targets).sum().backward()
    plain = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    for parts in (1, 2, 8):
        found = released(model, inputs, targets, parts, clip=5, noise_multiplier=1e-9)
        torch.testing.assert_close(found, plain, atol=5e-4, rtol=1e-3)
    halved = released(model, inputs, targets, clip=5, noise_multiplier=1e-9, expected_batch=2.0)
    torch.testing.assert_close(halved, plain / 2, atol=5e-4, rtol=1e-3)


def test_an_empty_sample_releases_noise_alone() -> None:
    model = nn.Linear(3, 400)
    empty = released(model, torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), noise_multiplier=2.0)
    assert 0.9 < float(empty.std()) < 1.1


def test_the_second_step_starts_from_nothing() -> None:
    model = nn.Linear(3, 2)
    taken = estimator(model)
    taken.add(trace_gradients(model, losses, torch.ones(2, 3), torch.zeros(2, dtype=torch.long)))
    first = taken.privatise(noise("one"))
    second = taken.privatise(noise("two"))
    assert float(first["weight"].norm()) > 0.1
    assert float(second["weight"].norm()) < 1e-4


@pytest.mark.parametrize("wrong", [1.0, 1.05, 0.95])
def test_the_noise_is_gaussian_with_the_priced_deviation(wrong: float) -> None:
    """The negative controls are five percent too narrow or too wide: the same test refuses them."""
    found = noisy_sum(torch.full((500, 200), 3000), bound=500.0, noise_multiplier=1.7, noise=noise("distribution"))
    centred = (found - 3000).numpy().ravel()
    p_value = stats.kstest(centred, stats.norm(scale=500 * 1.7 * wrong).cdf).pvalue
    assert bool(p_value > 1e-6) is (wrong == 1.0)


def test_released_values_lie_on_the_public_grid() -> None:
    taken = DpSgd({"a": torch.Size([1000])}, clip=0.3, noise_multiplier=2.0**18, expected_batch=1.0)
    assert taken.bound == 2.0**26  # so much noise leaves a coarser grid
    steps = taken.privatise(noise("grid"))["a"].double() / (0.3 / taken.bound)
    fraction = steps / 2.0**20  # of float32's digits above the grid
    assert float((steps - steps.round()).abs().max()) < 1e-7 * float(steps.abs().max())
    assert 0.9 < float(fraction.std()) / 2.0**24 < 1.1


def test_only_integers_are_released() -> None:
    with pytest.raises(InvalidParameter, match="integers"):
        noisy_sum(torch.tensor([0.5]), bound=1.0, noise_multiplier=1.0, noise=noise("x"))


def test_poisson_sampling_is_independent_coins_with_the_stated_chance() -> None:
    n, probability, rounds = 400, 0.03, 2000
    stream = noise("poisson")
    drawn = np.zeros((rounds, n), dtype=bool)
    for row in drawn:
        row[poisson_sample(n, probability, stream)] = True
    sizes = drawn.sum(axis=1)
    expected_sd = math.sqrt(n * probability * (1 - probability))
    assert abs(sizes.mean() - n * probability) < 6 * expected_sd / math.sqrt(rounds)
    assert 0.85 < sizes.std() / expected_sd < 1.15  # shuffled batches of one size would have 0
    assert (sizes == 0).any() or n * probability > 8
    each = drawn.mean(axis=0)
    assert np.abs(each - probability).max() < 6 * math.sqrt(probability * (1 - probability) / rounds)
    together = (drawn[:, ::2] & drawn[:, 1::2]).mean()
    assert together == pytest.approx(probability**2, rel=0.15)
    assert poisson_sample(5, 1.0, stream).tolist() == [0, 1, 2, 3, 4]
    assert poisson_sample(0, 0.5, stream).tolist() == []
    for bad in (0.0, 1.5, math.nan):
        with pytest.raises(InvalidParameter):
            poisson_sample(5, bad, stream)


def test_no_noise_comes_from_torchs_own_generator() -> None:
    """The only draws that are not secret name the public generator that they come from."""
    folder = Path(release_module.__file__).parent
    for path in [*folder.glob("*.py"), folder.parent / "mechanisms" / "sampling.py"]:
        for line in path.read_text().splitlines():
            draws = any(word in line for word in ("torch.rand", "np.random", "torch.normal", "normal_("))
            assert not draws or "generator=generator" in line, (path, line)
