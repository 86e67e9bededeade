"""Gradients taken apart by record agree with torch's own vmap over single records."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from privacy.errors import InvalidParameter, PrivacyError
from privacy.gradients.integers import Outer, squares
from privacy.gradients.per_sample import check_model, trace_gradients, trainable
from tests.privacy.gradients.cases import TiedTokens, Tokens, losses


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 6, 3, stride=2, bias=False, groups=2, dilation=2),
        nn.GroupNorm(3, 6, affine=False),
        nn.Conv2d(6, 4, 1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16, 5),
        nn.ReLU(),
        nn.Linear(5, 3),
    )


def on_images() -> nn.Module:
    """Its first convolution sees few numbers at once, which has a rule of its own; strides leave a border over."""
    return nn.Sequential(
        nn.Conv2d(2, 6, (3, 2), stride=(2, 3), padding=(1, 0)),
        nn.GroupNorm(2, 6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 5, 3, padding=1),
        nn.Flatten(),
        nn.Linear(60, 3),
    )


MODELS = {
    "tied": (TiedTokens, lambda n: torch.randint(0, 7, (n, 4))),
    "convolutional": (convolutional, lambda n: torch.randn(n, 2, 8, 8)),
    "on images": (on_images, lambda n: torch.randn(n, 2, 8, 8)),
    "tokens": (Tokens, lambda n: torch.randint(0, 7, (n, 4))),
    "wide": (lambda: nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3)), lambda n: torch.randn(n, 40)),
    "one token": (
        lambda: nn.Sequential(nn.Linear(9, 9), nn.Flatten(), nn.Linear(18, 3)),
        lambda n: torch.randn(n, 2, 9),
    ),
}


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("kind", MODELS)
def test_shares_and_outer_products_agree_with_single_records(kind: str, repeats: int) -> None:
    torch.manual_seed(0)
    build, draw = MODELS[kind]
    model, n = build().double(), 5
    inputs, targets = draw(n * repeats), torch.randint(0, 3, (n * repeats,))
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    parameters = {name: value.detach() for name, value in trainable(model).items()}

    def one(values: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return losses(functional_call(model, values, (x,)), y).mean()

    x, y = inputs.reshape(n, repeats, *inputs.shape[1:]), targets.reshape(n, repeats)
    if kind in ("convolutional", "on images"):
        model[2] = nn.ReLU()  # vmap cannot write in place
    expected = vmap(grad(one), in_dims=(None, 0, 0))(parameters, x, y)
    if kind in ("convolutional", "on images"):
        model[2] = nn.ReLU(inplace=True)

    traces = trace_gradients(model, losses, inputs, targets, repeats=repeats)
    shares, parts = traces.shares(), traces.parts()
    assert set(shares) == set(parts) == set(expected)
    for name, share in expected.items():
        torch.testing.assert_close(shares[name], share)
        part = parts[name]
        written = torch.einsum("np,nd->npd", part.left, part.right) if isinstance(part, Outer) else part
        torch.testing.assert_close(written, share)
        torch.testing.assert_close(squares(part), share.flatten(1).square().sum(dim=1))
    assert any(isinstance(part, Outer) for part in parts.values()) is (repeats == 1)


def classes(n: int) -> torch.Tensor:
    return torch.zeros(n, dtype=torch.long)


def test_parameters_are_as_they_were_and_hold_no_gradient_and_shares_no_graph_of_the_pass() -> None:
    model = convolutional()
    model[8].bias.requires_grad_(False)
    traces = trace_gradients(model, losses, torch.randn(4, 2, 8, 8), classes(4))
    for layer in traces.layers:
        assert layer.moments is not None or not (isinstance(layer.layer, nn.GroupNorm) and layer.layer.affine)
    assert not any(share.requires_grad for share in traces.shares().values())
    assert "8.bias" not in traces.shares()
    assert not model[8].bias.requires_grad
    assert model[8].weight.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(layer._forward_hooks for layer in model.modules())


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), "GroupNorm"),
        (nn.LSTM(3, 3), "LSTM"),
        (nn.Sequential(nn.ReLU()), "no trainable"),
    ],
)
def test_networks_that_mix_records_or_have_no_rule_are_refused(model: nn.Module, says: str) -> None:
    with pytest.raises(InvalidParameter, match=says):
        check_model(model)


def test_layers_may_share_a_parameter_and_may_not_run_twice() -> None:
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    check_model(tied)
    layer = nn.Linear(3, 3)
    with pytest.raises(PrivacyError, match="twice"):
        trace_gradients(nn.Sequential(layer, layer), losses, torch.randn(2, 3), classes(2))


def test_an_input_that_is_overwritten_in_place_is_noticed() -> None:
    class Overwrites(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x) * 1
            y = self.second(x)
            x.add_(1)
            return y + x

    with pytest.raises(PrivacyError, match="in place"):
        trace_gradients(Overwrites(), losses, torch.randn(2, 3), classes(2))


def test_losses_must_come_by_row_and_rows_in_whole_records() -> None:
    model, inputs, targets = nn.Linear(3, 3), torch.randn(4, 3), classes(4)
    with pytest.raises(InvalidParameter, match="needs one loss"):
        trace_gradients(model, lambda o, t: losses(o, t).mean(), inputs, targets)
    with pytest.raises(InvalidParameter, match="whole records"):
        trace_gradients(model, losses, inputs, targets, repeats=3)


def test_parts_of_a_trace_hold_their_own_records() -> None:
    torch.manual_seed(0)
    model = on_images()
    traces = trace_gradients(model, losses, torch.randn(14, 2, 8, 8), classes(14), repeats=2)
    parts = list(traces.split(3))  # seven records: no other parts are of one size
    assert [part.records for part in parts] == [1] * 7
    for name, share in traces.shares().items():
        torch.testing.assert_close(torch.cat([part.shares()[name] for part in parts]), share)
