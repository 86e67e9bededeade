"""How the toy is trained."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privacy.plans.plan import Plan, PublicFacts
from workers.recipes.class_histogram import ClassHistogram
from workers.recipes.interface import Piece, Run


@dataclass(frozen=True)
class Sums:
    sums: tuple[int, ...]
    stddev: float
    units_declared: int

    def save(self, directory: Path) -> None:
        """Write them as what can be published, a histogram."""
        rounds = tuple(f"round {number}" for number in range(len(self.sums)))
        ClassHistogram(rounds, self.sums, self.stddev, self.units_declared).save(directory)


def train(run: Run) -> Sums:
    (stage,) = run.plan.stages
    run.pay(stage.event, stage.name)
    stddev = run.plan.noise_stddev["sums"]
    noise = run.noise("sums").discrete_gaussian(stage.event.count, stddev)
    sums = tuple((len(run.data.private_labels) + noise).tolist())
    return Sums(sums, stddev, run.facts.units_declared)


def work(plan: Plan, _facts: PublicFacts) -> tuple[Piece, ...]:
    config: Any = plan.config
    return (Piece("sums", config.rounds, float(config.rounds)),)
