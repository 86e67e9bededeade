"""Covariances and principal components where declared symmetries leave blocks (`privacy.plans.moments.symmetry`).

All of it is post-processing of released numbers and public ones. Without symmetries there is one block, of all numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privacy.plans.moments.symmetry import Action, Places

Array = npt.NDArray[np.float64]
Fit = Callable[[Array, Places, float], Array]  # a block, the places of its numbers, and the noise in it


def block_by_block(matrix: Array, blocks: Sequence[Sequence[Places]], noise_stddev: float, fit: Fit) -> Array:
    """Return a matrix (f, f) of which each block is what `fit` makes of it, and all else is zero.

    Blocks of a pair are equal by declaration, so that what is fitted is their mean, which has less noise.
    """
    found = np.zeros_like(matrix)
    for pair in blocks:
        middle = np.mean([matrix[np.ix_(places, places)] for places in pair], axis=0)
        fitted = fit(middle, pair[0], noise_stddev / math.sqrt(len(pair)))
        for places in pair:
            found[np.ix_(places, places)] = fitted
    return found


@dataclass(frozen=True)
class Components:
    """Principal components, those of greatest variance first.

    Attributes:
        vectors: (f, d), orthonormal; where symmetries left fewer than d, the last ones are zero.
        variances: (d,).
        action: of the symmetries on the leading ones.
    """

    vectors: Array
    variances: Array
    action: Action

    @property
    def leading(self) -> int:
        """How many lead: as many as was asked for, or one less where the last one is one of a pair."""
        return len(self.action.across)


def principal_components(covariance: Array, action: Action, leading: int, size: int) -> Components:
    """Return eigenvectors of a covariance (f, f) that has the action's blocks; pairs stay together.

    Args:
        covariance: symmetric.
        action: of the symmetries on its numbers.
        leading: how many are to lead.
        size: how many are wanted.
    """
    left: list[tuple[float, Array, list[Places]]] = []
    for pair in action.blocks():
        values, vectors = np.linalg.eigh(covariance[np.ix_(pair[0], pair[0])])
        left += [(float(value), vector, pair) for value, vector in zip(values, vectors.T, strict=True)]
    left.sort(key=lambda found: -found[0])
    chosen: list[tuple[float, Array, list[Places]]] = []
    lead = 0
    for wanted in (leading, size):
        taken = sum(len(pair) for _, _, pair in chosen)
        others = []
        for found in left:
            if taken + len(found[2]) <= wanted:
                chosen.append(found)
                taken += len(found[2])
            else:
                others.append(found)
        left, lead = others, lead or taken
    vectors, variances = np.zeros((len(covariance), size)), np.zeros(size)
    first: list[int] = []  # of each component: a place of its numbers
    partner: list[int] = []  # and the component that it is swapped with
    for value, vector, pair in chosen:
        start = len(first)
        for at, places in enumerate(pair):
            vectors[places, start + at], variances[start + at] = vector, value
            first.append(int(places[0]))
            partner.append(start + len(pair) - 1 - at)
    led = np.array(first[:lead])
    of_them = Action(
        action.symmetry, action.across[led], action.down[led], np.array(partner[:lead]), action.swapped[led]
    )
    return Components(vectors, variances, of_them)
