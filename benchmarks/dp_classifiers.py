"""Classifiers trained with differential privacy on Fashion-MNIST by every estimator; `reproductions.orders` compares.

Run `python -m benchmarks.dp_classifiers --json FILE`. Every run trains the recipe `dp_classifier` on 60,000 training
images with a fresh secret and tests the last weights once on the 10,000 test images. Learning rates were chosen with
`--search`, which trains on 50,000 training images and tests on the other 10,000. Runs are written as they are finished;
a file that already has a run keeps it, so that a run which was cut off goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.classifier_runs import DELTA, accuracy, trained, tuning
from benchmarks.openclipart import load_clipart
from benchmarks.small_data import Folder, facts_of, fashion
from privacy.accounting.filter import open_filter
from privacy.plans.registry import build_plan

EPSILON = 3.0
HELD_OUT = 10_000
_CNN: dict[str, Any] = {"architecture": "cnn", "expected_batch": 512, "epochs": 3.0, "clip": 1.0, "momentum": 0.0}
_GEP: dict[str, Any] = {
    "anchors_dataset_id": "openclipart",
    "anchors": 200,
    "basis_size": 100,
    "clip_residual": 1.0,
    "learning_rate": 4.0,
}
_GEP_TRIES = (
    {"clip_residual": 0.5},
    {"clip_residual": 0.5, "learning_rate": 8.0},
    {"clip_residual": 1.0},
    {"clip_residual": 1.0, "learning_rate": 8.0},
    {"clip_residual": 2.0},
)
_FROZEN: dict[str, Any] = {"freeze": "random", "freeze_rate": 0.7, "freeze_cooling": 0.65}


@dataclasses.dataclass(frozen=True)
class Row:
    """One way to train, and the options that are tried for it in the search."""

    name: str
    options: dict[str, Any]
    tries: tuple[dict[str, Any], ...] = ()


def _rates(*rates: float) -> tuple[dict[str, Any], ...]:
    return tuple({"learning_rate": rate} for rate in rates)


ROWS = (
    Row("scatter_linear", {"preset": "default", "learning_rate": 12.0}, _rates(4.0, 12.0)),
    Row("dpsgd", {**_CNN, "estimator": "dpsgd", "learning_rate": 4.0}, _rates(1.0, 2.0, 4.0, 8.0)),
    Row("dpsgd, C=0.1, momentum 0.9", {**_CNN, "clip": 0.1, "momentum": 0.9, "learning_rate": 4.0}),
    Row("topagg, k=0.8", {**_CNN, "estimator": "topagg", "learning_rate": 4.0}, _rates(4.0, 8.0)),
    Row("random freeze", {**_CNN, **_FROZEN, "learning_rate": 4.0}),
    Row("gep", {**_CNN, **_GEP, "estimator": "gep"}, _GEP_TRIES),
    Row("bgep", {**_CNN, **_GEP, "estimator": "bgep"}, _rates(4.0, 8.0)),
    Row("rgp, rank 8", {**_CNN, "estimator": "rgp", "learning_rate": 4.0}, _rates(4.0, 8.0)),
    Row("rgp_random, rank 8", {**_CNN, "estimator": "rgp_random", "learning_rate": 4.0}),
)


def accuracy_of(options: dict[str, Any], folder: Folder, seed: int, epsilon: float = EPSILON) -> float:
    """Train one classifier and return the accuracy of its last weights on the test images."""
    account = open_filter(epsilon, DELTA)
    anchors = load_clipart(options["anchors"], 28) if "anchors_dataset_id" in options else None
    chosen = {**options, "initial_seed": seed}
    plan = build_plan("dp_classifier", chosen, account, account.capacity_nano, facts_of(folder))
    return accuracy(trained(folder, plan, anchors), folder)


def measure(name: str, options: dict[str, Any], seed: int, epsilon: float, *, held_out: bool) -> dict[str, Any]:
    """Make one run and return what is kept of it."""
    folder = fashion()
    if held_out:
        folder = tuning(folder, len(folder.images) - HELD_OUT, HELD_OUT)
    started = time.monotonic()
    found = accuracy_of(options, folder, seed, epsilon)
    seconds = round(time.monotonic() - started, 1)
    print(f"  {name} {json.dumps(options)} epsilon {epsilon:g} seed {seed}: {found:.4f} ({seconds:.0f} s)", flush=True)
    run = {"row": name, "options": options, "seed": seed, "epsilon": epsilon}
    return run | {"accuracy": found, "seconds": seconds}


def summary(runs: Sequence[dict[str, Any]], epsilon: float) -> list[dict[str, Any]]:
    """Return a row of figures for each way to train that has runs at an epsilon."""
    rows = []
    for row in ROWS:
        found = [run["accuracy"] for run in runs if run["row"] == row.name and run.get("epsilon", EPSILON) == epsilon]
        if found:
            rows.append(
                {
                    "name": row.name,
                    "estimator": row.options.get("estimator", "dpsgd"),
                    "architecture": row.options.get("architecture", "scatter_linear"),
                    "freeze": row.options.get("freeze", "none"),
                    "epsilon": epsilon,
                    "delta": DELTA,
                    "mean": statistics.mean(found),
                    "sd": statistics.stdev(found) if len(found) > 1 else None,
                    "seeds": len(found),
                }
            )
    return rows


def main() -> None:
    """Make the runs that are missing, print the table and, where asked, keep everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rows", nargs="+", choices=[row.name for row in ROWS], default=[row.name for row in ROWS])
    parser.add_argument("--epsilon", type=float, default=EPSILON)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--search", action="store_true", help="compare rates and sizes on held-out training images")
    options = parser.parse_args()
    key = "search" if options.search else "runs"
    document: dict[str, Any] = {"runs": [], "search": []}
    if options.json is not None and options.json.exists():
        document = json.loads(options.json.read_text(encoding="utf-8"))
    for row in ROWS:
        if row.name not in options.rows:
            continue
        for tried in row.tries if options.search else ({},):
            for seed in (100,) if options.search else options.seeds:
                wanted = {**row.options, **tried}
                made = [(run["options"], run["seed"], run.get("epsilon", EPSILON)) for run in document[key]]
                if (wanted, seed, options.epsilon) in made:
                    continue
                document[key].append(measure(row.name, wanted, seed, options.epsilon, held_out=options.search))
                keep(document, options.json)
    for found in document["rows"] if document["runs"] else []:
        spread = "" if found["sd"] is None else f" +- {found['sd']:.4f}"
        print(f"{found['name']:<30} {found['epsilon']:>4g} {found['mean']:.4f}{spread} ({found['seeds']} seeds)")


def keep(document: dict[str, Any], path: Path | None) -> None:
    """Write what there is so far."""
    epsilons = sorted({run.get("epsilon", EPSILON) for run in document["runs"]})
    document["rows"] = [row for epsilon in epsilons for row in summary(document["runs"], epsilon)]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
    document |= {"dataset": "fashion-mnist", "machine": device, "torch": torch.__version__, "commit": commit}
    if path is not None:
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
