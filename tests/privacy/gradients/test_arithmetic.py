"""A record's numbers come from that record alone, wherever in a pass it stands and whoever stands beside it."""

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import nn

from models.portable.dcgan import DcganConfig
from models.portable.edm import EdmConfig, EdmDenoiser, noisy_rows
from models.portable.edm import losses as denoising_losses
from models.portable.layers import with_planes
from models.private_classifier import ClassifierConfig, PrivateClassifier
from privacy.gradients.arithmetic import aligned_linear, aligned_products, exact_arithmetic
from privacy.gradients.dpsgd import DpSgd
from privacy.gradients.estimator import shapes_of
from privacy.gradients.per_sample import Losses, Traces, trace_gradients
from privacy.gradients.places import places_alike
from tests.privacy.gradients.cases import Tokens, losses
from workers.recipes import dpgan

Pass = tuple[nn.Module, Losses, torch.Tensor, torch.Tensor, int]  # network, losses, inputs, targets, repeats


def classifier(architecture: str, size: int = 28) -> Callable[[int], Pass]:
    def make(n: int) -> Pass:
        model = PrivateClassifier(ClassifierConfig(architecture, tuple("abcdefghij"), 1, size, size))
        with torch.no_grad():
            inputs = model.features(torch.rand(n, 1, size, size))
        return model.head, losses, inputs, torch.randint(0, 10, (n,)), 1

    return make


def discriminator(n: int) -> Pass:
    model = dpgan.Discriminator(DcganConfig(10, 1, 8, 8, 16, 8), 0)
    inputs = with_planes(torch.rand(n, 1, 8, 8) * 2 - 1, torch.randint(0, 10, (n,)))
    return model, dpgan.losses, inputs, torch.ones(n), 1


def denoiser(n: int) -> Pass:
    model = EdmDenoiser(EdmConfig(10, 1, 8, 8, 8, 1, 2, 0.0, 0.0), 0)
    with torch.no_grad():
        for parameter in model.parameters():  # some begin at zero
            parameter.add_(torch.randn_like(parameter) * 0.02)
    stream = torch.Generator().manual_seed(0)
    images, labels = torch.rand(2 * n, 1, 8, 8) * 2 - 1, torch.randint(0, 10, (2 * n,))
    return model, denoising_losses, *noisy_rows(images, labels, 10, 0.1, stream), 2


def tokens(n: int) -> Pass:
    return Tokens(), losses, torch.randint(0, 7, (n, 5)), torch.randint(0, 3, (n,)), 1


PASSES = {
    "cnn": classifier("cnn"),
    "cnn on small images": classifier("cnn", 8),
    "resnet20": classifier("resnet20", 8),
    "scatter_linear": classifier("scatter_linear"),
    "scatter_cnn": classifier("scatter_cnn"),
    "discriminator": discriminator,
    "denoiser": denoiser,
    "tokens": tokens,
}


def numbers(traces: Traces) -> dict[str, torch.Tensor]:
    found = dict(traces.shares())
    for layer in traces.layers:
        found[f"{layer.name} in"] = layer.activations.reshape(traces.records, -1)
        found[f"{layer.name} back"] = layer.backprops.reshape(traces.records, -1)
    return found


@pytest.mark.parametrize("size", [4, 16, 32, 64])
@pytest.mark.parametrize("kind", PASSES)
def test_to_the_last_bit_a_record_depends_neither_on_its_place_nor_on_the_others(kind: str, size: int) -> None:
    """The assumption of docs/explanation/mechanisms.md, on this machine, for every network of the recipes."""
    torch.manual_seed(size)
    model, losses, inputs, targets, repeats = PASSES[kind](size)
    others, other_targets = PASSES[kind](size)[2:4]

    def rows(records: torch.Tensor) -> torch.Tensor:
        return (records[:, None] * repeats + torch.arange(repeats)).flatten()

    before = numbers(trace_gradients(model, losses, inputs, targets, repeats=repeats))
    for _ in range(3):
        order, kept = torch.randperm(size), torch.rand(size) < 0.5
        x, y = inputs[rows(order)], targets[rows(order)]
        gone = rows(torch.nonzero(~kept)[:, 0])
        x[gone], y[gone] = others[gone], other_targets[gone]
        after = numbers(trace_gradients(model, losses, x, y, repeats=repeats))
        for name, value in before.items():
            assert torch.equal(value[order[kept]], after[name][kept]), name


def test_full_precision_and_a_fixed_order_within_the_block_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    backends = torch.backends
    owners = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul)

    def settings() -> list[object]:
        flags: list[object] = [owner.fp32_precision for owner in owners]
        flags += [backends.cudnn.benchmark, backends.cudnn.deterministic, torch.are_deterministic_algorithms_enabled()]
        return [*flags, torch.utils.deterministic.fill_uninitialized_memory]

    monkeypatch.setattr(backends.cudnn, "benchmark", True)
    before = settings()
    with exact_arithmetic():
        assert settings() == ["ieee"] * 4 + [False, True, True, False]
    with contextlib.suppress(RuntimeError), exact_arithmetic():
        raise RuntimeError
    assert settings() == before


def test_aligned_products_are_the_products() -> None:
    rows, weight, bias = torch.randn(4, 3, 13), torch.randn(5, 13), torch.randn(5)
    torch.testing.assert_close(aligned_linear(rows, weight, bias), nn.functional.linear(rows, weight, bias))
    torch.testing.assert_close(aligned_linear(rows, weight), nn.functional.linear(rows, weight))
    for positions in (1, 13):
        left, right = torch.randn(4, 3, positions), torch.randn(4, 7, positions)
        torch.testing.assert_close(aligned_products(left, right), left @ right.mT)


class Uneven(nn.Module):
    """A linear layer whose kernel treats places from `limit` on otherwise; without one it scales all by the longest."""

    def __init__(self, limit: int | None) -> None:
        super().__init__()
        self.layer, self.limit = nn.Linear(16, 16), limit

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(rows)
        if self.limit is None:
            return found * (1 + 2.0**-20 * found.detach().abs().max())
        return found * torch.where(torch.arange(len(rows))[:, None] >= self.limit, 1 + 2.0**-20, 1.0)


@pytest.mark.parametrize("largest", [0, 1, 30])
@pytest.mark.parametrize(("limit", "alike"), [(99, True), (31, False), (None, False)])
def test_a_trial_finds_places_that_are_not_alike(limit: int | None, alike: bool, largest: int) -> None:
    torch.manual_seed(0)
    model, inputs, targets = Uneven(limit), torch.randn(40, 16), torch.randn(40, 16)
    inputs[largest] *= 8
    estimator = DpSgd(shapes_of(model), clip=1e3, noise_multiplier=1.0, expected_batch=1.0)

    def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).square().sum(dim=1)

    def trace(records: torch.Tensor) -> Traces:
        return trace_gradients(model, squared, inputs[records], targets[records])

    assert places_alike(estimator, trace, 32, 40) is alike
    assert places_alike(estimator, trace, 1, 40)
    assert estimator.discard() == {}
