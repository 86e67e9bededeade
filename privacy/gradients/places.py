"""Test whether this machine computes a record identically in every place of a batch, whatever the other places contain.

`privacy.gradients.arithmetic` assumes this. Everything here is public: records of a public stream, released weights,
other records drawn with a public seed, and the result.

Three passes are compared. In the first, a few records are mixed at random over all places. In the second, half of the
places contain these records except the first, and the rest contain other random records. In the third, all places
contain the first record. Each record is missing from at least one pass, which detects a machine on which the largest
record of a pass changes the rest. A layer's inputs, output gradients and parameter gradients must be equal to the last
bit in every place. The integers that an estimator adds for some places must be the sum of those for each record alone.
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
_SEED = 0  # public
_WEIGHT_SPREAD, _NUMBER_SPREAD = 0.3, 0.05  # perturbation: matrices (over root of inputs); others


@torch.no_grad()
def moved(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """Return a copy of a released network with every trainable number perturbed by public randomness.

    Gradients through layers that start at zero are zero, which would hide all earlier layers from the test.
    """
    moved_model = copy.deepcopy(model)
    for parameter in trainable(moved_model).values():
        inputs = parameter[0].numel()
        spread = _WEIGHT_SPREAD / math.sqrt(inputs) if parameter.dim() > 1 else _NUMBER_SPREAD
        parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter), alpha=spread)
    return moved_model


def trial_passes(size: int, records: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Yield three passes, each as the index (size,) of the record in every place.

    The first pass contains all compared records.
    """
    tried = min(_TRIED, size, records)
    yield torch.arange(size)[torch.randperm(size, generator=generator)] % tried
    beside = torch.randint(min(1, records - 1), records, (size,), generator=generator)
    mixed = torch.randint(min(1, tried - 1), tried, (size,), generator=generator)
    yield torch.where(torch.rand(size, generator=generator) < 0.5, mixed, beside)
    yield torch.zeros(size, dtype=torch.int64)


class Places:
    """The values that each record had in its first place, for comparison with all other places."""

    def __init__(self, first_pass: torch.Tensor) -> None:
        self.tried = int(first_pass.max()) + 1
        self.first = [int((first_pass == record).nonzero()[0]) for record in range(self.tried)]
        self._found: dict[str, torch.Tensor] = {}

    def alike(self, name: str, values: torch.Tensor, records: torch.Tensor) -> bool:
        """Return whether the values (size, ...) in all places of a pass equal those in the records' first places."""
        if name not in self._found:
            self._found[name] = values[self.first].clone()
        compared = records < self.tried
        found, expected = values[compared.to(values.device)], self._found[name][records[compared].to(values.device)]
        same = torch.equal(found, expected)  # faster than the comparison that allows NaN
        return same or bool(((found == expected) | ((found != found) & (expected != expected))).all())


def rows_alike(compute: Callable[[torch.Tensor], torch.Tensor], size: int, records: int) -> bool:
    """Return whether a function of rows computes each row identically in every place.

    Args:
        compute: indices (size,) of public records -> (size, ...).
    """
    places: Places | None = None
    for chosen in trial_passes(size, records, torch.Generator().manual_seed(_SEED)):
        places = places or Places(chosen)
        if not places.alike("", compute(chosen), chosen):
            return False
    return True


def places_alike(estimator: Estimator, trace: Callable[[torch.Tensor], Traces], size: int, records: int) -> bool:
    """Return whether a public record adds the same integers in every place of a pass.

    Args:
        estimator: in a step that has begun and is still empty.
        trace: indices (size,) of public records -> the traces of a pass.
    """
    generator = torch.Generator().manual_seed(_SEED)
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
            for name, value in _added(estimator, traces, present).items():
                expected = torch.zeros_like(value)
                for count, one in zip(times, alone, strict=True):
                    expected += count * one[name]
                if not torch.equal(value, expected):
                    return False
    return True


def _added(estimator: Estimator, traces: Traces, present: torch.Tensor) -> Sums:
    estimator.add(replace(traces, present=present.to(traces.layers[0].backprops.device)))
    return estimator.discard()


def _numbers(traces: Traces) -> Iterator[tuple[str, torch.Tensor]]:
    for layer in traces.layers:
        seen: Mapping[str, torch.Tensor] = {"in": layer.activations, "back": layer.backprops}
        for kind, values in seen.items():
            yield f"{kind} {layer.name}", values.reshape(traces.records, -1)
    for name, part in traces.parts().items():
        for factor, values in enumerate(part if isinstance(part, tuple) else (part,)):
            yield f"{factor} of {name}", values
