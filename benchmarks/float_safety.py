"""How far neighbours' sums of gradients are apart, as they are added: in clips, over estimators, units and clips.

Run `python -m benchmarks.float_safety --json FILE`. A step of the recipes takes every unit (q = 1) of two collections
that differ in one. The sums before noise are compared. The one unit stands before, amid or behind the others, so that
most of them move to another place of a pass. Three kinds of collections: random units; all alike; and two kinds, a
little shorter than the clip, in turns of 128. Running sums of the last in float32 drift apart as soon as a unit more
shifts the turns. Sums are integers, and so are distances, up to the root.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.results import Results, Row, machine, parser_of, show
from benchmarks.runs import NoLedger
from privacy.accounting.events import PoissonGaussianEvent
from privacy.gradients.build import build_estimator, random_mask
from privacy.gradients.estimator import Curator
from privacy.gradients.per_sample import trace_gradients
from privacy.mechanisms.noise import SecureNoise
from privacy.mechanisms.partition import NOBODY
from privacy.plans.private_steps import ESTIMATORS, FreezeSchedule, StepsConfig
from workers.recipes.interface import TrustedCurator
from workers.recipes.private_steps import PrivateSteps, Task

FROZEN = "dpsgd, half frozen"
CONTESTANTS = (*ESTIMATORS, FROZEN)
COLLECTIONS = ("random", "alike", "drifting")
CLIPS = (1e-6, 1e-3, 1.0, 10.0)
UNITS = (1_000, 60_032, 1_000_000)
_POOL = 1024  # records that units are taken from
_TURN, _APART = 128, 8e-5  # units of a turn, and how much longer those of the next one are
_THOROUGH = 10_000  # units up to which a unit more is tried in every place, and not before the others alone
_LARGE = 100_000  # units from which on the worst collection is tried with the ends of the clips alone
Units = npt.NDArray[np.int64]


def network() -> nn.Module:
    """A convolution, a normalisation and a linear layer: each rule for gradients by record, as small as can be."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(8, 3))


def losses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Squared errors of the first three targets, times the last: so long is a record's gradient."""
    return targets[:, 3] * (outputs - targets[:, :3]).square().sum(dim=1)


def pool(kind: str, clip: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the records that units are taken from: images and targets, and one more for empty places."""
    stream = torch.Generator().manual_seed(1)
    images, targets = torch.randn(_POOL + 1, 1, 4, 4, generator=stream), torch.randn(_POOL + 1, 4, generator=stream)
    targets[:, 3] = 1e3  # far beyond every clip
    if kind == "drifting":
        images[1], targets[1] = images[0], targets[0]
        traces = trace_gradients(network(), losses, images[:1], targets[:1])
        length = torch.cat([share.flatten() for share in traces.shares().values()]).norm()
        targets[:2, 3] *= 0.99 * clip / length * torch.tensor([1.0, 1.0 + _APART])
    return images, targets


class Keeper(Curator):
    """Keeps the sum of a step, and adds no noise to it."""

    kept: torch.Tensor

    def privatise(self, private_sum: torch.Tensor, add_noise: object) -> torch.Tensor:  # noqa: ARG002 - the protocol's
        self.kept = private_sum
        return private_sum


def step_sums(contestant: str, clip: float, units: Units, kind: str = "random") -> torch.Tensor:
    """Return what one step adds noise to.

    Returns:
        (d,) int64; a unit's part has norm `bound` at most, see `distance`.
    """
    images, targets = pool(kind, clip)
    model = network()
    config = StepsConfig(
        estimator="dpsgd" if contestant == FROZEN else contestant,
        clip=clip,
        clip_residual=clip,
        basis_size=6,
        rank=1,
        learning_rate=1e-6,
    )
    keeper = Keeper()
    estimator = build_estimator(
        config,
        model,
        noise_multiplier=1.0,
        expected_batch=len(units),
        steps=1,
        anchors=lambda network, _stream: trace_gradients(network, losses, images[:64], targets[:64]),
        curator=keeper,
    )
    if contestant == FROZEN:
        estimator.freeze(random_mask(estimator.coordinates, 0.5, torch.Generator().manual_seed(0)))

    def rows(drawn: Units, _coins: SecureNoise) -> tuple[torch.Tensor, torch.Tensor]:
        record = torch.from_numpy(np.where(drawn == NOBODY, _POOL, units[drawn]))
        return images[record], targets[record]

    task = Task(model, losses, rows, lambda _stream: (images, targets), len(units))
    means = TrustedCurator(budget=NoLedger(), secret=bytes(32))
    steps = PrivateSteps(task, config, PoissonGaussianEvent(1.0, 1.0), FreezeSchedule(0.0), estimator, means)
    steps.step()
    return keeper.kept


def distance(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the L2 distance of two sums in steps of the grid, from its exact square."""
    return math.sqrt(sum(int(step) ** 2 for step in (first - second).tolist()))


def collection(kind: str, units: int) -> Units:
    """Return which record each unit has."""
    place = np.arange(units)
    return {"random": place % (_POOL - 1), "alike": 0 * place, "drifting": place // _TURN % 2}[kind]


def neighbours(units: Units) -> Sequence[Units]:
    """Return collections with one unit more, whose record is another."""
    places = (0, len(units) // 2 + 1, len(units)) if len(units) <= _THOROUGH else (0,)
    return [np.insert(units, place, _POOL - 1) for place in places]


def measure(contestant: str, units: int, clip: float) -> Row:
    """Return one row: the worst distance over collections and neighbours."""
    bound, worst = 2.0**30, 0.0  # of so little noise
    for kind in COLLECTIONS if units < _LARGE else ("drifting",):
        base = collection(kind, units)
        sums = step_sums(contestant, clip, base, kind)
        for one in neighbours(base):
            worst = max(worst, distance(sums, step_sums(contestant, clip, one, kind)) / bound)
    return {"estimator": contestant, "units": units, "clip": clip, "distance": worst}


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--units", type=int, nargs="+", default=UNITS)
    parser.add_argument("--clips", type=float, nargs="+", default=CLIPS)
    parser.add_argument("--estimators", nargs="+", default=CONTESTANTS, choices=CONTESTANTS)
    options = parser.parse_args(arguments)
    results = Results(options.json, **machine())
    for units in options.units:
        for contestant in options.estimators:
            for clip in options.clips if units < _LARGE else sorted({min(options.clips), max(options.clips)}):
                if results.find(estimator=contestant, units=units, clip=clip) is None:
                    results.put(measure(contestant, units, clip))
    show(results.rows, ("estimator", "units", "clip", "distance:.6f"))
    print(f"worst: {max(row['distance'] for row in results.rows):.6f}")


if __name__ == "__main__":
    main()
