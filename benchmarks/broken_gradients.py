"""Gradient estimators and samplers broken on purpose, one mistake each, which their audits must flag.

As in `broken_mechanisms`, each is a context in which production code runs with one piece replaced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.broken_mechanisms import half_the_noise, no_noise
from privacy.gradients import build, dpsgd, estimator, integers, rgp, topagg
from privacy.gradients.estimator import Estimator
from privacy.gradients.gep import Gep
from privacy.gradients.integers import Block, Part, Sums
from privacy.gradients.layers import Shares
from privacy.gradients.per_sample import Traces
from privacy.gradients.rgp import Rgp, carriers_of
from privacy.mechanisms import partition
from privacy.mechanisms.noise import SecureNoise
from workers.recipes import dp_diffusion as central_images
from workers.recipes import private_steps


def present(traces: Traces) -> int:
    """Return how many records there are in a pass, which is secret."""
    return traces.records if traces.present is None else int(traces.present.sum())


ESTIMATORS: tuple[type[Estimator], ...] = (dpsgd.DpSgd, topagg.TopAggSgd, Gep, Rgp)


@contextmanager
def unmeasured() -> Iterator[None]:
    """Add what units contribute whatever its length: production code would put zero for what is too long."""

    def as_it_is(blocks: Iterable[Block], _bound: float) -> Sums:
        return integers.exact_sums(blocks, 2.0**40)

    with ExitStack() as stack:
        for module in (estimator, dpsgd, rgp):
            stack.enter_context(mock.patch.object(module, "exact_sums", as_it_is))
        yield


@contextmanager
def no_clip() -> Iterator[None]:
    """Sum gradients, and images, as long as they are."""

    def as_they_are(self: Estimator, norms: torch.Tensor, clip: float, part: float = 1.0) -> torch.Tensor:
        return torch.full_like(norms, part * self.bound / clip, dtype=torch.float64)

    with (
        unmeasured(),
        mock.patch.object(Estimator, "scales", as_they_are),
        mock.patch.object(central_images.clipping, "clip_integer_rows", lambda rows, _norm_max: rows),
    ):
        yield


@contextmanager
def everything_kept() -> Iterator[None]:
    """Keep all coordinates, with the noise for a share of them."""
    with unmeasured(), mock.patch.object(topagg, "norm_top_k", lambda rows, *_: rows):
        yield


@contextmanager
def realised_batch() -> Iterator[None]:
    """Divide by the number of records that were drawn, which is secret."""
    drawn: dict[int, int] = {}

    def counted(add: Callable[..., None]) -> Callable[..., None]:
        def counting(self: Estimator, traces: Traces) -> None:
            drawn[id(self)] = drawn.get(id(self), 0) + present(traces)
            add(self, traces)

        return counting

    def divided(privatise: Callable[..., Shares]) -> Callable[..., Shares]:
        def dividing(self: Estimator, noise: SecureNoise) -> Shares:
            batch = max(drawn.pop(id(self), 0), 1)
            return {name: value * (self.expected_batch / batch) for name, value in privatise(self, noise).items()}

        return dividing

    with ExitStack() as stack:
        for kind in ESTIMATORS:
            stack.enter_context(mock.patch.object(kind, "add", counted(kind.add)))
            stack.enter_context(mock.patch.object(kind, "privatise", divided(kind.privatise)))
        yield


def one_batch_size() -> AbstractContextManager[object]:
    """Draw always the same number of units without replacement: one that is drawn takes the place of another."""

    def subset(units: int, probability: float, noise: SecureNoise) -> npt.NDArray[np.int64]:
        size = int(np.ceil(probability * units))
        return np.sort(np.argsort(noise.uniform(units))[:size])

    return mock.patch.object(partition, "poisson_sample", subset)


def first_in_line() -> AbstractContextManager[object]:
    """Take the units in the order of their upload, so that everyone knows in which batch a unit is."""

    def batch(units: int, probability: float, _noise: SecureNoise) -> npt.NDArray[np.int64]:
        return np.arange(int(np.ceil(probability * units)))

    return mock.patch.object(partition, "poisson_sample", batch)


def rows_by_themselves() -> AbstractContextManager[object]:
    """Clip each of a subject's records by itself."""
    trace = private_steps.trace_gradients

    def by_row(*arguments: Any, repeats: int, present: torch.Tensor | None) -> Traces:
        if present is None:  # public rows
            return trace(*arguments, repeats=repeats, present=None)
        return trace(*arguments, present=present.repeat_interleave(repeats))

    return mock.patch.object(private_steps, "trace_gradients", by_row)


def written(part: Part) -> torch.Tensor:
    """Return gradients (n, d) that may be outer products."""
    if isinstance(part, integers.Outer):
        return (part.left[:, :, None] * part.right[:, None, :]).flatten(1)
    return part.flatten(1)


@contextmanager
def private_basis() -> Iterator[None]:
    """Find GEP's basis and RGP's carriers with the help of the batch that they will project."""
    find_basis, add_embedded, add_carried = Gep.find_basis, Gep.add, Rgp.add
    public: dict[str, Part] = {}

    def found(self: Gep, anchors: Mapping[str, Part]) -> None:
        public.update(anchors)
        find_basis(self, anchors)

    def embedded(self: Gep, traces: Traces) -> None:
        both = {name: torch.cat([written(public[name]), written(own)]) for name, own in self.parts(traces).items()}
        find_basis(self, both)
        add_embedded(self, traces)

    def carried(self: Rgp, traces: Traces) -> None:
        for name, share in traces.shares().items():
            matrix = (self._start[name] + share.sum(dim=0)).flatten(1)
            self._carriers[name] = carriers_of(matrix, self.rank_in(matrix.shape), self._generator)
        add_carried(self, traces)

    with ExitStack() as stack:
        for kind, name, wrong in ((Gep, "find_basis", found), (Gep, "add", embedded), (Rgp, "add", carried)):
            stack.enter_context(mock.patch.object(kind, name, wrong))
        yield


@contextmanager
def private_ranks() -> Iterator[None]:
    """Rank coordinates for the freeze by the sums to which no noise has been added yet."""
    privatise, rank = Estimator._privatise_sums, build.ranked_mask
    private: list[torch.Tensor] = []

    def kept(self: Estimator, empty: Mapping[str, torch.Size], noise: SecureNoise) -> Shares:
        sums = [self._sums.get(name, torch.zeros(shape)).flatten().double() for name, shape in empty.items()]
        private[:] = [torch.cat(sums)]
        return privatise(self, empty, noise)

    def ranked(_released_mean: torch.Tensor, rate: float) -> torch.Tensor:
        return rank(private[0], rate)

    with mock.patch.object(Estimator, "_privatise_sums", kept), mock.patch.object(build, "ranked_mask", ranked):
        yield


BROKEN_GRADIENTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "correct": contextlib.nullcontext,
    "no noise": no_noise,
    "half the noise": half_the_noise,
    "no clip": no_clip,
    "everything kept": everything_kept,
    "realised batch": realised_batch,
    "one batch size": one_batch_size,
    "first in line": first_in_line,
    "rows by themselves": rows_by_themselves,
    "private basis": private_basis,
    "private ranks": private_ranks,
}
