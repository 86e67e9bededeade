"""Faults of a machine, planted: what stands in a later place of a pass becomes up to a hundred-thousandth larger."""

from typing import Any

import torch
from torch import Tensor, nn

from privacy.gradients.arithmetic import is_aligned


def by_place(values: Tensor) -> Tensor:
    """From place to place a hundred-thousandth more, at most; a pass of one place is as it should be."""
    return (1 + 1e-5 * torch.arange(len(values)) / len(values)).reshape(-1, *[1] * (values.dim() - 1))


def forward_fault(layer: nn.Module) -> None:
    if isinstance(layer, nn.Linear) and not is_aligned(layer):  # computed otherwise in a private step: its input, then
        layer.register_forward_pre_hook(lambda _, given: (given[0] * by_place(given[0]),))
    else:
        layer.register_forward_hook(lambda _, __, output: output * by_place(output))


def backward_fault(layer: nn.Module) -> None:
    def watch(_layer: nn.Module, _given: Any, output: Tensor) -> None:
        if not output.requires_grad:
            output.requires_grad_(True)
        output.register_hook(lambda gradient: gradient * by_place(gradient))

    layer.register_forward_hook(watch)
