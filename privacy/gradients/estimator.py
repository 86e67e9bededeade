"""The base of gradient estimators: shapes, frozen coordinates, and steps made of micro-batches.

A step is: `begin_step` (public work only), one `add` for each micro-batch of a Poisson sample (none if the sample is
empty), a charge, and one `privatise`. Only `add` reads private gradients; only `privatise` releases.

A unit adds a vector of integers of norm at most `bound`, and sums are exact (`privacy.gradients.integers`). So an
estimator only defines which vector it scales to which norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NotRequired, TypedDict

import torch
from torch import nn

from privacy.accounting.events import positive_finite
from privacy.errors import InvalidParameter
from privacy.gradients.integers import ROOM, Outer, Part, Sums, exact_sums, grid_bits, noisy_sum, parted
from privacy.gradients.layers import Shares
from privacy.gradients.per_sample import Traces, trainable
from privacy.mechanisms.noise import SecureNoise

# Numbers of per-record gradients written out together; on a CPU, as many as fit into its cache.
_BLOCK_NUMBERS = {"cpu": 2**19}
_BLOCK_NUMBERS_ELSEWHERE = 2**26


class Curator:
    """Add the noise to a step's sums, for a process that trains alone.

    Override both methods if several processes share a training, each with the sums of some of the records.
    """

    def privatise(self, private_sum: torch.Tensor, add_noise: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Add up the sums of all processes, call `add_noise` once on the total, and return its result."""
        return add_noise(private_sum)

    def agree(self, public: torch.Tensor) -> torch.Tensor:
        """Return one process's tensor on all processes, because the same computation may round differently on each."""
        return public


class Common(TypedDict):
    """Parameters of every estimator; see `Estimator`."""

    noise_multiplier: float
    expected_batch: float
    curator: NotRequired[Curator | None]


class Estimator:
    """Privatise the mean gradient of a batch. A subclass defines `contributions`, or both `add` and `privatise`.

    Args:
        shapes: of the trainable parameters by name, in the network's order.
        noise_multiplier: standard deviation of the noise over the sensitivity. Public.
        expected_batch: sampling probability times the declared number of units. Public: sums are divided by this
            number, never by the size of a batch.
        curator: adds the noise, and makes public tensors equal on all processes; None: this process trains alone.

    Attributes:
        sensitivity: largest L2 change of the sum when one unit is added to the sample. Each estimator's module has the
            proof.
        bound: the sensitivity in steps of the grid, which is the largest norm of a unit's integers.
        coordinates: number d of coordinates of a gradient.
        active: mask (d,) bool of coordinates that are not frozen; None: all.
        active_sizes: number of coordinates of each parameter that are not frozen, by name.
        active_coordinates: number d_active of all coordinates that are not frozen.
    """

    sensitivity: float
    blocks_together = 1  # blocks of records written out at once

    def __init__(
        self,
        shapes: Mapping[str, torch.Size],
        *,
        noise_multiplier: float,
        expected_batch: float,
        curator: Curator | None = None,
    ) -> None:
        if not shapes:
            raise InvalidParameter("shapes", {}, "an estimator needs at least one trainable parameter")
        self.shapes = dict(shapes)
        self.coordinates = sum(math.prod(shape) for shape in self.shapes.values())
        self.noise_multiplier = positive_finite("noise_multiplier", noise_multiplier)
        self.expected_batch = positive_finite("expected_batch", expected_batch)
        self.bound = 2.0 ** grid_bits(noise_multiplier)
        self.curator = curator or Curator()
        self._sums: Sums = {}
        self.freeze(None)

    def freeze(self, active: torch.Tensor | None) -> None:
        """Freeze the coordinates where the mask (d,) bool is False; None thaws all. The mask must be public.

        Raises:
            InvalidParameter: the mask has another size or no active coordinate, or a step has begun.
        """
        if self._sums:
            raise InvalidParameter("active", "(mask)", "a mask cannot change within a step")
        if active is not None and (active.shape != (self.coordinates,) or not bool(active.any())):
            raise InvalidParameter("active", tuple(active.shape), f"give {self.coordinates} booleans, not all False")
        self.active, self.active_sizes, start = active, dict[str, int](), 0
        self._chosen: dict[str, torch.Tensor | None] = {}  # indices of each parameter's active coordinates; None: all
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            chosen = None if active is None else active[start : start + size].nonzero()[:, 0]
            self._chosen[name], self.active_sizes[name] = chosen, size if chosen is None else len(chosen)
            start += size
        self.active_coordinates = sum(self.active_sizes.values())

    def begin_step(self, model: nn.Module) -> None:
        """Prepare a step from public data and released history only."""

    def add(self, traces: Traces) -> None:
        """Add a micro-batch of the sample's records. A record whose gradient is not finite contributes zero.

        Raises:
            InvalidParameter: too many records at once for exact sums, or `begin_step` was not called.
        """
        blocks = ((self.contributions(self.rows(block)), block.present) for block in self.blocks(traces))
        self._add_sums(exact_sums(blocks, self.bound))

    def contributions(self, rows: torch.Tensor) -> Mapping[str, Part]:
        """Turn gradients (n, d_active) into integers, in named parts, in place. PRIVATE.

        The joint norm of a unit's parts is at most `bound`.
        """
        raise NotImplementedError

    def privatise(self, noise: SecureNoise) -> Shares:
        """End the step, and return the noisy mean gradient by parameter name, zero where frozen. Charge first."""
        flat = self._privatise_sums({"": torch.Size([self.active_coordinates])}, noise)[""]
        return self.unflatten(flat / self.expected_batch)

    def rows(self, traces: Traces) -> torch.Tensor:
        """Return the records' gradients on the active coordinates: (n, d_active). PRIVATE."""
        parts = traces.parts()
        found = traces.layers[0].backprops.new_empty(traces.records, self.active_coordinates)
        places = torch.split(found, list(self.active_sizes.values()), dim=1)
        for (name, shape), place in zip(self.shapes.items(), places, strict=True):
            part, chosen = parts.get(name), self._chosen[name]
            if part is None:
                place.zero_()
            elif not isinstance(part, Outer):
                place.copy_(part.flatten(1) if chosen is None else part.flatten(1)[:, chosen])
            elif chosen is None:
                torch.mul(part.left[:, :, None], part.right[:, None, :], out=place.view(-1, *shape))
            else:
                torch.mul(part.left[:, chosen // shape[1]], part.right[:, chosen % shape[1]], out=place)
        return found

    def parts(self, traces: Traces) -> dict[str, Part]:
        """Return the records' gradients by parameter name, active coordinates only, some as outer products. PRIVATE."""
        if self.active is None:
            parts = traces.parts()
            return {name: parts[name] if name in parts else traces.zeros(n) for name, n in self.active_sizes.items()}
        rows = torch.split(self.rows(traces), list(self.active_sizes.values()), dim=1)
        return dict(zip(self.shapes, rows, strict=True))

    def blocks(self, traces: Traces) -> Iterator[Traces]:
        """Yield traces of a few records: `blocks_together` times the number that fits into a cache. PRIVATE."""
        numbers = _BLOCK_NUMBERS.get(traces.layers[0].backprops.device.type, _BLOCK_NUMBERS_ELSEWHERE)
        return traces.split(max(1, self.blocks_together * numbers // self.coordinates))

    def scales(self, norms: torch.Tensor, clip: float, part: float = 1.0) -> torch.Tensor:
        """Return factors (n,) float64 that scale every norm of at least `clip` to `part * bound`.

        Args:
            norms: (n,) of the units' gradients. Private. If not finite, the unit contributes zero.
            clip: largest norm that is not clipped. Smaller norms are scaled by the same factor as this norm. Public.
            part: share of `bound` that the norm of the scaled integers may reach. Public.
        """
        return part * self.bound * (1 - ROOM) / norms.double().clamp(min=clip)

    def unflatten(self, flat: torch.Tensor) -> Shares:
        """Return a vector (d_active,) by parameter name, with zeros on frozen coordinates."""
        if self.active is not None:
            whole = torch.zeros(self.coordinates, dtype=flat.dtype, device=flat.device)
            whole[self.active] = flat
            flat = whole
        return parted(flat, self.shapes)

    def state(self) -> dict[str, Any]:
        """Return public tensors and numbers from which a later process resumes between two steps."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a result of `state`."""

    def discard(self) -> Sums:
        """Return and discard the sums added since the step began, because a charge was refused. PRIVATE."""
        sums, self._sums = self._sums, {}
        return sums

    def _add_sums(self, sums: Sums) -> None:
        for name, value in sums.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def _privatise_sums(self, empty: Mapping[str, torch.Size], noise: SecureNoise) -> Shares:
        """Add noise to the sums, and convert grid steps to gradients. `empty` has the shape of each part by name."""
        sums = [self._sums[name] if name in self._sums else self._nothing(shape) for name, shape in empty.items()]
        self._sums = {}
        add_noise = partial(noisy_sum, bound=self.bound, noise_multiplier=self.noise_multiplier, noise=noise)
        released = self.curator.privatise(torch.cat([value.reshape(-1) for value in sums]), add_noise)
        return parted((released.double() * (self.sensitivity / self.bound)).float(), empty)

    def _nothing(self, shape: torch.Size) -> torch.Tensor:
        beside = (self.active, *self._sums.values())
        return torch.zeros(shape, dtype=torch.int64, device=next((v.device for v in beside if v is not None), None))


def shapes_of(model: nn.Module) -> dict[str, torch.Size]:
    """Return the shapes of a network's trainable parameters, by name."""
    return {name: parameter.shape for name, parameter in trainable(model).items()}
