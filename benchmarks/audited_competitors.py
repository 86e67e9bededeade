"""The competitors' releases, set up for an audit: each on a neighbour that attains its sensitivity.

A record turns one teacher from "generated" to "real" (PATE-GAN), or its gradient into the opposite (G-PATE, GS-WGAN).
What is scored is what was released, projected on what the record changes. DP-MERF's game is in its test, and DP-GAN's
steps are those of `audited_gradients`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.aggregators import release
from benchmarks.aggregators.gaussian import ClippedSum
from benchmarks.audited import Audited, Scores
from benchmarks.budgets import NoLedger
from benchmarks.competitors import gs_wgan, pate_gan
from benchmarks.competitors.g_pate import HistogramVotes
from models.teacher_ensemble import TeacherConfig, TeacherEnsemble
from privacy.accounting.calibration import stddev_for
from privacy.accounting.events import GaussianEvent
from privacy.accounting.filter import NANO
from privacy.mechanisms.noise import SecureNoise

_D, _TEACHERS = 64, 3
_BATCH = 8  # images that the canary's critic is asked about at once


def histogram() -> HistogramVotes:
    """Five directions of ten bins."""
    return HistogramVotes(teachers=_TEACHERS, dimension=_D, stddev=4.0, projected=5)


def clipped() -> ClippedSum:
    """One critic's gradients, clipped at norm 1."""
    return ClippedSum(teachers=1, dimension=_D, stddev=4.0, clip=gs_wgan.CLIP)


def audited_labels(mu: float) -> Audited:
    """The noisy number of teachers that say "real"; each draw is an image."""
    stddev = stddev_for(pate_gan.SENSITIVITY, int(mu**2 * NANO), discrete=True)
    teachers = TeacherEnsemble(TeacherConfig(4, 1, 2), _TEACHERS, generator=torch.Generator().manual_seed(0))

    def draw(present: bool, images: int, secret: bytes) -> Scores:
        with torch.no_grad():
            teachers.bias[1] = 100.0 if present else -100.0
        seen, labels = torch.zeros(images, 4), torch.zeros(images, dtype=torch.int64)
        counts = pate_gan.votes_for_real(teachers, torch.ones(_TEACHERS, dtype=torch.bool), seen, labels)
        released = pate_gan.release_votes(counts, stddev, NoLedger(), SecureNoise.derive(secret, "votes"))
        return released.double().numpy()

    claim = GaussianEvent.of_discrete_noise(pate_gan.SENSITIVITY, stddev)
    return Audited("PATE-GAN's labels", claim, draw, draws=2000)


def audited_histogram(mu: float) -> Audited:
    """G-PATE's noisy bins; each draw is an image."""
    paid = histogram().affording(int(mu**2 * NANO), 1)
    worst = torch.ones(_D)

    def sums(present: bool, images: int) -> Tensor:
        gradients = torch.zeros(_TEACHERS, images, _D)
        gradients[1] = worst if present else -worst
        return paid.sums(gradients, torch.Generator().manual_seed(0))

    def draw(present: bool, images: int, secret: bytes) -> Scores:
        released = release.release(paid, sums(present, images), NoLedger(), SecureNoise.derive(secret, "bins"))
        scores: Scores = (released.double() @ (sums(True, 1) - sums(False, 1))[0].double()).numpy()
        return scores

    return Audited("G-PATE's bins", paid.event(1), draw)


def audited_visits(mu: float) -> Audited:
    """One visit to the canary's critic in GS-WGAN: a batch of images, whose scores an auditor adds up."""
    paid = clipped().affording(int(mu**2 * NANO), gs_wgan.GsWgan(critics=_TEACHERS, visits=1, batch=_BATCH).releases)
    worst = torch.zeros(_BATCH, _D)
    worst[:, 0] = 8 * gs_wgan.CLIP

    def draw(present: bool, visits: int, secret: bytes) -> Scores:
        noise = SecureNoise.derive(secret, "gradients")
        gradients = (worst if present else -worst).repeat(visits, 1)
        released = gs_wgan.release_gradients(gradients, paid, noise)
        scores: Scores = released[:, 0].double().view(visits, _BATCH).sum(dim=1).numpy()
        return scores

    return Audited("GS-WGAN's visit", replace(paid.event(1), count=_BATCH), draw)


GAMES: Mapping[str, Callable[[float], Audited]] = {
    "PATE-GAN": audited_labels,
    "G-PATE": audited_histogram,
    "GS-WGAN": audited_visits,
}
