"""Bound one row's contribution to a sum in L2 norm, with rounding on the safe side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from privacy.errors import InvalidParameter, PrivacyError

_BLOCK_ROWS = 512  # Rows per block, so that they fit into the CPU's cache.
NORM_MIN = 1e-150  # Its square is still a normal double.
INTEGER_MAX = 1 << 20  # Keeps the exact sum of squares of 2^22 coordinates within int64.


def clip_integer_rows(rows: npt.NDArray[Any], norm_max: float) -> npt.NDArray[np.int64]:
    """Scale down integer rows whose L2 norm exceeds norm_max, rounding every coordinate towards zero.

    Args:
        rows: (n, d) integers of magnitude at most 2^20, such as pixels. Private.
        norm_max: the bound C, finite and at least 1e-150. Public.

    Returns:
        (n, d) int64, each row of norm at most C.

    Privacy:
        Adding or removing one row changes the integer sum by at most C in L2 norm. Every row is checked exactly.

    Raises:
        InvalidParameter: norm_max or rows are out of range.
        PrivacyError: a row exceeds the bound (a fault in this file).
    """
    if not (math.isfinite(norm_max) and norm_max >= NORM_MIN):
        raise InvalidParameter("norm_max", norm_max, f"the norm bound must be finite and at least {NORM_MIN}")
    _check_integers(rows)
    clipped = np.empty(rows.shape, dtype=np.int64)
    shrink = 1 - (rows.shape[1] + 16) * 2.0**-52  # more than the rounding of the sum, root, quotients and product
    for start in range(0, len(rows), _BLOCK_ROWS):
        values = rows[start : start + _BLOCK_ROWS].astype(np.float64)  # (block, d)
        largest = np.abs(values).max(axis=1, keepdims=True, initial=0.0)  # (block, 1)
        safe = np.where(largest > 0, largest, 1.0)  # (block, 1)
        unit = values / safe  # (block, d) in [-1, 1]: neither overflows nor vanishes when squared
        norms = np.maximum(np.sqrt(np.square(unit).sum(axis=1, keepdims=True)), 1.0)  # (block, 1) in [1, sqrt(d)]
        with np.errstate(over="ignore"):
            short = norms * safe <= norm_max * shrink  # (block, 1)
        block = np.trunc(np.where(short, values, unit * (norm_max / norms * shrink))).astype(np.int64)
        if int(np.square(block).sum(axis=1).max()) > Fraction(norm_max) ** 2:
            raise PrivacyError("a clipped row exceeds its bound")
        clipped[start : start + _BLOCK_ROWS] = block
    return clipped


def clip_integer_parts(
    rows: npt.NDArray[Any], norm_max: float, parts: Sequence[npt.NDArray[np.int64]]
) -> npt.NDArray[np.int64]:
    """Scale down integer rows so that the outer products of a row's parts with themselves have a bounded joint norm.

    Args:
        rows: (n, d) integers of magnitude at most 2^20. Private.
        norm_max: the bound C, a whole number of at most 2^20. Public.
        parts: disjoint sets of coordinates. Public. Coordinates in no part become 0.

    Returns:
        (n, d) int64. The squared norms s_1, s_2, ... of a row's parts obey s_1^2 + s_2^2 + ... <= C^4. A row with two
        parts of equal norm may have a joint norm of 2^(1/4) C.

    Raises:
        InvalidParameter: norm_max or rows are out of range.
        PrivacyError: a row exceeds the bound (a fault in this file).
    """
    if not (float(norm_max).is_integer() and 1 <= norm_max <= INTEGER_MAX):
        raise InvalidParameter("norm_max", norm_max, f"the bound must be a whole number from 1 to {INTEGER_MAX}")
    _check_integers(rows)
    clipped = np.zeros(rows.shape, dtype=np.int64)
    for start in range(0, len(rows), _BLOCK_ROWS):
        values = rows[start : start + _BLOCK_ROWS].astype(np.int64)
        # Sums of squares are exact, and the rest is rounded by IEEE 754, so no other row changes a bit of the result.
        squares = [np.square(values[:, part]).sum(axis=1).astype(np.float64) for part in parts]
        long = np.sqrt(np.sqrt(sum(square * square for square in squares)))  # (block,)
        shrink = 1 - 2.0**-40  # more than the rounding above
        factor = np.minimum(1.0, norm_max * shrink / np.maximum(long, 1.0))
        for part in parts:
            clipped[start : start + _BLOCK_ROWS, part] = np.trunc(values[:, part] * factor[:, None]).astype(np.int64)
        block = clipped[start : start + _BLOCK_ROWS]
        exact = [np.square(block[:, part]).sum(axis=1).tolist() for part in parts]
        if any(sum(square * square for square in of_row) > int(norm_max) ** 4 for of_row in zip(*exact, strict=True)):
            raise PrivacyError("a clipped row exceeds its bound")
    return clipped


def _check_integers(rows: npt.NDArray[Any]) -> None:
    if not np.issubdtype(rows.dtype, np.integer):
        raise InvalidParameter("rows", str(rows.dtype), "rows must have an integer type")
    if rows.size and max(int(rows.max()), -int(rows.min())) > INTEGER_MAX:
        raise InvalidParameter("rows", "(hidden)", f"magnitudes must be at most {INTEGER_MAX}")
