"""DataLens as a job of the service learns Fashion-MNIST: what its images are worth, preset by preset.

Run `python -m benchmarks.datalens_loop --json FILE`. Every row trains on all training images by the service's recipe
`datalens`, with a fresh secret for each seed, draws synthetic images, trains the small CNN on them to the last step and
tests it once on the test images. Settings were chosen on held-out training images (docs/research). Rows are written as
they are finished; a file that already has a row of the same settings keeps it, so that a run which was cut off goes on.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.budgets import CountedBudget
from benchmarks.datalens_utility import measure
from benchmarks.small_data import SETS, Folder, facts_of
from models.released import ReleasedGenerator
from privacy.accounting.filter import open_filter
from privacy.plans.datalens.options import DataLensConfig
from privacy.plans.datalens.plan import VOTES
from privacy.plans.plan import Plan
from privacy.plans.registry import build_plan
from workers.recipes.interface import Run, TrainingData
from workers.recipes.registry import TRAINERS

DELTA, SAMPLES, SEEDS = 1e-5, 10_000, 3
PUBLISHED: Mapping[float, float] = {1.0: 0.6478, 10.0: 0.7061}  # accuracy on Fashion-MNIST (Wang et al. 2021)
PRESETS = ("published", "kernel", "default")


def plan_of(folder: Folder, preset: str, epsilon: float, **options: Any) -> Plan:
    """Plan a training that takes all of a budget."""
    account = open_filter(epsilon, DELTA)
    asked = {"preset": preset, **options}
    return build_plan("datalens", asked, account, account.capacity_nano, facts_of(folder))


def train(folder: Folder, plan: Plan) -> ReleasedGenerator:
    """Train once by the service's recipe, with a fresh secret.

    Raises:
        RuntimeError: it released something else than its plan says.
    """
    facts, budget = facts_of(folder), CountedBudget()
    data = TrainingData(folder.images, folder.labels, facts.classes)
    run = Run(plan=plan, facts=facts, data=data, budget=budget, secret=secrets.token_bytes(32))
    generator: ReleasedGenerator = TRAINERS["datalens"](run)  # type: ignore[assignment]  # it publishes a generator
    if budget.releases != {stage.name: stage.event.count for stage in plan.stages}:
        raise RuntimeError("a training released something else than its plan says")
    return generator


def row_of(folder: Folder, plan: Plan, preset: str, epsilon: float, seeds: int, samples: int) -> dict[str, Any]:
    """Train and measure once for each seed; return a row."""
    accuracies, seconds = [], []
    for seed in range(seeds):
        started = time.monotonic()
        generator = train(folder, plan)
        seconds.append(time.monotonic() - started)
        found = measure(folder, generator.sample, samples, seed, torch.device("cpu"), ("cnn",))
        accuracies.append(found["cnn"])
        print(f"  {preset} epsilon {epsilon:g} seed {seed}: {accuracies[-1]:.4f} ({seconds[-1]:.0f} s)", flush=True)
    votes = plan.stage(VOTES)
    return {
        "recipe": "datalens",
        "preset": preset,
        "teachers": plan.config_of(DataLensConfig).teachers,
        "epsilon": epsilon,
        "seeds": seeds,
        "accuracy": statistics.mean(accuracies),
        "sd": statistics.stdev(accuracies) if seeds > 1 else None,
        "accuracies": accuracies,
        "published": PUBLISHED.get(epsilon),
        "seconds": round(statistics.mean(seconds), 1),
        "images_aggregated": 0 if votes is None else votes.event.count,
        "samples": samples,
        "delta": DELTA,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what a file has no row of yet."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--dataset", choices=sorted(SETS), default="fashion")
    parser.add_argument("--preset", choices=PRESETS, action="append")
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    asked = parser.parse_args(arguments)
    rows = json.loads(asked.json.read_text()) if asked.json.exists() else []
    done = {(row["dataset"], row["preset"], row["epsilon"], row["seeds"], row["samples"]) for row in rows}
    folder = SETS[asked.dataset]()
    for epsilon in asked.epsilon or PUBLISHED:
        for preset in asked.preset or PRESETS:
            if (asked.dataset, preset, epsilon, asked.seeds, asked.samples) in done:
                continue
            plan = plan_of(folder, preset, epsilon)
            row = row_of(folder, plan, preset, epsilon, asked.seeds, asked.samples)
            rows.append({"dataset": asked.dataset, **row})
            asked.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
