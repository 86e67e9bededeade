"""How symmetries that an owner declares change the numbers of an image: its coefficients of cosine and texture waves.

Everything here is public. An owner who declares `mirror` states that each image is as likely as its left-right mirror
image. `square` states the same also for swapping top and bottom, and for swapping rows and columns. So all eight
orientations of an image are equally likely.

Mirroring left and right multiplies each number by 1 or -1. For a cosine wave, the factor is -1 if the wave has an odd
number of half waves from left to right. A texture wave that is a sine over the orientations of strokes gets one further
factor of -1, because mirroring also mirrors orientations. Swapping rows and columns turns one wave into another. For
`square`, two such waves are replaced by their sum and difference if mirroring left and right gives both the same
factor. Otherwise they remain a pair that the swap exchanges.

Two facts hold for every distribution with these symmetries (Schur's lemma; Fulton and Harris 1991, "Representation
theory"). A number has mean zero unless every symmetry leaves it unchanged. Two numbers that change differently have
covariance zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Symmetry = Literal["none", "mirror", "square"]
ORDER = {"none": 1, "mirror": 2, "square": 8}  # number of symmetries, including the identity


@dataclass(frozen=True)
class Action:
    """How the declared symmetries change the f numbers of an image. Each array has shape (f,).

    Attributes:
        across: factor, 1 or -1, of each number when left and right are swapped.
        down: likewise when top and bottom are swapped.
        partner: index of the number that replaces each number when rows and columns are swapped.
        swapped: factor, 1 or -1, of the replacing number.
    """

    symmetry: Symmetry
    across: Array
    down: Array
    partner: Places
    swapped: Array

    @property
    def order(self) -> int:
        """Number of symmetries, including the identity."""
        return ORDER[self.symmetry]

    def turned(self, rows: Array, number: int) -> Array:
        """Apply the symmetry with index `number` to rows (..., f). Number 0 is the identity."""
        places, signs = self._steps(number)
        return rows[..., places] * signs

    def turned_back(self, rows: Array, number: int) -> Array:
        """Undo `turned` with the same number."""
        places, signs = self._steps(number)
        found = np.empty_like(rows)
        found[..., places] = rows * signs
        return found

    def orbit(self, rows: Array) -> Array:
        """Apply every symmetry to rows (..., k, f). Return (..., k * order, f), with the results of a row adjacent."""
        turned = np.stack([self.turned(rows, number) for number in range(self.order)], axis=-2)
        return turned.reshape(*rows.shape[:-2], -1, rows.shape[-1])

    def blocks(self) -> list[list[Places]]:
        """Divide the indices of numbers into blocks, such that numbers in different blocks are uncorrelated.

        Only numbers in the first block can have nonzero means. Two blocks in one list are a pair: swapping rows and
        columns maps one to the other, index by index, so their covariances are equal. Empty blocks are omitted, except
        for the first.
        """
        everywhere = np.arange(len(self.across))
        if self.symmetry == "none":
            return [[everywhere]]
        if self.symmetry == "mirror":
            even, odd = everywhere[self.across > 0], everywhere[self.across < 0]
            return [[even], *([[odd]] if len(odd) else [])]
        alone = self.across == self.down
        kinds = [(alone & (self.across == a) & (self.swapped == b)).nonzero()[0] for a in (1, -1) for b in (1, -1)]
        first = (~alone & (self.across < 0)).nonzero()[0]
        blocks = [[kinds[0]], *[[kind] for kind in kinds[1:] if len(kind)]]
        return [*blocks, *([[first, self.partner[first]]] if len(first) else [])]

    def _steps(self, number: int) -> tuple[Places, Array]:
        """Return, for each number of a symmetry's result, the index of its source and its factor."""
        places, signs = np.arange(len(self.across)), np.ones(len(self.across))
        if number & 4:
            places, signs = self.partner, self.swapped
        for bit, mirrored in ((1, self.across), (2, self.down)):
            signs = signs * mirrored if number & bit else signs
        return places, signs


@dataclass(frozen=True)
class Waves:
    """Cosine waves, in the order of the rows of the public basis. Each array has shape (f,).

    Attributes:
        row: number of half waves from top to bottom.
        column: number of half waves from left to right.
        turn: for texture, index in the real Fourier basis over orientations (1, cos, sin, cos 2, ...); for pixels, 0.
        kind: colour plane; for texture, 0 (sum of fine and coarse) or 1 (difference). No symmetry changes it.
        power: mean square of the coefficient, as the public prior predicts it.
    """

    row: Places
    column: Places
    turn: Places
    kind: Places
    power: Array

    def __len__(self) -> int:
        return len(self.power)

    def at(self, places: Places) -> Waves:
        """Return the waves with the indices `places`, in the order of `places`."""
        return Waves(*(getattr(self, field.name)[places] for field in fields(self)))

    def partners(self) -> Places:
        """Return the index of the wave that each wave becomes when rows and columns are swapped; -1 if missing."""
        apart = 1 + max(int(side.max(initial=0)) for side in (self.row, self.column, self.turn))
        kind = self.kind * apart + self.turn
        number = (kind * apart + self.row) * apart + self.column
        wanted = (kind * apart + self.column) * apart + self.row
        order = np.argsort(number)
        if len(order) == 0:
            return order
        found = order[np.minimum(np.searchsorted(number, wanted, sorter=order), len(order) - 1)]
        return np.where(number[found] == wanted, found, -1)

    def action(self, symmetry: Symmetry) -> Action:
        """Return how a symmetry changes the coefficients of these waves, in the basis that `paired` returns."""
        across, down, swapped = self._signs()
        at = np.arange(len(across))
        partner = self.partners() if symmetry == "square" else at
        mixed = across != down
        signs = np.where(mixed, 1.0, np.where(partner < at, -swapped, swapped))
        return Action(symmetry, across, down, np.where(mixed, partner, at), signs)

    def paired(self, basis: Array, symmetry: Symmetry) -> Array:
        """Return an orthonormal basis (f, p) of the same span in which symmetries only change signs and swap pairs.

        Consider two waves that swapping rows and columns exchanges. If mirroring left and right gives both the same
        factor, their sum and difference replace them. Otherwise, one wave gets the sign for which the swap turns the
        other wave into it.
        """
        if symmetry != "square":
            return basis
        across, down, swapped = self._signs()
        found = basis.copy()
        for one, two in enumerate(self.partners()):
            if across[one] != down[one]:
                found[one] *= 1.0 if across[one] < 0 else swapped[one]
            elif one < two:
                found[one], found[two] = basis[one] + basis[two], basis[one] - basis[two]
                found[[one, two]] /= math.sqrt(2.0)
        return found

    def _signs(self) -> tuple[Array, Array, Array]:
        """Return each wave's factor when left and right, top and bottom, or rows and columns are swapped."""
        sine = np.where((self.turn > 0) & (self.turn % 2 == 0), -1.0, 1.0)  # mirroring also mirrors an orientation
        across, down = sine * (-1.0) ** self.column, sine * (-1.0) ** self.row
        return across, down, sine * (-1.0) ** ((self.turn + 1) // 2)  # swapping maps it to a quarter turn minus itself
