"""Per-record gradients of one layer's parameters, from its inputs and the gradients of its outputs.

Autograd returns only the sum over records. The inputs of a layer ("activations") and the gradients of the summed loss
with respect to its outputs ("backprops") give each record's share. For a linear layer with one position a record it is
an outer product. Its norm is the product of its factors' norms (Goodfellow 2015, arXiv:1510.01799).

Shapes: `n` records, each with `repeats` adjacent rows of the batch (noise multiplicity; Dockhorn et al. 2022); `t`
positions of a row (tokens, pixels).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import nn
from torch.nn import functional

from privacy.errors import InvalidParameter
from privacy.gradients.arithmetic import aligned_products
from privacy.gradients.integers import Outer, Part

_FEW_INPUTS = 32  # numbers that a convolution's kernel sees at once
_FEW_POSITIONS = 64  # rows of a record times output pixels

T = TypeVar("T")
Shares = dict[str, torch.Tensor]  # parameter name -> (n, *shape of the parameter)


@dataclass
class LayerTrace:
    """One layer's part in one pass of one batch. PRIVATE.

    Attributes:
        name: of the layer in its network.
        layer: the module.
        activations: inputs, (n * repeats, ...).
        backprops: gradient of the summed loss with respect to the outputs, (n * repeats, ...).
        repeats: rows of one record.
        moments: means and inverse deviations of a GroupNorm's rows, (n * repeats, groups) each, if the pass kept them.
        tied: the network's names of parameters that an earlier layer has too.
    """

    name: str
    layer: nn.Module
    activations: torch.Tensor
    backprops: torch.Tensor
    repeats: int
    moments: tuple[torch.Tensor, torch.Tensor] | None = None
    tied: Mapping[str, str] = field(default_factory=dict)
    _kept: Shares | None = None

    @property
    def records(self) -> int:
        """Return the number of records n."""
        return len(self.activations) // self.repeats

    def part(self, start: int, stop: int) -> LayerTrace:
        """Return the trace of the records from `start` to `stop`, without a copy."""
        rows = slice(start * self.repeats, stop * self.repeats)
        moments = None if self.moments is None else (self.moments[0][rows], self.moments[1][rows])
        kept = None if self._kept is None else {key: share[start:stop] for key, share in self._kept.items()}
        return LayerTrace(
            self.name, self.layer, self.activations[rows], self.backprops[rows], self.repeats, moments, self.tied, kept
        )

    def full(self, key: str) -> str:
        """Return the network's name of one of the layer's parameters."""
        return self.tied.get(key, f"{self.name}.{key}".lstrip("."))

    def shares(self) -> Shares:
        """Return each record's gradient of the layer's trainable parameters, by full name."""
        if self._kept is None:
            found = RULES[type(self.layer)](self)
            self._kept = {self.full(key): share for key, share in found.items()}
        return self._kept

    def parts(self) -> dict[str, Part]:
        """Return `shares`, with the weight's as an outer product if each record has one position."""
        if not (isinstance(self.layer, nn.Linear) and self.repeats == 1 and self.activations.dim() == 2):
            return dict(self.shares())
        makers: dict[str, Callable[[], Part]] = {
            "weight": lambda: Outer(self.backprops, self.activations),
            "bias": lambda: self.backprops,
        }
        return {self.full(key): part for key, part in _only_trainable(self.layer, makers).items()}


def _only_trainable(layer: nn.Module, makers: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    parameters = dict(layer.named_parameters(recurse=False))
    return {key: make() for key, make in makers.items() if key in parameters and parameters[key].requires_grad}


def _linear(trace: LayerTrace) -> Shares:
    a, g = (
        values.reshape(trace.records, -1, values.shape[-1]) for values in (trace.activations, trace.backprops)
    )  # (n, t, d) and (n, t, p)
    makers = {"weight": lambda: aligned_products(g.mT, a.mT), "bias": lambda: g.sum(dim=1)}
    return _only_trainable(trace.layer, makers)


def convolution_weight_shares(
    layer: nn.Conv2d, activations: torch.Tensor, backprops: torch.Tensor, repeats: int
) -> torch.Tensor:
    """Return each record's weight gradient of a convolution with the geometry of `layer`.

    One grouped convolution with the records as groups and a record's rows as batch, so that memory holds one gradient a
    record, not a row. A product with patches is faster on a CPU if few numbers enter (the first layer, on images) or a
    record has few output positions.

    Args:
        layer: gives kernel size, stride, padding, dilation and groups.
        activations: (n * repeats, channels, h, w).
        backprops: (n * repeats, outputs, h', w'); `outputs` need not be the layer's.
        repeats: rows of one record.

    Returns:
        (n, outputs, channels / groups, *kernel size).
    """
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise InvalidParameter("padding", layer.padding_mode, "convolutions by record take numeric zero padding")
    n, channels, outputs = len(activations) // repeats, activations.shape[1], backprops.shape[1]
    shape = (outputs, channels // layer.groups, *layer.kernel_size)
    few = math.prod(shape[1:]) <= _FEW_INPUTS or repeats * backprops[0, 0].numel() <= _FEW_POSITIONS
    if few and layer.groups == 1 and set(layer.dilation) == {1}:
        a, g = (
            values.reshape(n, repeats, *values.shape[1:]).transpose(1, 2).flatten(2)
            for values in (_patches(layer, activations), backprops.flatten(2))
        )  # (n, numbers of a patch, repeats * t) and (n, outputs, repeats * t)
        # Quicker, on a CPU, with more columns than rows.
        found = aligned_products(g, a) if outputs < a.shape[1] else aligned_products(a, g).mT
        return found.reshape(n, *shape)

    def beside(values: torch.Tensor) -> torch.Tensor:
        """(n * repeats, c, h, w) -> (repeats, n * c, h, w)."""
        return values.reshape(n, repeats, *values.shape[1:]).transpose(0, 1).flatten(1, 2)

    _, found, _ = torch.ops.aten.convolution_backward(
        beside(backprops),
        beside(activations),
        activations.new_empty(n * outputs, *shape[1:]),  # a weight's values do not enter its gradient
        None,
        layer.stride,
        layer.padding,
        layer.dilation,
        False,
        [0, 0],
        n * layer.groups,
        [False, True, False],
    )
    shares: torch.Tensor = found.reshape(n, *shape)
    return shares


def _patches(layer: nn.Conv2d, activations: torch.Tensor) -> torch.Tensor:
    """Return the patches at each of t positions, without dilation: (rows, channels * kernel, t)."""
    assert not isinstance(layer.padding, str)  # refused by the caller
    (across_h, across_w), (step_h, step_w), (pad_h, pad_w) = layer.kernel_size, layer.stride, layer.padding
    padded = functional.pad(activations, (pad_w, pad_w, pad_h, pad_h))
    seen = padded.unfold(2, across_h, step_h).unfold(3, across_w, step_w)  # (rows, channels, h', w', *kernel)
    return seen.permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)


def _convolution(trace: LayerTrace) -> Shares:
    layer, n = trace.layer, trace.records
    assert isinstance(layer, nn.Conv2d)

    def weight() -> torch.Tensor:
        return convolution_weight_shares(layer, trace.activations, trace.backprops, trace.repeats)

    def bias() -> torch.Tensor:
        return trace.backprops.reshape(n, trace.repeats, layer.out_channels, -1).sum(dim=(1, 3))

    return _only_trainable(layer, {"weight": weight, "bias": bias})


def _group_norm(trace: LayerTrace) -> Shares:
    # The channels of all rows, side by side as those of one image, have the rows' gradients.
    layer, n = trace.layer, trace.records
    assert isinstance(layer, nn.GroupNorm)
    rows, channels = len(trace.activations), layer.num_channels
    x, g = (values.reshape(rows, channels, -1) for values in (trace.activations, trace.backprops))
    positions = x.shape[2]
    mean, inverse = (
        trace.moments
        or torch.native_group_norm(x, None, None, rows, channels, positions, layer.num_groups, layer.eps)[1:]
    )  # (rows, groups)
    _, weight, bias = torch.ops.aten.native_group_norm_backward(
        g.reshape(1, rows * channels, positions),
        x.reshape(1, rows * channels, positions),
        mean.reshape(1, -1),
        inverse.reshape(1, -1),
        x.new_ones(rows * channels),  # not used, but torch 2.11 asks where it is
        1,
        rows * channels,
        positions,
        rows * layer.num_groups,
        [False, True, True],
    )  # (rows * channels,) each

    def by_record(values: torch.Tensor) -> torch.Tensor:
        return values.reshape(n, trace.repeats, channels).sum(dim=1)

    return _only_trainable(layer, {"weight": lambda: by_record(weight), "bias": lambda: by_record(bias)})


def _layer_norm(trace: LayerTrace) -> Shares:
    layer, n = trace.layer, trace.records
    assert isinstance(layer, nn.LayerNorm)

    def over_positions(values: torch.Tensor) -> torch.Tensor:
        return values.reshape(n, -1, *layer.normalized_shape).sum(dim=1)

    def weight() -> torch.Tensor:
        normalised = functional.layer_norm(trace.activations, layer.normalized_shape, eps=layer.eps)
        return over_positions(normalised * trace.backprops)

    return _only_trainable(layer, {"weight": weight, "bias": lambda: over_positions(trace.backprops)})


def _embedding(trace: LayerTrace) -> Shares:
    layer, n = trace.layer, trace.records
    assert isinstance(layer, nn.Embedding)

    def weight() -> torch.Tensor:
        index = trace.activations.reshape(n, -1)  # (n, t)
        g = trace.backprops.reshape(n, -1, layer.embedding_dim)  # (n, t, e)
        if layer.padding_idx is not None:
            g = g * (index != layer.padding_idx)[:, :, None]
        share = torch.zeros(n, layer.num_embeddings, layer.embedding_dim, device=g.device, dtype=g.dtype)
        return share.scatter_add_(1, index[:, :, None].expand_as(g), g)

    return _only_trainable(layer, {"weight": weight})


RULES: dict[type[nn.Module], Callable[[LayerTrace], Shares]] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.Embedding: _embedding,
}
