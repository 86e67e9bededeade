"""The students of the DataLens recipe: who proposes pixels or latents, and learns from what the votes say of them.

Everything here is post-processing of releases. On latents, the votes of a round are noisy samples of one field, "where
should a picture like this move?", so they are regressed on the generator's features of the latents; the known noise
decides by evidence how far the fit is trusted. When the votes say nothing beyond noise the generator stays as it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from models.portable.conditional_dcgan import ConditionalDcganGenerator
from models.portable.generator import Generator
from privacy.aggregation.topagg_config import TopAggConfig
from workers.recipes.datalens.teacher_stage import Release

_BETAS = (0.5, 0.999)  # of the Adam of a generator that learns pixels
# Prior variances of a mean vote (as a share of the teachers) that the evidence chooses from; 0 is "no signal".
_VARIANCES = (0.0, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1)


class PixelStudent:
    """The generator and its optimiser: one Adam step towards x + gamma g_bar for each release (line 18 of Algorithm 1).

    Everything here is post-processing of releases.
    """

    def __init__(self, network: ConditionalDcganGenerator, learning_rate: float, latents: torch.Generator) -> None:
        self.network, self._stream = network, latents
        self._optimiser = torch.optim.Adam(network.parameters(), lr=learning_rate, betas=_BETAS, fused=True)
        self._z = torch.zeros(0)

    def propose(self, labels: Tensor) -> Tensor:
        """Draw images (m, d) for labels (m,)."""
        self._z = self.network.latents(len(labels), self._stream).to(labels.device)
        with torch.no_grad():
            images: Tensor = self.network(self._z, labels)
        return images.flatten(1)

    def learn(self, releases: list[Release]) -> None:
        """Descend the squared distance to the last release's targets."""
        last = releases[-1]
        loss = (self.network(self._z, last.released_labels).flatten(1) - last.released_targets).square().sum()
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs to go on."""
        return {
            "network": self.network.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "stream": self._stream.get_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self.network.load_state_dict(state["network"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._stream.set_state(state["stream"])


@dataclass
class LatentStudent:
    """Proposes bent latents and learns W of `Generator.latent`; see `workers.recipes.datalens.teacher_stage.Student`.

    Attributes:
        generator: with the warm start or the prior in place; its `bend` is changed.
        latents: CPU generator from which latents are drawn; public once the releases are.
        teachers: N, the unit of a full vote.
        noise_stddev: standard deviation of a vote sum's noise, votes' own randomness included.
        step: gamma, latent units that a full vote moves an image in one round.
        round_iterations: iterations whose releases are fitted together.
        thresholded: learn from the thresholded direction, as the paper does, instead of the noisy sums.
    """

    generator: Generator
    latents: torch.Generator
    teachers: int
    noise_stddev: float
    step: float
    round_iterations: int
    thresholded: bool
    _z: Tensor = field(default_factory=lambda: torch.zeros(0), init=False)
    _seen: list[Tensor] = field(default_factory=list, init=False)

    def propose(self, labels: Tensor) -> Tensor:
        """Draw latents (m, d) for labels (m,), bent as the generator bends them now."""
        self._z = self.generator.draw(labels, self.latents)
        return self.generator.latent(self._z, labels)

    def learn(self, releases: list[Release]) -> None:
        """Remember the latents of the last release; at the end of a round, bend the generator."""
        self._seen.append(self._z)
        if len(self._seen) >= self.round_iterations:
            self.finish(releases)

    def finish(self, releases: list[Release]) -> None:
        """Bend the generator by the votes of the round so far: a budget may end in the middle of one."""
        if not self._seen:
            return
        recent = releases[-len(self._seen) :]
        # A round may begin before a checkpoint and end after it, when its parts lie on different devices.
        device = self.generator.bend.device
        basis = self.generator.psi(torch.cat([z.to(device) for z in self._seen]))  # (r, B)
        labels = torch.cat([release.released_labels.to(device) for release in recent])  # (r,)
        if self.thresholded:
            votes, noise = torch.cat([release.released_direction.to(device) for release in recent]), 0.5
        else:
            sums = torch.cat([release.released_sums.to(device) for release in recent])  # (r, d)
            votes, noise = sums / self.teachers, self.noise_stddev / self.teachers
        self.generator.bend += self.step * fit_field(basis, labels, votes, self.generator.config.classes, noise)
        self._seen = []

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs to go on."""
        return {"bend": self.generator.bend.clone(), "seen": list(self._seen), "stream": self.latents.get_state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned."""
        self.generator.bend.copy_(state["bend"])
        self._seen = list(state["seen"])
        self.latents.set_state(state["stream"])


def fit_field(basis: Tensor, labels: Tensor, votes: Tensor, classes: int, noise: float) -> Tensor:
    """Fit votes = psi(z) (V + V_y) + noise by Bayesian regression with variances chosen by evidence.

    Args:
        basis: (r, B) features of the latents.
        labels: (r,) int64.
        votes: (r, d) released votes, as shares of the teachers.
        classes: number of classes.
        noise: standard deviation of each vote.

    Returns:
        (classes, d, B): V + V_y, the posterior mean. Zero when no variance explains the votes better than noise.
    """
    device = basis.device
    basis, labels, votes = basis.cpu(), labels.cpu(), votes.cpu()
    x, y = basis.double(), votes.double()
    same = (labels[:, None] == labels[None, :]).double()  # (r, r)
    constant = torch.ones_like(same)
    varying = x[:, 1:] @ x[:, 1:].T / (x.shape[1] - 1)  # (r, r), about 1 on the diagonal
    parts = (constant, varying, constant * same, varying * same)  # shared and own, constant and varying
    chosen = [0.0, 0.0, 0.0, 0.0]
    best = _evidence(y, parts, chosen, noise)
    for _ in range(2):  # coordinate ascent over the grid
        for part in (2, 3, 0, 1):
            for variance in _VARIANCES:
                tried = [*chosen[:part], variance, *chosen[part + 1 :]]
                if tried != chosen and (value := _evidence(y, parts, tried, noise)) > best:
                    best, chosen = value, tried
    kernel = sum((v * part for v, part in zip(chosen, parts, strict=True)), torch.zeros_like(same))
    weights = torch.linalg.solve(kernel + noise**2 * torch.eye(len(y), dtype=torch.float64), y)  # (r, d)
    field = torch.zeros(classes, y.shape[1], x.shape[1], dtype=torch.float64)
    width = x.shape[1] - 1
    for label in range(classes):
        own = weights * (labels == label)[:, None]
        field[label, :, 0] = chosen[0] * weights.sum(0) + chosen[2] * own.sum(0)
        field[label, :, 1:] = (chosen[1] * weights.T + chosen[3] * own.T) @ x[:, 1:] / width
    return field.to(device, basis.dtype)


def _evidence(y: Tensor, parts: tuple[Tensor, ...], variances: list[float], noise: float) -> float:
    """Log marginal likelihood of the columns of y (r, d), which share one Gaussian process."""
    kernel = sum((v * part for v, part in zip(variances, parts, strict=True)), torch.zeros_like(parts[0]))
    cholesky = torch.linalg.cholesky(kernel + noise**2 * torch.eye(len(y), dtype=y.dtype))
    whitened = torch.linalg.solve_triangular(cholesky, y, upper=False)
    return float(-0.5 * whitened.square().sum() - y.shape[1] * cholesky.diagonal().log().sum())


def vote_stddev(aggregation: TopAggConfig) -> float:
    """Standard deviation of one coordinate of a vote sum: the added noise and the coins of undecided teachers."""
    coins = aggregation.teachers * aggregation.votes_max / aggregation.dimension
    return math.sqrt(aggregation.stddev**2 + coins)
