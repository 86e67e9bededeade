"""Arithmetic in which a record's gradient does not depend on the records beside it.

Assumed of the machine, and tried before the first step of a training and again on its way (`privacy.gradients.places`):
in passes of one shape, the operations of a network compute a row's numbers from that row alone, in the same way in
every place of the batch. Then a unit more moves the others at most to another place, and what they contribute stays the
same to the last bit. Passes of another shape may be computed by other kernels, so there are none: empty places are
filled up. On a CPU matrix products may begin otherwise in rows that do not begin at a multiple of 64 bytes, so
`aligned_linear` and `aligned_products` make them begin there; and element-wise functions may treat a rest of less than
32 numbers otherwise, so passes have a multiple of 32 places, or a power of two.

The numbers of a GPU are those of IEEE arithmetic in float32 and float64: TensorFloat-32 is off, operations have the
same order in every run as far as torch has such kernels, and none is chosen by the time it takes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_ALIGNED = 16  # float32 numbers: 64 bytes
_IEEE = "ieee"


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Compute in full float32 and in a fixed order within the block; settings are put back afterwards."""
    backends: Any = torch.backends
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS has no fixed order
    precisions = (
        *(backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn),
        *(backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn),
    )
    with ExitStack() as stack:
        for owner in precisions:
            stack.enter_context(_set(owner, "fp32_precision", _IEEE))
        stack.enter_context(_set(backends.cudnn, "benchmark", False))
        stack.enter_context(_set(backends.cudnn, "deterministic", True))
        stack.enter_context(_set(torch.utils.deterministic, "fill_uninitialized_memory", False))
        before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@contextmanager
def _set(owner: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def aligned_linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return rows (..., d) times the transposed weight (p, d), plus a bias, computed alike in every row."""
    found = functional.linear(_padded(rows), aligned_rows(weight))[..., : len(weight)]
    return found if bias is None else found + bias


def aligned_products(left: Tensor, right: Tensor) -> Tensor:
    """Return left (n, p, t) times the transposed right (n, d, t): (n, p, d), computed alike for each of the n."""
    if left.shape[2] == 1:
        return left * right.mT  # quicker, on a CPU
    return _padded(left) @ _padded(right).mT


def aligned_rows(matrix: Tensor) -> Tensor:
    """Lengthen both sides of a matrix (p, d) with zeros, so that it is not copied by each of many products."""
    more = -len(matrix) % _ALIGNED
    return functional.pad(_padded(matrix), (0, 0, 0, more)) if more else _padded(matrix)


def aligned_combinations(rows: Tensor, matrix: Tensor, columns: int) -> Tensor:
    """Return rows (n, p) times a matrix of `aligned_rows`, made of one with so many columns: (n, columns)."""
    return (_padded(rows) @ matrix)[:, :columns]


def _padded(rows: Tensor) -> Tensor:
    """Lengthen rows (..., d) with zeros so that the next one begins at an aligned place."""
    more = -rows.shape[-1] % _ALIGNED
    return functional.pad(rows, (0, more)) if more else rows.contiguous()


def is_aligned(layer: nn.Module) -> bool:
    """Tell whether a layer computes all rows alike as it is, as far as it is known."""
    return not isinstance(layer, nn.Linear) or layer.in_features % _ALIGNED == layer.out_features % _ALIGNED == 0
