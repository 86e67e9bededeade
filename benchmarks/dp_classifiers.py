"""Accuracy of the recipe `dp_classifier` on Fashion-MNIST, by estimator.

Run `python -m benchmarks.dp_classifiers --json FILE`. Every run trains on the 60,000 training images with a fresh
secret and tests the last weights once on the 10,000 test images. Options were chosen on held-out training images.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.classifier_runs import DELTA, accuracy, trained
from benchmarks.generator_runs import here
from benchmarks.openclipart import load_clipart
from benchmarks.results import Results, Row, parser_of, show, since
from benchmarks.small_data import Folder, facts_of, fashion
from privacy.accounting.filter import open_filter
from privacy.plans.registry import build_plan

EPSILON = 3.0
_CNN: dict[str, Any] = {"architecture": "cnn", "expected_batch": 512, "epochs": 3.0, "clip": 1.0, "momentum": 0.0}
_GEP: dict[str, Any] = {
    "anchors_dataset_id": "openclipart",
    "anchors": 200,
    "basis_size": 100,
    "clip_residual": 1.0,
    "learning_rate": 4.0,
}
_FROZEN: dict[str, Any] = {"freeze": "random", "freeze_rate": 0.7, "freeze_cooling": 0.65}


ROWS: Mapping[str, dict[str, Any]] = {
    "scatter_linear": {"preset": "default", "learning_rate": 12.0},
    "dpsgd": {**_CNN, "estimator": "dpsgd", "learning_rate": 4.0},
    "dpsgd, C=0.1, momentum 0.9": {**_CNN, "clip": 0.1, "momentum": 0.9, "learning_rate": 4.0},
    "topagg, k=0.8": {**_CNN, "estimator": "topagg", "learning_rate": 4.0},
    "random freeze": {**_CNN, **_FROZEN, "learning_rate": 4.0},
    "gep": {**_CNN, **_GEP, "estimator": "gep"},
    "bgep": {**_CNN, **_GEP, "estimator": "bgep"},
    "rgp, rank 8": {**_CNN, "estimator": "rgp", "learning_rate": 4.0},
    "rgp_random, rank 8": {**_CNN, "estimator": "rgp_random", "learning_rate": 4.0},
}


def accuracy_of(options: dict[str, Any], folder: Folder, seed: int, epsilon: float = EPSILON) -> float:
    """Train one classifier and return the accuracy of its last weights on the test images."""
    account = open_filter(epsilon, DELTA)
    anchors = load_clipart(options["anchors"], 28) if "anchors_dataset_id" in options else None
    chosen = {**options, "initial_seed": seed}
    plan = build_plan("dp_classifier", chosen, account, account.capacity_nano, facts_of(folder))
    return accuracy(trained(folder, plan, anchors), folder)


def summary(runs: Sequence[Row], epsilon: float) -> list[Row]:
    """Return the mean and spread of each row's runs at an epsilon."""
    rows = []
    for name, options in ROWS.items():
        found = [run["accuracy"] for run in runs if run["row"] == name and run.get("epsilon", EPSILON) == epsilon]
        if found:
            row = {"name": name, "estimator": options.get("estimator", "dpsgd"), "epsilon": epsilon, "delta": DELTA}
            spread = {"sd": statistics.stdev(found) if len(found) > 1 else None, "seeds": len(found)}
            rows.append({**row, "mean": statistics.mean(found), **spread})
    return rows


def main() -> None:
    """Make the runs that are missing, print the table and, where asked, keep everything as JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--epsilon", type=float, default=EPSILON)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    results, folder = Results(options.json, dataset="fashion-mnist", machine=here()[1], runs=[]), fashion()
    runs: list[Row] = results.document["runs"]
    for name in options.rows:
        for seed in options.seeds:
            key = {"row": name, "options": ROWS[name], "seed": seed, "epsilon": options.epsilon}
            if not any(key.items() <= {"epsilon": EPSILON, **run}.items() for run in runs):
                started = time.monotonic()
                accuracy = accuracy_of(ROWS[name], folder, seed, options.epsilon)
                runs.append({**key, "accuracy": accuracy, "seconds": since(started)})
                print(f"  {name} epsilon {options.epsilon:g} seed {seed}: {accuracy:.4f}", flush=True)
                epsilons = sorted({run.get("epsilon", EPSILON) for run in runs})
                results.document["rows"] = [row for epsilon in epsilons for row in summary(runs, epsilon)]
                results.write()
    show(results.document["rows"], ("name", "epsilon", "mean:.4f", "sd:.4f", "seeds"))


if __name__ == "__main__":
    main()
