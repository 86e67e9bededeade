"""Each unit's clipped contribution as a vector of integers, and exact sums of them.

A unit's gradient is scaled and rounded to steps of a public grid; the sensitivity is `bound` = 2^bits steps. Outer
products are never written out: if both factors are integers, so is their product.

Privacy:
    A unit's contribution is an integer vector z. `exact_sums` measures z itself and replaces it by zero unless

        ||z||^2 (1 + error) <= bound^2,

    where `error` bounds the rounding of that measurement (proof at `squares`). Sums of such vectors are exact: all
    partial sums are integers below 2^53 in float64, and int64 beyond. So one more unit changes a sum by exactly its own
    z, of norm at most `bound`. This holds for any number of units, coordinates and micro-batches, added in any order. A
    unit's z depends on that unit and on public values alone (`privacy.gradients.arithmetic`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch

from privacy.accounting.events import SMOOTHING_VARIANCE, positive_finite
from privacy.errors import InvalidParameter
from privacy.mechanisms.discrete_gaussian import STDDEV_MAX
from privacy.mechanisms.noise import SecureNoise

GRID_BITS_MAX = 30
UNITS_MAX = 2**31  # units of a sample, and as many public summands; times 2^30 they fit into int64
ROOM = 2.0**-12  # margin that scaling leaves below the bound, so that the measured norm is within the bound
_ERROR = 2.0**-13  # relative error of a measured squared norm
_EXACT = 2.0**53  # smaller integers are exact in float64
_BLOCK = 512  # numbers whose squares are added in float32
_TOGETHER = 2**16  # integers added together, so that they fit into a cache

Sums = dict[str, torch.Tensor]  # by name, int64


class Outer(NamedTuple):
    """Outer products (n, p, d) of `left` (n, p) and `right` (n, d), stored as these two factors."""

    left: torch.Tensor
    right: torch.Tensor


Part = torch.Tensor | Outer  # contributions of n units: (n, *shape), or factors of it
Block = tuple[Mapping[str, Part], torch.Tensor | None]  # by name, and the places (n,) that contain a unit; None: all


def grid_bits(noise_multiplier: float) -> int:
    """Return log2 of sensitivity / grid step. The step is the smallest for which noise can still be drawn.

    Raises:
        InvalidParameter: the noise is too wide for any useful grid.
    """
    bits = min(GRID_BITS_MAX, math.floor(math.log2(STDDEV_MAX / noise_multiplier)) - 1)
    if bits < GRID_BITS_MAX // 2:
        raise InvalidParameter("noise_multiplier", noise_multiplier, "with so much noise, no grid is fine enough")
    return bits


def whole(rows: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Multiply rows (n, d) by factors (n,) and round to integers, in place."""
    return rows.mul_(factors.to(rows.dtype)[:, None]).round_()


def whole_factors(outer: Outer, factors: torch.Tensor, measured: tuple[torch.Tensor, torch.Tensor]) -> Outer:
    """Multiply each outer product by about its factor: scale both of its vectors, and truncate them to integers.

    Both vectors get the same norm, so each has half of the grid's digits. Rounding so few digits could lengthen a
    vector of many equal numbers beyond the margin; truncation lengthens none.

    Args:
        outer: n pairs of vectors, (n, p) and (n, d).
        factors: (n,) one for each outer product.
        measured: `squares` of both vectors, (n,) each.
    """
    tiny = torch.finfo(torch.float32).tiny  # zero stays zero
    left, right = (square.sqrt().clamp(min=tiny) for square in measured)  # (n,)
    halves = (outer.left, (factors * right / left).sqrt()), (outer.right, (factors * left / right).sqrt())
    scaled = (values * factor.to(values.dtype)[:, None] for values, factor in halves)
    # Much faster than trunc; a number beyond 32 bits becomes an arbitrary integer.
    return Outer(*(values.to(torch.int32).double() for values in scaled))


def squares(part: Part) -> torch.Tensor:
    """Return the squared L2 norms (n,) float64 of n units' parts, within a relative 2^-13 on any machine.

    Proof: adding b squares in float32, in any order, has a relative error of at most (b + 2) 2^-24. The root and square
    add 3 * 2^-24. In total, the error is below 2^-14 for blocks of 512, and below 2^-13 for a product of two results.
    Blocks are added in float64. Integers are zero or at least one, so no square underflows; overflow gives infinity.
    """
    if isinstance(part, Outer):
        return squares(part.left) * squares(part.right)
    rows = part.flatten(1)
    end = rows.shape[1] // _BLOCK * _BLOCK
    found: torch.Tensor = torch.linalg.vector_norm(rows[:, end:], dim=1).double().square()
    if end:
        blocks = rows[:, :end].view(len(rows), -1, _BLOCK)
        found = found + torch.linalg.vector_norm(blocks, dim=2).double().square().sum(dim=1)
    return found


def parted(flat: torch.Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, torch.Tensor]:
    """Split a vector into parts of these shapes, by name."""
    values = torch.split(flat, [math.prod(shape) for shape in shapes.values()])
    return {name: value.reshape(shape) for (name, shape), value in zip(shapes.items(), values, strict=True)}


def exact_sums(blocks: Iterable[Block], bound: float) -> Sums:
    """Add up the units' contributions, exactly.

    Args:
        blocks: contributions of n units by name, together one vector per unit; and a mask (n,) bool of the places that
            contain a unit, or None if all do. PRIVATE.
        bound: largest norm of a unit's integers. A longer or non-finite unit contributes zero.

    Returns:
        Sums int64 by name, each with the shape of one unit's contribution.

    Raises:
        InvalidParameter: too many units at once for an exact sum.
    """
    units, sums = 0, Sums()
    for parts, present in blocks:
        lengths = torch.stack([squares(part) for part in parts.values()]).sum(dim=0)  # (n,)
        units += len(lengths)
        if units * bound > _EXACT:
            raise InvalidParameter("records", units, f"at most {int(_EXACT / bound)} can be added exactly at once")
        kept = lengths * (1 + _ERROR) <= bound * bound  # False where not a number
        if present is not None:
            kept &= present
        dropped = None if bool(kept.all()) else ~kept
        for name, part in parts.items():
            sums[name] = _added(sums.get(name), part, dropped)
    return {name: total.to(torch.int64) for name, total in sums.items()}


def _added(total: torch.Tensor | None, part: Part, dropped: torch.Tensor | None) -> torch.Tensor:
    """Add all units except those in `dropped` (n,) to a float64 total, in place."""
    part = part if dropped is None else without(part, dropped)
    if isinstance(part, Outer):
        return part.left.T @ part.right if total is None else total.addmm_(part.left.T, part.right)
    rows = part.flatten(1)
    total = rows.new_zeros(part.shape[1:], dtype=torch.float64) if total is None else total
    ones = rows.new_ones(len(rows), dtype=torch.float64)
    together = max(1, _TOGETHER // max(1, len(rows)))
    for some, where in zip(torch.split(rows, together, dim=1), torch.split(total.view(-1), together), strict=True):
        where.addmv_(some.double().T, ones)
    return total


def without(part: Part, dropped: torch.Tensor) -> Part:
    """Return a part with zeros for the units in `dropped` (n,) bool."""
    if isinstance(part, Outer):
        return Outer(*(factor.masked_fill(dropped[:, None], 0) for factor in part))
    return part.masked_fill(dropped.reshape(-1, *[1] * (part.dim() - 1)), 0)


def noisy_sum(private_sum: torch.Tensor, *, bound: float, noise_multiplier: float, noise: SecureNoise) -> torch.Tensor:
    """Add discrete Gaussian noise to a sum; its standard deviation is at least `noise_multiplier * bound`.

    Sums and noise are integers: floating-point noise has gaps that reveal low bits of the sum (Mironov 2012).

    Privacy:
        Neighbours' sums are integer vectors at most `bound` apart in L2 norm. The noise is a
        discrete Gaussian whose parameter squared is at least (sigma * bound)^2 plus the smoothing variance of
        `privacy.accounting.events`. So its event is that of sigma (`GaussianEvent.of_discrete_noise`).

    Args:
        private_sum: any shape, int64; changes by at most `bound` in L2 norm when one unit is added.
        bound: above 0. Public.
        noise_multiplier: sigma > 0 of the event. Public.
        noise: a generator for this step alone.

    Returns:
        Integers of the same shape, on the same device. Released.

    Raises:
        InvalidParameter: a parameter is out of range, or the sum is not int64. Nothing is released.
    """
    if private_sum.dtype != torch.int64:
        raise InvalidParameter("private_sum", "(hidden)", "it must be int64, because only integers are released")
    stddev = positive_finite("noise_multiplier", noise_multiplier) * positive_finite("bound", bound)
    stddev = math.nextafter(math.sqrt(stddev * stddev + SMOOTHING_VARIANCE) * (1 + 2.0**-50), math.inf)
    drawn = noise.discrete_gaussian(tuple(private_sum.shape), stddev)
    return private_sum + torch.from_numpy(drawn).to(private_sum.device)
