"""One backward pass that stores every layer's inputs and output gradients, to measure and clip per-record gradients.

Book-keeping (Bu et al. 2022, arXiv:2210.00038): the pass computes only gradients of layer outputs. Weight gradients are
computed once, after the clipping factor of every record is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from privacy.errors import InvalidParameter, PrivacyError
from privacy.gradients.arithmetic import aligned_linear, is_aligned
from privacy.gradients.integers import Part
from privacy.gradients.layers import RULES, LayerTrace, Shares

_FEW_NUMBERS = 2**21  # numbers of a layer's per-record gradients that may exist at once

Losses = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (outputs, targets) -> (rows,)


@dataclass
class Traces:
    """Inputs and output gradients of all layers in one pass over a batch of private records. PRIVATE.

    Attributes:
        layers: one trace for each layer with trainable parameters.
        records: number n of places for records in the batch.
        present: (n,) bool, places that contain a record; None: all. Empty places contribute nothing.
    """

    layers: list[LayerTrace]
    records: int
    present: torch.Tensor | None = None

    def parts(self) -> dict[str, Part]:
        """Return each record's gradient by parameter name, as outer products if these are smaller.

        A tied parameter's gradient is a sum over its layers. It is written out, because such a sum is no outer product.
        """
        tied = {name for layer in self.layers for name in layer.tied.values()}
        found: dict[str, Part] = {}
        written: Shares = {}
        for layer in self.layers:
            parts = layer.parts()
            found |= {key: part for key, part in parts.items() if key not in tied}
            add_shares(written, {key: layer.shares()[key] for key in parts if key in tied})
        return found | written

    def split(self, records: int) -> Iterator[Traces]:
        """Yield parts of at most `records` records, of equal size and without a copy; skip parts without a record.

        Gradients of small layers are computed for all records at once.
        """
        size = next(size for size in range(min(records, self.records), 0, -1) if self.records % size == 0)
        for layer in self.layers:
            own = (p.numel() for p in layer.layer.parameters(recurse=False) if p.requires_grad)
            if size < self.records and self.records * sum(own) <= _FEW_NUMBERS:
                layer.shares()
        for start in range(0, self.records, size):
            stop = start + size
            present = None if self.present is None else self.present[start:stop]
            if present is None or bool(present.any()):
                yield Traces([layer.part(start, stop) for layer in self.layers], size, present)

    def zeros(self, size: int) -> torch.Tensor:
        """Return zeros (n, size): the gradient of a parameter that the loss does not use."""
        return self.layers[0].backprops.new_zeros(self.records, size)

    def shares(self) -> Shares:
        """Return each record's gradient, by parameter name: (n, *shape of the parameter)."""
        found: Shares = {}
        for layer in self.layers:
            add_shares(found, layer.shares())
        return found


def add_shares(found: Shares, shares: Shares) -> None:
    """Add per-record gradients to `found`, which can already contain a parameter only if several layers share it."""
    for key, share in shares.items():
        found[key] = found[key] + share if key in found else share


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters by name, in the model's order."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def check_model(model: nn.Module) -> None:
    """Raise unless per-record gradients exist for every layer.

    Raises:
        InvalidParameter: a layer mixes records (batch normalisation), or has no rule.
    """
    found = False
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise InvalidParameter("model", name, "batch normalisation mixes records; use nn.GroupNorm")
        own = [parameter for parameter in layer.parameters(recurse=False) if parameter.requires_grad]
        if own and type(layer) not in RULES:
            known = "Linear, Conv2d, GroupNorm, LayerNorm and Embedding"
            raise InvalidParameter("model", f"{name}: {type(layer).__name__}", f"gradients by record exist for {known}")
        found = found or bool(own)
    if not found:
        raise InvalidParameter("model", type(model).__name__, "it has no trainable parameter")


def trace_gradients(
    model: nn.Module,
    losses: Losses,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    *,
    repeats: int = 1,
    present: torch.Tensor | None = None,
) -> Traces:
    """Run one forward and one backward pass and store every layer's trace.

    Args:
        model: checked by `check_model`.
        losses: computes the loss of every row, without reduction over rows.
        inputs: (n * repeats, ...) rows of private records; rows of one record are adjacent.
        targets: (n * repeats, ...).
        repeats: number of rows of each record; the record's loss is their mean loss.
        present: (n,) bool, places that contain a record; None: all.

    Raises:
        InvalidParameter: the losses do not have one number for each row.
        PrivacyError: a layer ran twice, or its input was overwritten in place.
    """
    if len(inputs) == 0 or len(inputs) % repeats:
        raise InvalidParameter("inputs", len(inputs), f"rows must form whole records, each of {repeats} rows")
    seen: dict[str, _Seen] = {}
    backprops: dict[str, torch.Tensor] = {}
    with torch.enable_grad(), _outputs_only(model, seen, backprops):
        loss = losses(model(inputs), targets)
        if loss.shape != (len(inputs),):
            raise InvalidParameter("losses", tuple(loss.shape), f"each of the {len(inputs)} rows needs one loss")
        (loss.sum() / repeats).backward()  # type: ignore[no-untyped-call]
    traces, names = [], {id(parameter): name for name, parameter in model.named_parameters()}  # the first tied name
    for name, (layer, activations, version, moments) in seen.items():
        if activations._version != version:
            raise PrivacyError(f"the input of layer {name} was overwritten in place")
        if name in backprops:  # a layer whose output the loss does not use has no gradient
            trace = LayerTrace(name, layer, activations, backprops[name], repeats, moments)
            own = {key: names[id(p)] for key, p in layer._parameters.items() if p is not None}
            trace.tied = {key: full for key, full in own.items() if full != trace.full(key)}
            traces.append(trace)
    return Traces(traces, len(inputs) // repeats, present)


class _Seen(NamedTuple):
    """A layer that ran, its input, the input's version, and a GroupNorm's means and inverse deviations."""

    layer: nn.Module
    activations: torch.Tensor
    version: int
    moments: tuple[torch.Tensor, torch.Tensor] | None


@contextmanager
def _outputs_only(model: nn.Module, seen: dict[str, _Seen], backprops: dict[str, torch.Tensor]) -> Iterator[None]:
    """Within the block, store layer inputs and output gradients, and compute no parameter gradients."""
    watched: dict[str, nn.Module] = {}
    parameters: list[nn.Parameter] = []
    for name, layer in model.named_modules():
        own = [p for p in layer._parameters.values() if p is not None and p.requires_grad]  # parameters() is slow
        if own:
            watched[name] = layer
            parameters += own

    def keep(name: str, gradient: torch.Tensor) -> None:
        backprops[name] = gradient.detach()

    def watch(name: str, layer: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        if name in seen:
            raise PrivacyError(f"layer {name} ran twice in one pass, so the gradients of its runs cannot be separated")
        activations = inputs[0].detach()
        node: Any = output.grad_fn if isinstance(layer, nn.GroupNorm) else None
        moments = None if node is None else (node._saved_result1.detach(), node._saved_result2.detach())
        seen[name] = _Seen(layer, activations, activations._version, moments)
        if isinstance(layer, nn.Linear) and not is_aligned(layer):
            output = aligned_linear(inputs[0], layer.weight, layer.bias)
        if not output.requires_grad:
            output.requires_grad_(True)
        output.register_hook(partial(keep, name))  # type: ignore[no-untyped-call]
        return output

    handles = [layer.register_forward_hook(partial(watch, name)) for name, layer in watched.items()]
    try:
        # The rules read which parameters are trainable, so the flags are restored before anything is measured.
        for parameter in parameters:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
        for handle in handles:
            handle.remove()
