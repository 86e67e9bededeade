"""Gradient embedding perturbation (Yu et al., ICLR 2021, arXiv:2102.12677, Algorithm 1), and B-GEP without residuals.

The basis B of a subspace is computed from gradients of *public* anchor images with fresh random labels. A few power
iterations (usually one) compute it for each group of parameters. A record's gradient g becomes an embedding w = B g and
a residual r = g - B^T w, clipped to S1 and S2. The sums of both are released with noise, as w~ and r~; the step's
gradient is B^T w~ + r~. The rows of B are orthonormal up to rounding. For any B, B^T w + r is g, and privacy rests on
the two clips alone.

Adjacency: add or remove one record. Unit: the record. Event: one Gaussian release for each step, Poisson-sampled.

Sensitivity: the released vector is (w / S1, r / S2). A record contributes two parts of norm at most 1 each, so sqrt(2)
in all, attained if both exceed their bounds. B-GEP releases w / S1 alone, so its sensitivity is 1. Both parts are whole
steps of a grid. The basis depends on public anchors, the released network and public randomness only. Given the basis,
the proof is that of the Gaussian mechanism.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import nn

from privacy.accounting.events import positive_finite
from privacy.errors import InvalidParameter
from privacy.gradients.arithmetic import aligned_linear, aligned_rows, padded
from privacy.gradients.estimator import Common, Estimator
from privacy.gradients.integers import Outer, Part, squares, whole, without
from privacy.gradients.layers import Shares
from privacy.gradients.per_sample import Traces
from privacy.mechanisms.noise import SecureNoise

# The network, and public randomness for the labels -> traces of the public anchor images.
AnchorTraces = Callable[[nn.Module, torch.Generator], Traces]

_FEW = 4  # anchors per basis vector; up to this, inner products are faster
_COLUMNS = 4096  # coordinates whose products are added in float32
_TOGETHER = 16  # combinations at once
_WEAKEST = 1e-6  # minimum squared strength of a direction, relative to the strongest
_TINY = 1e-60


def orthonormal_basis(
    anchors: torch.Tensor, size: int, generator: torch.Generator, iterations: int = 1
) -> torch.Tensor:
    """Find a basis of the anchors' strongest directions by power iterations from a random start.

    Args:
        anchors: (m, p) public gradients.
        size: k, at most p.
        generator: public randomness.
        iterations: t, at least 1; the paper found one enough.

    Returns:
        (k, p) with orthonormal rows.
    """
    basis = torch.randn(anchors.shape[1], size, generator=generator, dtype=anchors.dtype).to(anchors.device)
    for _ in range(iterations):
        basis = torch.linalg.qr(anchors.mT @ (anchors @ basis))[0]  # (p, k)
    return basis.mT


def basis_of_combinations(
    anchors: Sequence[Part], size: int, generator: torch.Generator, iterations: int = 1
) -> torch.Tensor:
    """Find a basis (k, p) of linear combinations of the anchors, from their inner products.

    The random start is a combination of the anchors, too. Matrices with sides m and k are decomposed in float64; inner
    products and combinations round to float32. So if a direction is less than a thousandth as strong as the strongest
    direction, its vector is too short, but not noise. Other vectors are orthonormal up to rounding.

    Args:
        anchors: m public gradients, in parts that have p coordinates together.
        size: k, at most m.
        generator: public randomness.
        iterations: t, at least 1.
    """
    products = torch.stack([_inner_products(part) for part in anchors]).sum(dim=0)  # (m, m)
    chosen = torch.randn(len(products), size, generator=generator, dtype=torch.float64).to(products.device)
    for _ in range(iterations):
        chosen = torch.linalg.qr(products @ chosen)[0]  # (m, k) combinations; each is a direction
    strengths, turn = torch.linalg.eigh(chosen.mT @ products @ chosen)  # ascending
    lengths = strengths.clamp(min=max(_WEAKEST * float(strengths[-1]), _TINY)).sqrt()
    combinations = (chosen @ turn / lengths).mT.float()  # (k, m)
    return torch.cat([_combined(combinations, part) for part in anchors], dim=1)


def _inner_products(part: Part) -> torch.Tensor:
    """Return the inner products (m, m) float64 of the m gradients in a part."""
    if isinstance(part, Outer):
        left, right = (factor.double() @ factor.double().mT for factor in part)
        return left * right
    found = torch.zeros(len(part), len(part), dtype=torch.float64, device=part.device)
    for columns in torch.split(part.flatten(1), _COLUMNS, dim=1):
        found += columns @ columns.mT
    return found


def _combined(combinations: torch.Tensor, part: Part) -> torch.Tensor:
    """Return the linear combinations (k, p) of a part's m gradients, for coefficients (k, m)."""
    if not isinstance(part, Outer):
        return combinations @ part.flatten(1)
    left, right = part  # (m, p), (m, d)
    few = torch.split(combinations, _TOGETHER)
    return torch.cat([((some[:, :, None] * left).mT @ right).flatten(1) for some in few])


@dataclasses.dataclass(frozen=True)
class GroupBasis:
    """The basis of one group of parameters.

    Attributes:
        index: (p,) the group's positions in a vector of all active coordinates, or a slice if they are contiguous.
        size: number of vectors k.
        coordinates: number of coordinates p.
        vectors: (k, p), padded by `aligned_rows`.
    """

    index: torch.Tensor | slice
    size: int
    coordinates: int
    vectors: torch.Tensor

    def embed(self, rows: torch.Tensor) -> torch.Tensor:
        """Map gradients (n, d_active) to embeddings (n, k)."""
        return aligned_linear(rows[:, self.index], self.vectors)[:, : self.size]

    def expand(self, embedding: torch.Tensor) -> torch.Tensor:
        """Map embeddings (n, k) to gradients (n, p) of the group's parameters."""
        return (padded(embedding.to(self.vectors)) @ self.vectors)[:, : self.coordinates]


class Gep(Estimator):
    """GEP; or B-GEP, if there is no `clip_residual`.

    Args:
        anchors: computes the traces of the public anchor images with fresh random labels on the current network.
        basis_size: k, basis vectors of all groups; each group's share is proportional to the square root of its size.
        clip: S1, the largest norm of an embedding. Public.
        clip_residual: S2, the largest norm of a residual; None drops residuals (B-GEP). Public.
        common: parameters of every estimator. The noise multiplier is the noise's standard deviation over the
            sensitivity of (w / S1, r / S2), which is sqrt(2), or 1 for B-GEP.
        seed: of the anchors' labels and of the start of the power iteration. Public.
        iterations: t, number of power iterations for each basis. Public.
        groups: "layers" makes each layer a group; "widths" joins layers with equal outputs, as in the paper.
    """

    blocks_together = 8  # products with a basis are faster with many rows

    def __init__(
        self,
        shapes: Mapping[str, torch.Size],
        anchors: AnchorTraces,
        *,
        basis_size: int,
        clip: float,
        clip_residual: float | None,
        seed: int = 0,
        iterations: int = 1,
        groups: str = "layers",
        **common: Unpack[Common],
    ) -> None:
        super().__init__(shapes, **common)
        self.clip = positive_finite("clip", clip)
        self.clip_residual = None if clip_residual is None else positive_finite("clip_residual", clip_residual)
        self.sensitivity = 1.0 if clip_residual is None else math.sqrt(2)  # in units of S1 and S2
        self.iterations = iterations
        self._groups: dict[str, list[str]] = {}  # names of the parameters that share a basis
        for name, shape in shapes.items():
            self._groups.setdefault(name.rpartition(".")[0] if groups == "layers" else str(shape[0]), []).append(name)
        if not len(self._groups) <= basis_size <= self.coordinates:
            raise InvalidParameter(
                "basis_size",
                basis_size,
                f"it must be at least {len(self._groups)} (one for each group) and at most {self.coordinates}",
            )
        self.basis_size, self._anchors = basis_size, anchors
        self._generator = torch.Generator().manual_seed(seed)
        self.bases: list[GroupBasis] = []

    def begin_step(self, model: nn.Module) -> None:
        """Find the step's basis from the public anchors."""
        self.find_basis(self.parts(self._anchors(model, self._generator)))

    def find_basis(self, anchors: Mapping[str, Part]) -> None:
        """Find the step's basis from the `parts` of the anchors' gradients; non-finite gradients are zeroed. Public."""
        finite = torch.stack([squares(part) for part in anchors.values()]).sum(dim=0).isfinite()  # (m,)
        if not bool(finite.all()):
            anchors = {name: without(part, ~finite) for name, part in anchors.items()}
        places = {group: self._places(names, finite.device) for group, names in self._groups.items()}
        total = sum(math.sqrt(count) for _, count in places.values())
        self.bases = []
        for group, (index, count) in places.items():
            if not count:
                continue
            size = min(count, max(1, math.floor(self.basis_size * math.sqrt(count) / total)))
            parts = [anchors[name] for name in self._groups[group]]
            if len(finite) <= _FEW * size or any(isinstance(part, Outer) for part in parts):
                size = min(size, len(finite))
                basis = basis_of_combinations(parts, size, self._generator, self.iterations)
            else:
                rows = torch.cat([part.flatten(1) for part in parts if not isinstance(part, Outer)], dim=1)
                basis = orthonormal_basis(rows, size, self._generator, self.iterations)
            self.bases.append(GroupBasis(index, size, count, aligned_rows(self.curator.agree(basis))))

    def _places(self, names: Sequence[str], device: torch.device) -> tuple[torch.Tensor | slice, int]:
        """Return the positions of these parameters in a vector of all active coordinates, and their number."""
        spans, start = [], 0
        for name, size in self.active_sizes.items():
            stop = start + size
            if name in names:
                spans.append(range(start, stop))
            start = stop
        count = sum(map(len, spans))
        if spans[-1].stop - spans[0].start == count:
            return slice(spans[0].start, spans[-1].stop), count
        return torch.cat([torch.arange(span.start, span.stop, device=device) for span in spans]), count

    def contributions(self, rows: torch.Tensor) -> Mapping[str, Part]:
        """Return clipped embeddings and, for GEP, clipped residuals."""
        if not self.bases:
            raise InvalidParameter("basis", None, "call begin_step, which finds the basis, before adding records")
        embedding = torch.cat([basis.embed(rows) for basis in self.bases], dim=1)  # (n, k)
        part = 1 / self.sensitivity  # share of the bound for each released part
        parts: dict[str, Part] = {}
        if self.clip_residual is not None:
            sizes = [basis.size for basis in self.bases]
            for basis, own in zip(self.bases, torch.split(embedding, sizes, dim=1), strict=True):
                rows[:, basis.index] -= basis.expand(own)  # the residual
            parts["residual"] = whole(rows, self.scales(squares(rows).sqrt(), self.clip_residual, part))
        parts["embedding"] = whole(embedding, self.scales(squares(embedding).sqrt(), self.clip, part))
        return parts

    def privatise(self, noise: SecureNoise) -> Shares:
        sizes = [basis.size for basis in self.bases]
        parts = {"embedding": torch.Size([sum(sizes)])}
        if self.clip_residual is not None:
            parts["residual"] = torch.Size([self.active_coordinates])
        noisy = self._privatise_sums(parts, noise)
        embedding = noisy["embedding"][None].to(self.bases[0].vectors)
        flat = torch.zeros(self.active_coordinates, device=embedding.device)
        for basis, own in zip(self.bases, torch.split(embedding, sizes, dim=1), strict=True):
            flat[basis.index] = basis.expand(own)[0] * self.clip
        if self.clip_residual is not None:
            flat += noisy["residual"].to(flat) * self.clip_residual
        self.bases = []
        return self.unflatten(flat / self.expected_batch)

    def state(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._generator.set_state(state["generator"].cpu())
