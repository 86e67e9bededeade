"""The exact discrete Gaussian N_Z(0, stddev^2): P(z) proportional to exp(-z^2 / (2 stddev^2)) on the integers.

Rejection from a step function. Floating point never makes a decision that rounding could change:

1. The integers are cut into cells of `width` (a power of two near stddev/32, or 1) and two tails. An alias
   table with integer weights draws a cell with probability exactly weight/2^64. Then z is drawn uniformly in the cell.
2. z is accepted when u < exp(-z^2 / (2 stddev^2)) * scale * width / weight, for u uniform in [0, 1). The weights
   dominate, so the right side never exceeds one. z was drawn with a probability proportional to weight/width. So it is
   drawn and accepted with one proportional to scale * exp(-z^2 / (2 stddev^2)), exactly and whatever the weights are.
3. The comparison uses the first 52 bits of u and a double with a relative error of 2^-43. Its answer counts only if a
   slack of 2^-40 does not change it. Otherwise (once in 2^39 draws) more bits of u are drawn, and integer bounds
   enclose the exponential until the answer is certain.

The result has exactly this distribution, without approximation; stddev is the exact rational value of its float.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from privacy.errors import InvalidParameter

STDDEV_MAX = 2.0**45  # Keeps every proposed integer exact in a double.
REACH = 13  # Cells cover |z| <= 13 stddev, beyond which lies 2^-125 of the mass; the tails take the rest.
PREFIX_BITS = 52  # Bits of u that are compared in floating point.
TAIL_WIDTH_LOG2 = 6  # Length of a tail's blocks, in cells: at least one stddev.
SLACK = 2.0**-40  # Relative slack of that comparison. Error: x^2/2 <= 98 at 2^-51 relative, exp and factors at 2^-49.

_SLOT_BITS = 11  # 2 * (13 * 64 + 1) cells and 2 tails fit into 2048 slots.
_SLOTS = 1 << _SLOT_BITS
_COIN_BITS = 64 - _SLOT_BITS
_UNDERFLOW = 1e-300  # Absolute slack: exp of a large negative number may be flushed to zero.

Words = Callable[[int], npt.NDArray[np.uint64]]


@dataclasses.dataclass(frozen=True)
class StepTable:
    """The proposal distribution for one stddev: cells -cells..cells-1 of `width`, then the left and the right tail.

    Attributes:
        stddev: standard deviation parameter.
        width_log2: binary logarithm of the cells' width.
        cells: number of cells on either side of zero.
        scale: the common factor `scale` of step 2, an exact rational.
        weights: integer weights of cells and tails in that order; they sum to 2^64.
        threshold: (2048,) uint64, the alias table's coin thresholds, at most 2^53.
        alias: (2048,) int64, the entry taken when the coin is not below the threshold.
        ratio: (2 * cells,) float64, scale * width / weight.
    """

    stddev: float
    width_log2: int
    cells: int
    scale: Fraction
    weights: tuple[int, ...]
    threshold: npt.NDArray[np.uint64]
    alias: npt.NDArray[np.int64]
    ratio: npt.NDArray[np.float64]


@functools.lru_cache(maxsize=32)
def step_table(stddev: float, reach: int = REACH) -> StepTable:
    """Build the proposal distribution for `stddev`.

    Args:
        stddev: standard deviation parameter.
        reach: 1 to 13; the cells cover |z| <= reach * stddev. A smaller reach sends more draws through the tails'
            exact arithmetic.

    Raises:
        InvalidParameter: stddev is not a positive finite number of at most 2^45.
    """
    if not (math.isfinite(stddev) and 0 < stddev <= STDDEV_MAX):
        raise InvalidParameter("stddev", stddev, "the discrete Gaussian needs 0 < stddev <= 2^45")
    width_log2 = max(0, math.frexp(stddev / 32)[1] - 1)  # width <= stddev/32 < 2 * width, or width = 1
    width = 1 << width_log2
    cells = math.ceil(reach * stddev / width) + 1
    # The point of each cell that is nearest to zero; a negative cell is the mirror of [1, width] + i * width.
    positive = np.arange(cells, dtype=np.float64) * width
    nearest = np.concatenate([positive[::-1] + 1, positive])
    with np.errstate(over="ignore", under="ignore"):
        height = np.exp(-0.5 * np.square(nearest / stddev)) * width  # (2 * cells,)
        # A tail draws block b with probability 2^-(b+1). Its first block needs twice the height, and each further
        # block at most as much, because 2 exp(-start * block / stddev^2) <= 2 exp(-reach) < 1.
        tail = 2.0 * (width << TAIL_WIDTH_LOG2) * math.exp(-0.5 * min(cells * width / stddev, 37.0) ** 2)
    scale = 2.0**64 * (1 - 2.0**-20) / (float(height.sum()) + 2 * tail)
    # Dominate: 2^-40 covers the rounding of `height`, +1 the rounding of the product and all underflow.
    weights = [math.ceil(scale * h * (1 + SLACK)) + 1 for h in [*height.tolist(), tail, tail]]
    weights[cells] += (1 << 64) - sum(weights)  # the rest goes to the cell at zero; it costs 2^-20 of speed
    threshold, alias = _alias_table(weights)
    exact_scale = Fraction(scale)
    ratio = np.array([float(exact_scale * width / weight) for weight in weights[:-2]])
    return StepTable(stddev, width_log2, cells, exact_scale, tuple(weights), threshold, alias, ratio)


def _alias_table(weights: list[int]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Arrange integer weights that sum to 2^64 in 2048 slots of 2^53, without remainder (Walker 1977, Vose 1991)."""
    capacity = 1 << _COIN_BITS
    left = weights + [0] * (_SLOTS - len(weights))
    threshold, alias = [capacity] * _SLOTS, list(range(_SLOTS))
    small = [i for i, weight in enumerate(left) if weight < capacity]
    large = [i for i, weight in enumerate(left) if weight >= capacity]
    while small:
        slot, donor = small.pop(), large[-1]
        threshold[slot], alias[slot] = left[slot], donor
        left[donor] -= capacity - left[slot]
        if left[donor] < capacity:
            small.append(large.pop())
    return np.array(threshold, dtype=np.uint64), np.array(alias, dtype=np.int64)


def draw(n: int, table: StepTable, words: Words, slack: float = SLACK) -> npt.NDArray[np.int64]:
    """Draw n independent integers from N_Z(0, table.stddev^2).

    Args:
        n: number of integers.
        table: from `step_table`.
        words: returns a requested number of fresh uniform 64-bit words.
        slack: relative slack of the floating-point comparison. A larger one sends more draws through exact arithmetic.

    Returns:
        (n,) int64.
    """
    drawn = np.empty(n, dtype=np.int64)
    done = 0
    while done < n:
        accepted = _round(min(n - done + ((n - done) >> 5) + 8, 1 << 14), table, words, slack)
        accepted = accepted[: n - done]
        drawn[done : done + len(accepted)] = accepted
        done += len(accepted)
    return drawn


def _round(n: int, table: StepTable, words: Words, slack: float) -> npt.NDArray[np.int64]:
    wide = table.width_log2 > 0
    random = words((2 + wide) * n).reshape(2 + wide, n)
    slot = (random[0] & np.uint64(_SLOTS - 1)).view(np.int64)  # (n,)
    coin = random[0] >> np.uint64(_SLOT_BITS)  # (n,) 53 bits
    entry = np.where(coin < table.threshold[slot], slot, table.alias[slot])  # (n,)
    tails = np.flatnonzero(entry >= 2 * table.cells)
    z = (entry - table.cells) << table.width_log2  # (n,) left end of the cell
    if wide:
        z += (random[2] >> np.uint64(64 - table.width_log2)).view(np.int64)  # (n,) uniform in the cell
    prefix = (random[1] >> np.uint64(64 - PREFIX_BITS)).view(np.int64)  # (n,)
    u = prefix * 2.0**-PREFIX_BITS  # (n,) exact
    x = z / table.stddev  # (n,)
    with np.errstate(over="ignore", under="ignore"):
        np.multiply(x, x, out=x)
        x *= -0.5
        p = np.exp(x, out=x)
        p *= table.ratio.take(entry, mode="clip")  # a tail's value is overwritten below
    accept = u + 2.0**-PREFIX_BITS <= p * (1 - slack)  # (n,) certainly below
    unsure = (u < p * (1 + slack) + _UNDERFLOW) & ~accept  # (n,) neither certainly below nor above
    unsure[tails] = False
    for i in np.flatnonzero(unsure):
        factor = (table.scale * (1 << table.width_log2)) / table.weights[entry[i]]
        accept[i] = exact_below(int(prefix[i]), PREFIX_BITS, int(z[i]), table.stddev, factor, words)
    for i in tails:
        z[i], accept[i] = _tail(int(entry[i]), table, words)
    accepted: npt.NDArray[np.int64] = z[accept]
    return accepted


def _tail(entry: int, table: StepTable, words: Words) -> tuple[int, bool]:
    """Propose an integer from a tail: from block b with probability 2^-(b+1), uniformly within the block.

    Return the integer, and True if it is accepted.
    """
    block, start, width_log2 = 0, table.cells << table.width_log2, table.width_log2 + TAIL_WIDTH_LOG2
    while not int(words(1)[0]) >> 63:
        block += 1
    offset = int(words(1)[0]) >> (64 - width_log2)
    magnitude = start + (block << width_log2) + offset
    left = entry == 2 * table.cells
    z = -magnitude - 1 if left else magnitude  # the cells cover -start <= z < start
    factor = table.scale * (1 << width_log2) * (2 << block) / table.weights[entry]
    return z, exact_below(0, 0, z, table.stddev, factor, words)


def exact_below(prefix: int, bits: int, z: int, stddev: float, factor: Fraction, words: Words) -> bool:
    """Return whether u < factor * exp(-z^2 / (2 stddev^2)) for a uniform u that begins with `bits` known bits.

    Draw further bits of u until the bounds on the exponential decide. This ends with probability one.
    """
    exponent = Fraction(z) ** 2 / (2 * Fraction(stddev) ** 2)
    while True:
        low, high = exp_bounds(exponent, bits + 8)
        low, high = math.floor(low * factor), math.ceil(high * factor)
        if (prefix + 1) << 8 <= low:
            return True
        if prefix << 8 >= high:
            return False
        prefix, bits = (prefix << 64) | int(words(1)[0]), bits + 64


def exp_bounds(x: Fraction, bits: int) -> tuple[int, int]:
    """Return integers low <= exp(-x) * 2^bits <= high for a rational x >= 0, a few units apart at most.

    Halve x until it is at most 1/2, and sum the Taylor series in fixed point with guard bits. Square the sum once for
    each halving. Round the lower bound down and the upper bound up.
    """
    if x > bits + 1:  # exp(-x) < 2^-bits
        return 0, 1
    halvings = max(0, math.ceil(x * 2).bit_length())
    guard = bits + halvings + 16
    one = 1 << guard
    small = x / (1 << halvings)  # in [0, 1/2]
    small_low = math.floor(small * one)
    low = high = term_low = term_high = one
    k = 0
    while term_high > 1:
        k += 1
        # Bounds of small^k / k!; the alternating sum takes the opposite end for odd k.
        term_low = (term_low * small_low >> guard) // k
        term_high = -(-_shift_up(term_high * (small_low + 1), guard) // k)
        low, high = (low - term_high, high - term_low) if k % 2 else (low + term_low, high + term_high)
    low, high = low - 2, high + 2  # the remainder of the series, which is below one unit
    for _ in range(halvings):
        low, high = low * low >> guard, _shift_up(high * high, guard)
    shift = guard - bits
    return low >> shift, _shift_up(high, shift)


def _shift_up(value: int, bits: int) -> int:
    return -(-value >> bits)
