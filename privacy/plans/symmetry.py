"""The action of declared symmetries on the numbers of a warm start. Everything here is public.

An owner who declares `mirror` states that images are as likely as their mirror images, left and right swapped; `square`
adds top and bottom swapped, and rows and columns swapped, so that all eight symmetries of the square are equal.
Mirroring multiplies a number by 1 or -1: for a cosine wave, by the parity of its column. A sine over a texture's
orientations changes its sign once more, because orientations are mirrored, too. Swapping rows and columns turns one
wave into another. So for `square` two such waves are replaced by their sum and their difference, or remain a pair.

The consequences hold for every distribution with these symmetries (Schur's lemma; Fulton and Harris 1991,
"Representation theory"): only numbers that no symmetry changes have a mean other than zero, and covariances are zero
between numbers that change differently.
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
    """The action of the declared symmetries on a row of numbers, (f,) each.

    Attributes:
        symmetry: the declared symmetry.
        across: sign of a number when left and right are swapped.
        down: likewise for top and bottom.
        partner: place of the number that replaces this one when rows and columns are swapped.
        swapped: sign of the replacing number.
    """

    symmetry: Symmetry
    across: Array
    down: Array
    partner: Places
    swapped: Array

    @property
    def order(self) -> int:
        """Number of symmetries."""
        return ORDER[self.symmetry]

    def turned(self, rows: Array, number: int) -> Array:
        """Apply one of the symmetries to rows (..., f); number 0 is the identity."""
        places, signs = self._steps(number)
        found: Array = rows[..., places] * signs
        return found

    def turned_back(self, rows: Array, number: int) -> Array:
        """Undo `turned`."""
        places, signs = self._steps(number)
        found = np.empty_like(rows)
        found[..., places] = rows * signs
        return found

    def orbit(self, rows: Array) -> Array:
        """Apply all symmetries to rows (..., k, f); return (..., k * order, f), results of one row adjacent."""
        turned = np.stack([self.turned(rows, number) for number in range(self.order)], axis=-2)
        return turned.reshape(*rows.shape[:-2], -1, rows.shape[-1])

    def blocks(self) -> list[list[Places]]:
        """Return the places of numbers that may be correlated, by block; only the first block may have a mean.

        Two blocks in one list are a pair: swapping rows and columns maps one to the other, place by place, so their
        covariances are equal. Empty blocks are left out, except for the first.
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
        """Return the source place and the sign of each number in a symmetry's result."""
        places, signs = np.arange(len(self.across)), np.ones(len(self.across))
        if number & 4:
            places, signs = self.partner, self.swapped
        for bit, mirrored in ((1, self.across), (2, self.down)):
            signs = signs * mirrored if number & bit else signs
        return places, signs


@dataclass(frozen=True)
class Waves:
    """Cosine waves in the order of the public basis' rows, (f,) each.

    Attributes:
        row: half waves from top to bottom.
        column: half waves from left to right.
        turn: row of the real Fourier basis over orientations (1, cos, sin, cos 2, ...); 0 for pixels.
        kind: plane of colour; for texture, 0 (sum of fine and coarse) or 1 (difference). No symmetry changes it.
        power: mean square expected by the public prior.
    """

    row: Places
    column: Places
    turn: Places
    kind: Places
    power: Array

    def __len__(self) -> int:
        return len(self.power)

    def at(self, places: Places) -> Waves:
        """Return the waves at these places, in their order."""
        return Waves(*(getattr(self, field.name)[places] for field in fields(self)))

    def partners(self) -> Places:
        """Return the place of each wave's image when rows and columns are swapped; -1 if that wave is missing."""
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
        """Return the action of symmetries on these waves' numbers, in the basis that `paired` returns."""
        across, down, swapped = self._signs()
        at = np.arange(len(across))
        partner = self.partners() if symmetry == "square" else at
        mixed = across != down
        signs = np.where(mixed, 1.0, np.where(partner < at, -swapped, swapped))
        return Action(symmetry, across, down, np.where(mixed, partner, at), signs)

    def paired(self, basis: Array, symmetry: Symmetry) -> Array:
        """Return an orthonormal basis (f, p) of the same span in which symmetries only change signs and swap pairs.

        If swapping rows and columns exchanges two waves and mirroring gives both the same sign, their sum and
        difference replace them. Otherwise the second wave gets the sign with which swapping turns the first wave into
        it.
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
        """Return the sign of each wave under mirroring across and down, and under swapping rows and columns."""
        sine = np.where((self.turn > 0) & (self.turn % 2 == 0), -1.0, 1.0)  # mirroring also mirrors an orientation
        across, down = sine * (-1.0) ** self.column, sine * (-1.0) ** self.row
        return across, down, sine * (-1.0) ** ((self.turn + 1) // 2)  # swapping maps it to a quarter turn minus itself
