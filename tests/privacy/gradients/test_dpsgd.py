"""DP-SGD's estimate: noisy as priced, and the plain gradient where nothing is clipped."""

import pytest
import torch
from scipy import stats
from torch import nn

from privacy.errors import InvalidParameter
from privacy.gradients.dpsgd import DpSgd
from privacy.gradients.integers import noisy_sum
from privacy.gradients.per_sample import trace_gradients
from tests.privacy.gradients.cases import losses, make, noise, released


def step(model, inputs, targets, parts=1, **changes):
    """Return the (d,) release of a step over these records."""
    taken = make("dpsgd", model, **changes)
    for x, y in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
        taken.add(trace_gradients(model, losses, x, y))
    return released(taken)


def test_micro_batches_change_nothing_and_a_far_clip_gives_the_plain_gradient() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    inputs, targets = torch.randn(8, 5), torch.randint(0, 3, (8,))
    losses(model(inputs), targets).sum().backward()
    plain = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    for parts in (1, 2, 8):
        found = step(model, inputs, targets, parts, clip=5, noise_multiplier=1e-9)
        torch.testing.assert_close(found, plain, atol=5e-4, rtol=1e-3)
    halved = step(model, inputs, targets, clip=5, noise_multiplier=1e-9, expected_batch=2.0)
    torch.testing.assert_close(halved, plain / 2, atol=5e-4, rtol=1e-3)


def test_the_second_step_starts_from_nothing() -> None:
    model = nn.Linear(3, 2)
    taken = make("dpsgd", model)
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
