"""RGP: carriers from released weights, gradients of carriers by record, and the projection of Corollary 2.1.1."""

import pytest
import torch

from privacy.gradients.per_sample import trace_gradients
from privacy.gradients.rgp import carriers_of
from tests.privacy.gradients.cases import TiedTokens, Tokens, convolutional, images, losses, make, noise, sequences


@pytest.mark.parametrize(
    ("network", "records", "carried"),
    [
        (convolutional, images, {"0.weight", "3.weight", "5.weight", "7.weight"}),
        (Tokens, sequences, {"query.weight", "key.weight", "value.weight", "head.weight"}),
        (TiedTokens, sequences, {"embed.weight", "first.weight", "head.weight"}),
    ],
)
def test_the_update_is_the_projection_of_the_gradient_on_a_pair_of_carriers_of_each_weight(network, records, carried):
    """Corollary 2.1.1: an update is L L^T dW + dW R^T R - L L^T dW R^T R where there are carriers."""
    torch.manual_seed(5)
    model, (inputs, targets) = network(), records(6)
    estimator = make("rgp", model, clip=50.0)
    estimator.begin_step(model)
    carriers = dict(estimator._carriers)
    assert set(carriers) == carried
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


def test_noise_multiplicity_averages_rows_before_clipping() -> None:
    model, (inputs, targets) = convolutional(), images(4)
    estimator = make("rgp", model, clip=20.0)
    estimator.begin_step(model)
    twice = trace_gradients(model, losses, inputs.repeat_interleave(2, dim=0), targets.repeat_interleave(2), repeats=2)
    once = trace_gradients(model, losses, inputs, targets)
    torch.testing.assert_close(estimator.carrier_shares(twice), estimator.carrier_shares(once))


def test_carriers_are_orthonormal_and_span_the_matrix() -> None:
    generator = torch.Generator().manual_seed(0)
    low = torch.randn(30, 3, generator=generator) @ torch.randn(3, 50, generator=generator)
    left, right = carriers_of(low, 3, generator)
    torch.testing.assert_close(left.mT @ left, torch.eye(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(right @ right.mT, torch.eye(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(left @ (left.mT @ low @ right.mT) @ right, low, atol=1e-3, rtol=1e-4)


def test_after_the_warm_up_carriers_follow_the_historical_update() -> None:
    model = convolutional()
    estimator = make("rgp", model, warm_up_steps=1)
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
    model = convolutional()  # weights of 6 x 27, 7 x 54, 9 x 28 and 3 x 9
    ranks = {}
    for rank, share in ((8, 0.5), (2, 0.5), (8, 0.01), (6, 1.0)):
        estimator = make("rgp", model, rank=rank, rank_fraction=share)
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
