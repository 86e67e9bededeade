"""Trying whether this machine computes a record alike in every place of a pass, whoever stands in the others.

That is what `privacy.gradients.arithmetic` assumes. Everything here is public: records of a public stream, released
weights, and neighbours drawn at random from a public seed. So is the answer, and what follows from it.

Three passes are compared: of a few records, mixed at random over all places; of all of these but the first, in half of
the places beside random others; and of the first alone in all places. Each record is missing from one pass at least, so
a machine that lets the largest of a pass change the rest is found, whichever that is. What a layer saw of a record,
what came back and the gradient made of both have to be equal to the last bit, in every place. So has what an estimator
adds: integers of some places together have to be the sum of those that their records add from one place.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import nn

from privacy.gradients.estimator import Estimator
from privacy.gradients.integers import Sums
from privacy.gradients.per_sample import Traces, trainable

_TRIED = 4  # records that are compared
_WEIGHT_SPREAD, _NUMBER_SPREAD = 0.3, 0.05  # of moves: of a matrix, times the root of its inputs; of biases and norms


@torch.no_grad()
def moved(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """Return a copy of a network whose every trainable number is moved at random, so that every tensor gets a gradient.

    Layers that start at zero hide all that stands before them from a trial: gradients through them are zero.

    Args:
        model: released, or not yet trained.
        generator: public randomness.
    """
    moved_model = copy.deepcopy(model)
    for parameter in trainable(moved_model).values():
        inputs = parameter[0].numel()
        spread = _WEIGHT_SPREAD / math.sqrt(inputs) if parameter.dim() > 1 else _NUMBER_SPREAD
        parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter), alpha=spread)
    return moved_model


def trial_passes(size: int, records: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Yield the passes of a trial: which record stands in each place, (size,); the first has all that are compared.

    Args:
        size: of a pass.
        records: how many public records there are, at least one.
        generator: public randomness.
    """
    tried = min(_TRIED, size, records)
    yield torch.arange(size)[torch.randperm(size, generator=generator)] % tried
    beside = torch.randint(min(1, records - 1), records, (size,), generator=generator)
    mixed = torch.randint(min(1, tried - 1), tried, (size,), generator=generator)
    yield torch.where(torch.rand(size, generator=generator) < 0.5, mixed, beside)
    yield torch.zeros(size, dtype=torch.int64)


class Places:
    """What was found of each record in its first place, with which all other places are compared."""

    def __init__(self, first_pass: torch.Tensor) -> None:
        self.tried = int(first_pass.max()) + 1
        self.first = [int((first_pass == record).nonzero()[0]) for record in range(self.tried)]
        self._found: dict[str, torch.Tensor] = {}

    def alike(self, name: str, values: torch.Tensor, records: torch.Tensor) -> bool:
        """Tell whether numbers (size, ...) of a pass's places are those that were found of these records first."""
        if name not in self._found:
            self._found[name] = values[self.first].clone()
        compared = records < self.tried
        found, expected = values[compared.to(values.device)], self._found[name][records[compared].to(values.device)]
        same = torch.equal(found, expected)  # quicker than what asks whether the others are no numbers
        return same or bool(((found == expected) | ((found != found) & (expected != expected))).all())


def rows_alike(compute: Callable[[torch.Tensor], torch.Tensor], size: int, records: int) -> bool:
    """Tell whether a function of rows computes each row alike in every place, whoever stands in the others.

    Args:
        compute: takes (size,) numbers of public records, and returns what is computed of them, (size, ...).
        size: of a block.
        records: how many public records there are.
    """
    places: Places | None = None
    for chosen in trial_passes(size, records, _public_generator()):
        places = places or Places(chosen)
        if not places.alike("", compute(chosen), chosen):
            return False
    return True


def places_alike(estimator: Estimator, trace: Callable[[torch.Tensor], Traces], size: int, records: int) -> bool:
    """Tell whether a public record adds the same in every place of a pass, whoever stands in the others.

    Args:
        estimator: in a step that has begun, to which nothing was added yet.
        trace: takes (size,) numbers of public records, and returns the traces of a pass with these.
        size: of a pass.
        records: how many public records there are.
    """
    generator = _public_generator()
    places: Places | None = None
    alone: list[Sums] = []
    for chosen in trial_passes(size, records, generator):
        traces = trace(chosen)
        places = places or Places(chosen)
        if not all(places.alike(name, values, chosen) for name, values in _numbers(traces)):
            return False
        alone = alone or [_added(estimator, traces, torch.arange(size) == place) for place in places.first]
        half = torch.rand(size, generator=generator) < 0.5
        for some in (half, ~half):
            present = some & (chosen < places.tried)
            times = [int((present & (chosen == record)).sum()) for record in range(places.tried)]
            if not _is_sum(_added(estimator, traces, present), alone, times):
                return False
    return True


def _public_generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _added(estimator: Estimator, traces: Traces, present: torch.Tensor) -> Sums:
    estimator.add(replace(traces, present=present.to(traces.layers[0].backprops.device)))
    return estimator.discard()


def _is_sum(found: Sums, alone: list[Sums], times: list[int]) -> bool:
    """Tell whether integers are so many times those of each record together; all sums have the same names."""
    return all(
        torch.equal(value, sum((n * one[name] for n, one in zip(times, alone, strict=True)), torch.zeros_like(value)))
        for name, value in found.items()
    )


def _numbers(traces: Traces) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what a pass left behind of each record, (n, ...) by name."""
    for layer in traces.layers:
        seen: Mapping[str, torch.Tensor] = {"in": layer.activations, "back": layer.backprops}
        for kind, values in seen.items():
            yield f"{kind} {layer.name}", values.reshape(traces.records, -1)
    for name, part in traces.parts().items():
        for factor, values in enumerate(part if isinstance(part, tuple) else (part,)):
            yield f"{factor} of {name}", values
