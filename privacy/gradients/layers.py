"""Per-record gradients of one layer's parameters, from its inputs and the gradients of its outputs.

Autograd returns only the sum over records. The inputs of a layer ("activations") and the gradients of the summed loss
with respect to its outputs ("backprops") give each record's share. With one position per record, a linear layer's share
is an outer product. The norm of this product is the product of its factors' norms (Goodfellow 2015, arXiv:1510.01799).

Shapes: `n` records, each with `repeats` adjacent rows of the batch (noise multiplicity; Dockhorn et al. 2022); `t`
positions of a row (tokens, pixels).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional

from privacy.errors import InvalidParameter
from privacy.gradients.arithmetic import aligned_products
from privacy.gradients.integers import Outer, Part

_FEW_INPUTS = 32  # input numbers per kernel position
_FEW_POSITIONS = 64  # rows of a record times output pixels

Shares = dict[str, torch.Tensor]  # parameter name -> (n, *shape of the parameter)


@dataclass
class LayerTrace:
    """Inputs and output gradients of one layer in one pass over a batch. PRIVATE.

    Attributes:
        activations: (n * repeats, ...) inputs.
        backprops: (n * repeats, ...) gradient of the summed loss with respect to the outputs.
        moments: (n * repeats, groups) means and inverse deviations of a GroupNorm's rows, if the pass kept them.
        tied: maps names in this layer to names in the network, for parameters that an earlier layer shares.
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
        """Return the name in the network of the parameter that the layer calls `key`."""
        return self.tied.get(key, f"{self.name}.{key}".lstrip("."))

    def shares(self) -> Shares:
        """Return each record's gradient of the layer's trainable parameters, by name in the network."""
        if self._kept is None:
            wanted = self._trainable()
            found = RULES[type(self.layer)](self, wanted)
            self._kept = {self.full(key): found[key] for key in wanted}
        return self._kept

    def parts(self) -> dict[str, Part]:
        """Return `shares`, with the weight's gradient as an outer product if each record has one position."""
        if not (isinstance(self.layer, nn.Linear) and self.repeats == 1 and self.activations.dim() == 2):
            return dict(self.shares())
        parts: dict[str, Part] = {"weight": Outer(self.backprops, self.activations), "bias": self.backprops}
        return {self.full(key): parts[key] for key in self._trainable()}

    def _trainable(self) -> list[str]:
        return [key for key, parameter in self.layer.named_parameters(recurse=False) if parameter.requires_grad]


def _linear(trace: LayerTrace, wanted: Collection[str]) -> Shares:
    a, g = (
        values.reshape(trace.records, -1, values.shape[-1]) for values in (trace.activations, trace.backprops)
    )  # (n, t, d) and (n, t, p)
    shares = Shares()
    if "weight" in wanted:
        shares["weight"] = aligned_products(g.mT, a.mT)
    if "bias" in wanted:
        shares["bias"] = g.sum(dim=1)
    return shares


def convolution_weight_shares(
    layer: nn.Conv2d, activations: torch.Tensor, backprops: torch.Tensor, repeats: int
) -> torch.Tensor:
    """Return each record's weight gradient of a convolution with the geometry of `layer`.

    Run one grouped convolution, whose groups are the records and whose batch is a record's rows. So memory contains one
    gradient per record, not per row. With few input numbers (the first layer) or few output positions per record, use a
    product with patches, which is faster on a CPU.

    Args:
        layer: defines kernel size, stride, padding, dilation and groups.
        activations: (n * repeats, channels, h, w).
        backprops: (n * repeats, outputs, h', w'); `outputs` need not be the layer's.

    Returns:
        (n, outputs, channels / groups, *kernel size).
    """
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise InvalidParameter("padding", layer.padding_mode, "per-record gradients need zero padding given in pixels")
    n, channels, outputs = len(activations) // repeats, activations.shape[1], backprops.shape[1]
    shape = (outputs, channels // layer.groups, *layer.kernel_size)
    few = math.prod(shape[1:]) <= _FEW_INPUTS or repeats * backprops[0, 0].numel() <= _FEW_POSITIONS
    if few and layer.groups == 1 and set(layer.dilation) == {1}:
        a, g = (
            values.reshape(n, repeats, *values.shape[1:]).transpose(1, 2).flatten(2)
            for values in (_patches(layer, activations), backprops.flatten(2))
        )  # (n, numbers of a patch, repeats * t) and (n, outputs, repeats * t)
        # Faster on a CPU with more columns than rows.
        found = aligned_products(g, a) if outputs < a.shape[1] else aligned_products(a, g).mT
        return found.reshape(n, *shape)
    a, g = (
        values.reshape(n, repeats, *values.shape[1:]).transpose(0, 1).flatten(1, 2)
        for values in (activations, backprops)
    )  # (repeats, n * c, h, w)
    _, found, _ = torch.ops.aten.convolution_backward(
        g,
        a,
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
    assert not isinstance(layer.padding, str)  # rejected by the caller
    (across_h, across_w), (step_h, step_w), (pad_h, pad_w) = layer.kernel_size, layer.stride, layer.padding
    padded = functional.pad(activations, (pad_w, pad_w, pad_h, pad_h))
    seen = padded.unfold(2, across_h, step_h).unfold(3, across_w, step_w)  # (rows, channels, h', w', *kernel)
    return seen.permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)


def _convolution(trace: LayerTrace, wanted: Collection[str]) -> Shares:
    layer, shares = trace.layer, Shares()
    assert isinstance(layer, nn.Conv2d)
    if "weight" in wanted:
        shares["weight"] = convolution_weight_shares(layer, trace.activations, trace.backprops, trace.repeats)
    if "bias" in wanted:
        rows = trace.backprops.reshape(trace.records, trace.repeats, layer.out_channels, -1)
        shares["bias"] = rows.sum(dim=(1, 3))
    return shares


def _group_norm(trace: LayerTrace, _wanted: Collection[str]) -> Shares:
    # Pass the channels of all rows as the channels of one image: the result has one gradient for each row.
    layer = trace.layer
    assert isinstance(layer, nn.GroupNorm)
    rows, channels = len(trace.activations), layer.num_channels
    x, g = (values.reshape(rows, channels, -1) for values in (trace.activations, trace.backprops))
    positions = x.shape[2]
    mean, inverse = (
        trace.moments
        or torch.native_group_norm(x, None, None, rows, channels, positions, layer.num_groups, layer.eps)[1:]
    )  # (rows, groups)
    _, *found = torch.ops.aten.native_group_norm_backward(
        g.reshape(1, rows * channels, positions),
        x.reshape(1, rows * channels, positions),
        mean.reshape(1, -1),
        inverse.reshape(1, -1),
        x.new_ones(rows * channels),  # not used, but torch 2.11 checks its device
        1,
        rows * channels,
        positions,
        rows * layer.num_groups,
        [False, True, True],
    )  # (rows * channels,) each
    shares = (values.reshape(trace.records, trace.repeats, channels).sum(dim=1) for values in found)
    return dict(zip(("weight", "bias"), shares, strict=True))


def _layer_norm(trace: LayerTrace, wanted: Collection[str]) -> Shares:
    layer = trace.layer
    assert isinstance(layer, nn.LayerNorm)
    by_position = {"bias": trace.backprops}
    if "weight" in wanted:
        normalised = functional.layer_norm(trace.activations, layer.normalized_shape, eps=layer.eps)
        by_position["weight"] = normalised * trace.backprops
    return {key: by_position[key].reshape(trace.records, -1, *layer.normalized_shape).sum(dim=1) for key in wanted}


def _embedding(trace: LayerTrace, _wanted: Collection[str]) -> Shares:
    layer, n = trace.layer, trace.records
    assert isinstance(layer, nn.Embedding)
    index = trace.activations.reshape(n, -1)  # (n, t)
    g = trace.backprops.reshape(n, -1, layer.embedding_dim)  # (n, t, e)
    if layer.padding_idx is not None:
        g = g * (index != layer.padding_idx)[:, :, None]
    share = torch.zeros(n, layer.num_embeddings, layer.embedding_dim, device=g.device, dtype=g.dtype)
    return {"weight": share.scatter_add_(1, index[:, :, None].expand_as(g), g)}


RULES: dict[type[nn.Module], Callable[[LayerTrace, Collection[str]], Shares]] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.Embedding: _embedding,
}
