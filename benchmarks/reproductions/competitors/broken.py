"""The competitors broken on purpose, one mistake each: what the audits of `audited` must flag.

As in `broken_mechanisms`, each is a context in which the code runs with one piece replaced. Mistakes in a price must
hold already while the noise is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest import mock

from torch import Tensor

from benchmarks.reproductions.aggregators.gaussian import UNIT, ClippedSum
from benchmarks.reproductions.competitors import pate_gan
from benchmarks.reproductions.competitors.g_pate import HistogramVotes
from benchmarks.reproductions.competitors.gs_wgan import GsWgan


def votes_counted_twice() -> AbstractContextManager[object]:
    """Let PATE-GAN's teachers add -1 or 1 at the price of 0 or 1."""
    count = pate_gan.votes_for_real
    return mock.patch.object(pate_gan, "votes_for_real", lambda *arguments: 2 * count(*arguments))


def one_direction_paid() -> AbstractContextManager[object]:
    """Price G-PATE's histogram as if one direction were released."""
    return mock.patch.object(HistogramVotes, "sensitivity", property(lambda _self: 2**0.5))


def votes_for_two_bins() -> AbstractContextManager[object]:
    """Let G-PATE's teachers vote twice for each direction."""
    vote = HistogramVotes.shares
    return mock.patch.object(HistogramVotes, "shares", lambda self, g, seed: 2 * vote(self, g, seed))


def a_batch_is_one_release() -> AbstractContextManager[object]:
    """Price a batch as one release: what is wrong in published code of GS-WGAN."""
    return mock.patch.object(GsWgan, "releases", property(lambda self: self.visits))


def gradients_beyond_norm_one() -> AbstractContextManager[object]:
    """Noise the critic's gradients as long as they are."""

    def unclipped(self: ClippedSum, g: Tensor, _seed: int) -> Tensor:
        return (g * (UNIT / self.clip)).round().long()

    return mock.patch.object(ClippedSum, "shares", unclipped)


FAULTS: list[tuple[str, Callable[[], AbstractContextManager[object]]]] = [
    ("PATE-GAN", votes_counted_twice),
    ("G-PATE", one_direction_paid),
    ("G-PATE", votes_for_two_bins),
    ("GS-WGAN", a_batch_is_one_release),
    ("GS-WGAN", gradients_beyond_norm_one),
]
