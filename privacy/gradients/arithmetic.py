"""Arithmetic in which a record's gradient does not depend on the other records of its batch.

The assumption: in passes of one shape, a network computes each row from that row alone, identically in every place of
the batch. `privacy.gradients.places` tests this before the first step of a training and during the training. Then one
more unit at most moves other units to another place, and their contributions stay the same to the last bit. Other
shapes may use other kernels, so all passes have one shape, with empty places filled. On a CPU, matrix products may
compute a row differently if it is not aligned to 64 bytes, so `aligned_linear` and `aligned_products` align all rows.
Element-wise functions may treat a remainder of fewer than 32 numbers differently, so passes have a multiple of 32
places, or a power of two.

On a GPU, TensorFloat-32 is off, operations are deterministic where torch has deterministic kernels, and no kernel is
chosen by timing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_ALIGNED = 16  # float32 numbers: 64 bytes


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Compute in full float32 and in a fixed order within the block; restore the settings afterwards."""
    backends: Any = torch.backends
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # otherwise cuBLAS has no fixed order
    precisions = (
        *(backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn),
        *(backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn),
    )
    settings = [
        *((owner, "fp32_precision", "ieee") for owner in precisions),
        (backends.cudnn, "benchmark", False),
        (backends.cudnn, "deterministic", True),
        (torch.utils.deterministic, "fill_uninitialized_memory", False),
    ]
    before = [getattr(owner, name) for owner, name, _ in settings]
    strict = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        for owner, name, value in settings:
            setattr(owner, name, value)
        torch.use_deterministic_algorithms(True, warn_only=True)
        yield
    finally:
        torch.use_deterministic_algorithms(strict[0], warn_only=strict[1])
        for (owner, name, _), value in zip(settings, before, strict=True):
            setattr(owner, name, value)


def aligned_linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return rows (..., d) times the transposed weight (p, d), plus a bias. All rows are computed the same way."""
    found = functional.linear(padded(rows), aligned_rows(weight))[..., : len(weight)]
    return found if bias is None else found + bias


def aligned_products(left: Tensor, right: Tensor) -> Tensor:
    """Return n products (n, p, d) of left (n, p, t) and transposed right (n, d, t), all computed the same way."""
    if left.shape[2] == 1:
        return left * right.mT  # faster on a CPU
    return padded(left) @ padded(right).mT


def aligned_rows(matrix: Tensor) -> Tensor:
    """Pad both sides of a matrix (p, d) with zeros to multiples of 16, so that later products do not copy it."""
    more = -len(matrix) % _ALIGNED
    return functional.pad(padded(matrix), (0, 0, 0, more)) if more else padded(matrix)


def padded(rows: Tensor) -> Tensor:
    """Pad the last side of rows (..., d) with zeros to a multiple of 16."""
    more = -rows.shape[-1] % _ALIGNED
    return functional.pad(rows, (0, more)) if more else rows.contiguous()


def is_aligned(layer: nn.Module) -> bool:
    """Return whether a layer needs no padding to compute all rows the same way."""
    return not isinstance(layer, nn.Linear) or layer.in_features % _ALIGNED == layer.out_features % _ALIGNED == 0
