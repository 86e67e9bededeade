"""The competitors' releases, set up for an audit: each on a neighbour that attains its sensitivity.

A record turns one teacher from "generated" to "real" (PATE-GAN), or its gradient into the opposite (G-PATE, GS-WGAN).
What is scored is what was released, projected on what the record changes. DP-MERF's game is in its test, and DP-GAN's
steps are those of `audited_gradients`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from benchmarks.audited import Audited, Scores
from benchmarks.budgets import NoLedger
from benchmarks.reproductions.aggregators import release
from benchmarks.reproductions.aggregators.gaussian import ClippedSum
from benchmarks.reproductions.competitors import gs_wgan, pate_gan
from benchmarks.reproductions.competitors.g_pate import HistogramVotes
from models.teacher_ensemble import TeacherConfig, TeacherEnsemble
from privacy.accounting.calibration import stddev_for
from privacy.accounting.events import GaussianEvent
from privacy.accounting.filter import NANO
from privacy.mechanisms.noise import SecureNoise

_D, _TEACHERS = 64, 3
_BATCH = 8  # images that the canary's critic is asked about at once
# Images of one draw of votes: noise of less than a few integers costs more than it gives away, and tests need many.
_LABELLED, _VOTED = 64, 16


def histogram() -> HistogramVotes:
    """Five directions of ten bins."""
    return HistogramVotes(teachers=_TEACHERS, dimension=_D, stddev=4.0, projected=5)


def clipped() -> ClippedSum:
    """One critic's gradients, clipped at norm 1."""
    return ClippedSum(teachers=1, dimension=_D, stddev=4.0, clip=gs_wgan.CLIP)


def audited_labels(mu: float) -> Audited:
    """The noisy numbers of teachers that say "real", added up over the images of a draw."""
    stddev = stddev_for(pate_gan.SENSITIVITY, int(mu**2 * NANO), _LABELLED, discrete=True)
    teachers = TeacherEnsemble(TeacherConfig(4, 1, 2), _TEACHERS, generator=torch.Generator().manual_seed(0))

    def draw(present: bool, draws: int, secret: bytes) -> Scores:
        with torch.no_grad():
            teachers.bias[1] = 100.0 if present else -100.0
        images, labels = torch.zeros(draws * _LABELLED, 4), torch.zeros(draws * _LABELLED, dtype=torch.int64)
        counts = pate_gan.votes_for_real(teachers, torch.ones(_TEACHERS, dtype=torch.bool), images, labels)
        released = pate_gan.privatise_votes(counts, stddev, NoLedger(), SecureNoise.derive(secret, "votes"))
        scores: Scores = released.double().view(draws, _LABELLED).sum(dim=1).numpy()
        return scores

    return Audited("PATE-GAN's labels", GaussianEvent.of_discrete_noise(pate_gan.SENSITIVITY, stddev, _LABELLED), draw)


def audited_histogram(mu: float) -> Audited:
    """G-PATE's noisy bins, projected on what the canary moves and added up over the images of a draw."""
    paid = histogram().affording(int(mu**2 * NANO), _VOTED)
    worst = torch.ones(_D)

    def sums(present: bool, images: int) -> Tensor:
        gradients = torch.zeros(_TEACHERS, images, _D)
        gradients[1] = worst if present else -worst
        return paid.sums(gradients, torch.Generator().manual_seed(0))

    def draw(present: bool, draws: int, secret: bytes) -> Scores:
        noise = SecureNoise.derive(secret, "bins")
        released = release.privatise(paid, sums(present, draws * _VOTED), NoLedger(), noise).double()
        scores: Scores = (
            (released @ (sums(True, 1) - sums(False, 1))[0].double()).view(draws, _VOTED).sum(dim=1).numpy()
        )
        return scores

    return Audited("G-PATE's bins", paid.event(_VOTED), draw)


def audited_visits(mu: float) -> Audited:
    """One visit to the canary's critic in GS-WGAN: a batch of images, whose scores an auditor adds up."""
    paid = clipped().affording(int(mu**2 * NANO), gs_wgan.GsWgan(critics=_TEACHERS, visits=1, batch=_BATCH).releases)
    worst = torch.zeros(_BATCH, _D)
    worst[:, 0] = 8 * gs_wgan.CLIP

    def draw(present: bool, visits: int, secret: bytes) -> Scores:
        noise = SecureNoise.derive(secret, "gradients")
        gradients = (worst if present else -worst).repeat(visits, 1)
        released = gs_wgan.privatise_gradients(gradients, paid, noise)
        scores: Scores = released[:, 0].double().view(visits, _BATCH).sum(dim=1).numpy()
        return scores

    return Audited("GS-WGAN's visit", paid.event(_BATCH), draw)


GAMES: Mapping[str, Callable[[float], Audited]] = {
    "PATE-GAN": audited_labels,
    "G-PATE": audited_histogram,
    "GS-WGAN": audited_visits,
}
