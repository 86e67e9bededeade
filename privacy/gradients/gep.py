"""Gradient embedding perturbation (Yu et al., ICLR 2021, arXiv:2102.12677, Algorithm 1), and B-GEP without residuals.

A basis B of the gradients' subspace is found on *public* anchor images, with random labels drawn afresh for every
basis, by a few power iterations (one, as a rule) for each group of parameters. A record's gradient g becomes an
embedding w = B g, clipped to S1, and a residual r = g - B^T w, clipped to S2. Both sums are released with noise, and
B^T w~ + r~ is the gradient.

Adjacency: add or remove one record. Unit: the record. Event: one Gaussian release for each step, Poisson-sampled.

Sensitivity: the released vector is (w / S1, r / S2). A record contributes two parts of norm at most 1 each, so its norm
is at most sqrt(2), attained by a record both of whose parts are longer than their bounds. B-GEP releases w / S1 alone:
1. Both are cut to whole steps of a grid, and measured together. The basis depends on public anchors, the released
network and public randomness only; given it, the proof is the Gaussian mechanism's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import torch
from torch import nn

from privacy.accounting.events import positive_finite
from privacy.errors import InvalidParameter
from privacy.gradients.arithmetic import aligned_combinations, aligned_linear, aligned_rows
from privacy.gradients.estimator import Common, Estimator
from privacy.gradients.integers import Part, squares, whole
from privacy.gradients.layers import Shares
from privacy.gradients.per_sample import Traces
from privacy.mechanisms.noise import SecureNoise

# The network, and public randomness for the labels -> traces of the public anchor images.
AnchorTraces = Callable[[nn.Module, torch.Generator], Traces]


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


@dataclasses.dataclass(frozen=True)
class GroupBasis:
    """The basis of one group of parameters.

    Attributes:
        index: (p,) where the group's active coordinates stand in the active vector.
        size: k, how many vectors it has.
        vectors: (k, p), lengthened with zeros by `aligned_rows`.
    """

    index: torch.Tensor
    size: int
    vectors: torch.Tensor

    def embed(self, rows: torch.Tensor) -> torch.Tensor:
        """(n, d_active) -> (n, k)."""
        return aligned_linear(rows[:, self.index], self.vectors)[:, : self.size]

    def expand(self, embedding: torch.Tensor) -> torch.Tensor:
        """(n, k) -> (n, p)."""
        return aligned_combinations(embedding.to(self.vectors), self.vectors, len(self.index))


class Gep(Estimator):
    """GEP, or B-GEP.

    Args:
        shapes: of the trainable parameters, by name.
        anchors: computes the traces of the public anchor images, with fresh random labels, on the network as it stands.
        basis_size: k, basis vectors of all groups together, shared out by the square root of the groups' sizes.
        clip: S1, the largest norm of an embedding. Public.
        clip_residual: S2, the largest norm of a residual; None drops residuals (B-GEP). Public.
        common: of every estimator; the noise multiplier is noise deviation over the sensitivity, sqrt(2) or 1.
        seed: of public randomness: the anchors' labels and the start of the power iteration.
        iterations: t, power iterations for each basis. Public.
        groups: "layers" makes each layer a group of its own, "widths" puts those together that have as many outputs, as
            the paper does with the stages of a residual network.
    """

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
        if iterations < 1:
            raise InvalidParameter("iterations", iterations, "a basis takes one power iteration at least")
        self.iterations = iterations
        names = [name.rpartition(".")[0] if groups == "layers" else str(shape[0]) for name, shape in shapes.items()]
        self._groups = {group: [name == group for name in names] for group in dict.fromkeys(names)}
        if not len(self._groups) <= basis_size <= self.coordinates:
            raise InvalidParameter(
                "basis_size", basis_size, f"between the {len(self._groups)} groups and {self.coordinates} coordinates"
            )
        self.basis_size, self._anchors = basis_size, anchors
        self._generator = torch.Generator().manual_seed(seed)
        self.bases: list[GroupBasis] = []

    @property
    def sensitivity(self) -> float:
        """sqrt(2), or 1 for B-GEP: of what is released, which is measured in units of S1 and S2."""
        return 1.0 if self.clip_residual is None else math.sqrt(2)

    @property
    def embedding_size(self) -> int:
        """Basis vectors of this step, at most `basis_size`."""
        return sum(basis.size for basis in self.bases)

    def begin_step(self, model: nn.Module) -> None:
        """Find the step's basis from the public anchors."""
        rows = self.rows(self._anchors(model, self._generator))
        self.find_basis(rows.masked_fill(~rows.isfinite().all(dim=1, keepdim=True), 0))

    def find_basis(self, anchors: torch.Tensor) -> None:
        """Find the step's basis from the anchors' gradients on the active coordinates (m, d_active). Public."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        places = self._places(sizes, anchors.device)
        roots = {group: math.sqrt(len(index)) for group, index in places.items()}
        total = sum(roots.values())
        self.bases = []
        for group, index in places.items():
            if len(index):
                size = min(len(index), max(1, math.floor(self.basis_size * roots[group] / total)))
                basis = orthonormal_basis(anchors[:, index], size, self._generator, self.iterations)
                self.bases.append(GroupBasis(index, size, aligned_rows(self.curator.agree(basis))))

    def _places(self, sizes: list[int], device: torch.device) -> dict[str, torch.Tensor]:
        """Where each group's active coordinates stand in the active vector."""
        found: dict[str, torch.Tensor] = {}
        for group, members in self._groups.items():
            mask = torch.cat([torch.full((size,), member) for size, member in zip(sizes, members, strict=True)])
            if self.active is not None:
                mask = mask[self.active.cpu()]
            found[group] = torch.nonzero(mask)[:, 0].to(device)
        return found

    def add(self, traces: Traces) -> None:
        """Embed, clip and sum; residuals are clipped and summed beside."""
        if not self.bases:
            raise InvalidParameter("basis", None, "begin_step finds the basis before records are added")
        for block in self.blocks(traces):
            self.add_rows(self.rows(block), block.present)

    def add_rows(self, rows: torch.Tensor, present: torch.Tensor | None = None) -> None:
        """Add records by their gradients on the active coordinates (n, d_active). PRIVATE."""
        embedding = torch.cat([basis.embed(rows) for basis in self.bases], dim=1)  # (n, k)
        part = 1 / self.sensitivity  # of the bound: each of the parts that are released gets as much
        parts: dict[str, Part] = {}
        if self.clip_residual is not None:
            residual = rows - self._expand(embedding)  # (n, d_active)
            scales = self.scales(squares(residual).sqrt(), self.clip_residual, part)
            parts["residual"] = whole(residual, scales)
        parts["embedding"] = whole(embedding, self.scales(squares(embedding).sqrt(), self.clip, part))
        self._add_parts(parts, present)

    def release(self, noise: SecureNoise) -> Shares:
        parts = {"embedding": torch.Size([self.embedding_size])}
        if self.clip_residual is not None:
            parts["residual"] = torch.Size([self.active_coordinates])
        noisy = self._release_sums(parts, noise)
        flat = self._expand(noisy["embedding"][None])[0] * self.clip
        if self.clip_residual is not None:
            flat = flat + noisy["residual"].to(flat) * self.clip_residual
        self.bases = []
        return self.unflatten(flat / self.expected_batch)

    def state(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._generator.set_state(state["generator"].cpu())

    def _expand(self, embedding: torch.Tensor) -> torch.Tensor:
        """(n, k) -> (n, d_active): embedding times basis."""
        whole = torch.zeros(len(embedding), self.active_coordinates, dtype=embedding.dtype, device=embedding.device)
        parts = torch.split(embedding, [basis.size for basis in self.bases], dim=1)
        for basis, part in zip(self.bases, parts, strict=True):
            whole[:, basis.index] = basis.expand(part)
        return whole
