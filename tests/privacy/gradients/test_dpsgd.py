"""DP-SGD's estimate, noisy as priced; RGP's carriers, from released weights, and the projection of Corollary 2.1.1."""

import pytest
import torch
from scipy import stats
from torch import nn

from privacy.errors import InvalidParameter
from privacy.gradients.dpsgd import DpSgd
from privacy.gradients.integers import noisy_sum
from privacy.gradients.per_sample import trace_gradients
from privacy.gradients.rgp import carriers_of
from tests.privacy.gradients import cases


def step(model, inputs, targets, parts=1, **changes):
    taken = cases.make("dpsgd", model, **changes)
    for x, y in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
        taken.add(trace_gradients(model, cases.losses, x, y))
    return cases.released(taken)


def test_micro_batches_change_nothing_and_a_far_clip_gives_the_plain_gradient() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    inputs, targets = torch.randn(8, 5), torch.randint(0, 3, (8,))
    cases.losses(model(inputs), targets).sum().backward()
    plain = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    for parts in (1, 2, 8):
        found = step(model, inputs, targets, parts, clip=5, noise_multiplier=1e-9)
        torch.testing.assert_close(found, plain, atol=5e-4, rtol=1e-3)
    halved = step(model, inputs, targets, clip=5, noise_multiplier=1e-9, expected_batch=2.0)
    torch.testing.assert_close(halved, plain / 2, atol=5e-4, rtol=1e-3)


def test_the_second_step_starts_from_nothing() -> None:
    model = nn.Linear(3, 2)
    taken = cases.make("dpsgd", model)
    taken.add(trace_gradients(model, cases.losses, torch.ones(2, 3), torch.zeros(2, dtype=torch.long)))
    first = taken.privatise(cases.noise("one"))
    second = taken.privatise(cases.noise("two"))
    assert float(first["weight"].norm()) > 0.1
    assert float(second["weight"].norm()) < 1e-4


@pytest.mark.parametrize("wrong", [1.0, 1.05, 0.95])
def test_the_noise_is_gaussian_with_the_priced_deviation(wrong: float) -> None:
    """The negative controls are five percent too narrow or too wide: the same test refuses them."""
    found = noisy_sum(
        torch.full((500, 200), 3000), bound=500.0, noise_multiplier=1.7, noise=cases.noise("distribution")
    )
    centred = (found - 3000).numpy().ravel()
    assert bool(stats.kstest(centred, stats.norm(scale=500 * 1.7 * wrong).cdf).pvalue > 1e-6) is (wrong == 1.0)


def test_released_values_lie_on_the_public_grid_and_only_integers_are_released() -> None:
    taken = DpSgd({"a": torch.Size([1000])}, clip=0.3, noise_multiplier=2.0**18, expected_batch=1.0)
    assert taken.bound == 2.0**26  # so much noise leaves a coarser grid
    steps = taken.privatise(cases.noise("grid"))["a"].double() / (0.3 / taken.bound)
    fraction = steps / 2.0**20  # of float32's digits above the grid
    assert float((steps - steps.round()).abs().max()) < 1e-7 * float(steps.abs().max())
    assert 0.9 < float(fraction.std()) / 2.0**24 < 1.1
    with pytest.raises(InvalidParameter, match="integers"):
        noisy_sum(torch.tensor([0.5]), bound=1.0, noise_multiplier=1.0, noise=cases.noise("x"))


# --- RGP --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "records", "carried"),
    [
        (cases.convolutional, cases.images, {"0.weight", "3.weight", "5.weight", "7.weight"}),
        (cases.Tokens, cases.sequences, {"query.weight", "key.weight", "value.weight", "head.weight"}),
        (cases.TiedTokens, cases.sequences, {"embed.weight", "first.weight", "head.weight"}),
    ],
)
def test_the_update_is_the_projection_of_the_gradient_on_a_pair_of_carriers_of_each_weight(network, records, carried):
    """Corollary 2.1.1: an update is L L^T dW + dW R^T R - L L^T dW R^T R where there are carriers."""
    torch.manual_seed(5)
    model, (inputs, targets) = network(), records(6)
    estimator = cases.make("rgp", model, clip=50.0)
    estimator.begin_step(model)
    carriers = dict(estimator._carriers)
    assert set(carriers) == carried
    traces = trace_gradients(model, cases.losses, inputs, targets)
    estimator.add(traces)
    found = estimator.privatise(cases.noise())
    for name, share in traces.shares().items():
        truth = share.sum(dim=0)
        if name in carriers:
            left, right = carriers[name]
            dw = truth.flatten(1)
            on_left, on_right = left @ (left.mT @ dw), dw @ right.mT @ right
            truth = (on_left + on_right - left @ (left.mT @ dw) @ right.mT @ right).reshape(truth.shape)
        torch.testing.assert_close(found[name].to(truth), truth, atol=2e-3, rtol=2e-3)


def test_noise_multiplicity_averages_rows_before_clipping() -> None:
    model, (inputs, targets) = cases.convolutional(), cases.images(4)
    estimator = cases.make("rgp", model, clip=20.0)
    estimator.begin_step(model)
    twice = trace_gradients(
        model, cases.losses, inputs.repeat_interleave(2, dim=0), targets.repeat_interleave(2), repeats=2
    )
    once = trace_gradients(model, cases.losses, inputs, targets)
    torch.testing.assert_close(estimator.carrier_shares(twice), estimator.carrier_shares(once))


def test_carriers_are_orthonormal_and_span_the_matrix() -> None:
    generator = torch.Generator().manual_seed(0)
    low = torch.randn(30, 3, generator=generator) @ torch.randn(3, 50, generator=generator)
    left, right = carriers_of(low, 3, generator)
    torch.testing.assert_close(left.mT @ left, torch.eye(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(right @ right.mT, torch.eye(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(left @ (left.mT @ low @ right.mT) @ right, low, atol=1e-3, rtol=1e-4)


def test_after_the_warm_up_carriers_follow_the_historical_update() -> None:
    model = cases.convolutional()
    estimator = cases.make("rgp", model, warm_up_steps=1)
    for _ in range(2):
        estimator.begin_step(model)
        estimator.privatise(cases.noise())
    step = torch.outer(torch.randn(9), torch.randn(28))
    with torch.no_grad():
        model[5].weight += 1e-3 * step  # the weights themselves are far larger
    estimator.begin_step(model)
    left, right = estimator._carriers["5.weight"]
    torch.testing.assert_close(left @ (left.mT @ step @ right.mT) @ right, step, atol=1e-2, rtol=1e-2)


def test_a_layer_s_rank_is_bounded_by_a_share_of_its_smaller_side() -> None:
    model = cases.convolutional()  # weights of 6 x 27, 7 x 54, 9 x 28 and 3 x 9
    ranks = {}
    for rank, share in ((8, 0.5), (2, 0.5), (8, 0.01), (6, 1.0)):
        estimator = cases.make("rgp", model, rank=rank, rank_fraction=share)
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
