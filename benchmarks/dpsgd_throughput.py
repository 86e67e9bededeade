"""Cost of a private step over one without privacy, on one machine in one run.

Run `python -m benchmarks.dpsgd_throughput --json FILE`. A step is forward, backward, clipping, noise and update of a
two-convolution network with group normalisation. Private steps are those of the recipes, whole: a Poisson sample of 256
expected units out of 60,000, in passes of one size. Contestants take turns, each judged by its median processor time
(the clock's on a GPU), on one thread.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.results import machine, parser_of, show, write_json
from benchmarks.runs import NoLedger
from privacy.accounting.events import PoissonGaussianEvent
from privacy.gradients.build import random_mask
from privacy.gradients.dpsgd import DpSgd
from privacy.gradients.estimator import Estimator, shapes_of
from privacy.gradients.gep import Gep
from privacy.gradients.per_sample import trace_gradients
from privacy.gradients.topagg import TopAggSgd
from privacy.mechanisms.noise import SecureNoise
from privacy.mechanisms.partition import NOBODY
from privacy.plans.private_steps import FreezeSchedule, StepsConfig
from workers.recipes.interface import TrustedCurator
from workers.recipes.private_steps import PrivateSteps, Task
from workers.train.process import keep_freed_memory

BATCH = 256
UNITS = 60_000
ANCHORS = 256
BASIS = 200
FREEZE_RATE = 0.7
Step = Callable[[], None]


def network() -> nn.Module:
    """The network of every contestant: about 107,000 parameters, started alike."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def losses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of every row."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def batch(n: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Random images: a step costs the same whatever they show."""
    return torch.rand(n, 1, 28, 28, device=device), torch.randint(0, 10, (n,), device=device)


def nonprivate(device: torch.device) -> Step:
    """A step without privacy."""
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, targets = batch(BATCH, device)

    def step() -> None:
        optimizer.zero_grad()
        losses(model(inputs), targets).mean().backward()
        optimizer.step()

    return step


def private(make: Callable[[nn.Module], Estimator], device: torch.device, frozen: bool = False) -> Step:
    """A step of the recipes with one of our estimators."""
    model = network().to(device)
    images, labels = (torch.cat([rows, torch.zeros_like(rows[:1])]) for rows in batch(BATCH, device))
    estimator = make(model)
    if frozen:
        estimator.freeze(random_mask(estimator.coordinates, FREEZE_RATE, torch.Generator().manual_seed(0)).to(device))

    def rows(units: npt.NDArray[np.int64], _coins: SecureNoise) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.from_numpy(np.where(units == NOBODY, BATCH, units % BATCH)).to(device)
        return images[chosen], labels[chosen]

    config, event = StepsConfig(learning_rate=0.1, momentum=0.9), PoissonGaussianEvent(BATCH / UNITS, 1.0)
    task = Task(model, losses, rows, lambda _stream: batch(BATCH, device), UNITS)
    means = TrustedCurator(budget=NoLedger(), secret=b"a benchmark's noise is no secret", device=device)
    return PrivateSteps(task, config, event, FreezeSchedule(0.0), estimator, means).step


def dpsgd(model: nn.Module) -> Estimator:
    """Plain DP-SGD."""
    return DpSgd(shapes_of(model), clip=1.0, noise_multiplier=1.0, expected_batch=BATCH)


def topagg(model: nn.Module) -> Estimator:
    """TopAgg-SGD, which needs every record's gradient written out."""
    return TopAggSgd(shapes_of(model), clip=1.0, keep=0.8, noise_multiplier=1.0, expected_batch=BATCH)


def gep(model: nn.Module) -> Gep:
    """GEP with a basis of 200 from 256 public anchors."""
    device = next(model.parameters()).device
    anchor_images, anchor_labels = batch(ANCHORS, device)
    return Gep(
        shapes_of(model),
        lambda network, _stream: trace_gradients(network, losses, anchor_images, anchor_labels),
        basis_size=BASIS,
        clip=1.0,
        clip_residual=0.5,
        noise_multiplier=1.0,
        expected_batch=BATCH,
    )


def medians(
    steps: dict[str, Step], rounds: int, device: torch.device, seconds_max: float = math.inf
) -> tuple[dict[str, float], int]:
    """Seconds of a step of each contestant, which take turns, and the rounds that were made in the time given.

    Of the processor: other work of the machine changes them little. Of the clock where a GPU computes.
    """
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    began = time.perf_counter()
    for turn in range(rounds + 2):
        if turn > 2 and time.perf_counter() - began > seconds_max:
            break
        for name, step in steps.items():
            if device.type == "cuda":
                torch.cuda.synchronize()
            started = clock()
            step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn >= 2:
                seconds[name].append(clock() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}, len(seconds["nonprivate"])


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=120.0, help="begin no round after so long")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    keep_freed_memory()  # as training processes do
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    steps: dict[str, Step] = {
        "nonprivate": nonprivate(device),
        "dpsgd": private(dpsgd, device),
        "topagg": private(topagg, device),
        "gep": private(gep, device),
        "gep_frozen": private(gep, device, frozen=True),
    }
    found, rounds = medians(steps, options.rounds, device, options.seconds)
    rows = [{"step": name, "ms": 1e3 * s, "over_nonprivate": s / found["nonprivate"]} for name, s in found.items()]
    show(rows, ("step", "ms:.1f", "over_nonprivate:.2f"))
    facts = {"batch": BATCH, "rounds": rounds, "device": device.type}
    write_json(options.json, machine() | facts | {"rows": rows})


if __name__ == "__main__":
    main()
