"""What a declared symmetry is worth on photographs, and what a false declaration costs on digits.

Run `python -m benchmarks.symmetry --json FILE`. Every row trains `moments` on a folder's private images with fresh
secrets, draws synthetic images, trains the small CNN on them to the last step and tests it once on real images that
took no part: all of CIFAR-10 by the fixed protocol of `benchmarks.datalens_utility` with 30,000 samples, the small
sets by that of `benchmarks.small_folders`. Nothing is selected on them: `--held-out` measures where settings were
chosen. A row is written after each of its secrets; a file that has some of them goes on with the others.
"""

from __future__ import annotations

import argparse
import json
import platform
import secrets
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.budgets import CountedBudget
from benchmarks.generator_runs import DELTA, accuracy_of, draw, samples_of
from benchmarks.small_data import SETS, Folder, cifar10, facts_of
from models.portable.generator import Generator
from privacy.accounting.filter import open_filter
from privacy.plans.plan import Plan
from privacy.plans.registry import build_plan
from workers.evaluation.utility import train_and_test
from workers.recipes.interface import Run, TrainingData
from workers.recipes.registry import TRAINERS

WHOLE, SAMPLES = "cifar10", 30_000
FOLDERS: Mapping[str, Callable[[], Folder]] = {
    WHOLE: SETS[WHOLE],
    "cifar10_5000": lambda: cifar10().cut(5000),
    "digits": SETS["digits"],
}
# In the order of what is asked first: data set, epsilon, symmetry.
ROWS: tuple[tuple[str, float, str], ...] = (
    *[(WHOLE, epsilon, "mirror") for epsilon in (1.0, 10.0)],
    *[("cifar10_5000", epsilon, symmetry) for epsilon in (3.0, 10.0, 1.0) for symmetry in ("mirror", "none")],
    *[("digits", epsilon, symmetry) for epsilon in (3.0, 10.0, 1.0) for symmetry in ("mirror", "square", "none")],
    *[(WHOLE, epsilon, symmetry) for symmetry in ("none", "square") for epsilon in (1.0, 10.0)],
)


def train(folder: Folder, epsilon: float, symmetry: str) -> tuple[Generator, Plan]:
    """Train one generator with a fresh secret.

    Raises:
        RuntimeError: it released something else than its plan says.
    """
    declared, account = facts_of(folder), open_filter(epsilon, DELTA)
    plan = build_plan("moments", {"symmetry": symmetry}, account, account.capacity_nano, declared)
    data, budget = TrainingData(folder.images, folder.labels, declared.classes), CountedBudget()
    generator = TRAINERS["moments"](
        Run(plan=plan, facts=declared, data=data, budget=budget, secret=secrets.token_bytes(32))
    )
    if budget.releases != {stage.name: stage.event.count for stage in plan.stages}:
        raise RuntimeError("a training released something else than its plan says")
    return generator, plan


def accuracy(name: str, folder: Folder, generator: Generator, seed: int, samples: int) -> float:
    """Return the accuracy of a CNN trained on a generator's images."""
    images, labels = draw(generator, samples, seed)
    if name != WHOLE:
        return accuracy_of(images, labels, folder, seed)
    test = torch.from_numpy(folder.test_images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(folder.test_labels)
    return train_and_test("cnn", images, labels, *test, classes=len(folder.classes), seed=seed).accuracy


def measured(row: dict[str, Any], name: str, folder: Folder, samples: int | None) -> dict[str, Any]:
    """Return a row with one secret more."""
    seed, started = len(row["runs"]), time.monotonic()
    generator, plan = train(folder, row["epsilon"], row["symmetry"])
    seconds = time.monotonic() - started
    drawn = samples or (SAMPLES if name == WHOLE else samples_of(folder))
    found = accuracy(name, folder, generator, seed, drawn)
    runs = [*row["runs"], {"seed": seed, "train_seconds": round(seconds, 1), "accuracy": found}]
    each = [run["accuracy"] for run in runs]
    return {
        **row,
        "samples": drawn,
        "accuracy": statistics.mean(each),
        "sd": statistics.stdev(each) if len(each) > 1 else None,
        "runs": runs,
        "config": plan.config.model_dump(),
    }


def main() -> None:
    """Measure all rows, print them as a table and, where asked, keep them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--datasets", nargs="+", choices=list(FOLDERS), default=list(FOLDERS))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 3.0, 10.0])
    parser.add_argument("--symmetries", nargs="+", default=["none", "mirror", "square"])
    parser.add_argument("--secrets", type=int, default=3, help="fresh secrets for each row")
    parser.add_argument("--samples", type=int, help="synthetic images; default: what each protocol says")
    parser.add_argument("--held-out", action="store_true", help="test on held-out training images, to choose settings")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[tuple[str, float, str], dict[str, Any]] = {}
    if options.json is not None and options.json.exists():
        kept = json.loads(options.json.read_text(encoding="utf-8"))["rows"]
        rows = {(row["dataset"], row["epsilon"], row["symmetry"]): row for row in kept}
    folders: dict[str, Folder] = {}
    for count in range(options.secrets):
        for key in ROWS:
            name, epsilon, symmetry = key
            if name not in options.datasets or epsilon not in options.epsilons or symmetry not in options.symmetries:
                continue
            if name not in folders:
                folder = FOLDERS[name]()
                part = min(5000, len(folder.labels) // 5)
                folders[name] = folder.held_out(test=part) if options.held_out else folder
            row = rows.get(key) or {
                "dataset": name,
                "records": len(folders[name].labels),
                "epsilon": epsilon,
                "delta": DELTA,
                "symmetry": symmetry,
                "runs": [],
            }
            if len(row["runs"]) > count:
                continue
            rows[key] = row = measured(row, name, folders[name], options.samples)
            print(f"  {name} epsilon {epsilon:g} {symmetry}: {row['runs'][-1]}", flush=True)
            if options.json is not None:
                document = {"machine": f"{platform.machine()} CPU", "torch": torch.__version__}
                document |= {"held_out": options.held_out, "rows": [rows[key] for key in ROWS if key in rows]}
                options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"{'dataset':<14} {'records':>7} {'epsilon':>7} {'symmetry':<8} {'secrets':>7} {'cnn':>7} {'sd':>7}")
    for row in rows.values():
        spread = "" if row["sd"] is None else f"{row['sd']:.4f}"
        print(
            f"{row['dataset']:<14} {row['records']:>7} {row['epsilon']:>7g} {row['symmetry']:<8} {len(row['runs']):>7} "
            f"{row['accuracy']:>7.4f} {spread:>7}"
        )


if __name__ == "__main__":
    main()
