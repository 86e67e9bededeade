"""What `select_public` draws for emoji of 64 x 64 from public clip art.

Run `python -m benchmarks.select_public --json FILE --grid PICTURE`. Every row votes with a fresh secret, draws 2,500
images and measures them as `benchmarks.small_folders` does.
"""

from __future__ import annotations

import json
import secrets
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from benchmarks.budgets import NoLedger
from benchmarks.generator_runs import DELTA, accuracy_of, draw, samples_of, tiled
from benchmarks.openclipart import load_clipart
from benchmarks.results import Results, Row, machine, parser_of, show
from benchmarks.small_data import SETS, Folder, facts_of
from models.portable.selected import SelectedPictures
from privacy.accounting.filter import open_filter
from privacy.plans.plan import Plan
from privacy.plans.registry import build_plan
from workers.recipes.interface import Run, TrainingData
from workers.recipes.select_public import train

CLIP_ART = 2_498  # pictures of openclipart-png that the prototype had
COLUMNS = 12


def select(
    folder: Folder, public: npt.NDArray[np.uint8], epsilon: float, options: Mapping[str, Any]
) -> tuple[SelectedPictures, Plan, float]:
    """Let a folder's records vote with a fresh secret; returns the selection, its plan and the seconds."""
    declared, account = facts_of(folder), open_filter(epsilon, DELTA)
    asked = {"public_dataset_id": "openclipart-png", **options}
    plan = build_plan("select_public", asked, account, account.capacity_nano, declared)
    data = TrainingData(folder.images, folder.labels, declared.classes, public_anchors=public)
    started = time.monotonic()
    made = train(Run(plan=plan, facts=declared, data=data, budget=NoLedger(), secret=secrets.token_bytes(32)))
    return made, plan, time.monotonic() - started


def row_of(
    folder: Folder, public: npt.NDArray[np.uint8], epsilon: float, options: Mapping[str, Any], seeds: list[int]
) -> Row:
    """Measure one row: the median over seeds of the accuracy, and what each seed gave."""
    runs = []
    for seed in seeds:
        made, plan, seconds = select(folder, public, epsilon, options)
        accuracy = accuracy_of(*draw(made, len(folder.classes), samples_of(folder), seed), folder, seed)
        runs.append({"seed": seed, "seconds": round(seconds, 1), "accuracy": accuracy})
        print(f"  epsilon {epsilon:g} {dict(options)}: {accuracy:.4f} ({seconds:.0f} s)", flush=True)
    return {
        "dataset": "emoji",
        "n": len(folder.labels),
        "public_pictures": len(public),
        "epsilon": epsilon,
        "delta": DELTA,
        "recipe": "select_public",
        "options": dict(options),
        "accuracy": statistics.median(run["accuracy"] for run in runs),
        "runs": runs,
        "plan": {name: plan.facts[name] for name in ("iterations", "choices", "standard_error", "release_bytes")},
    }


def main() -> None:
    """Measure the rows, print them and, where asked, keep them as JSON and draw a picture."""
    parser = parser_of(__doc__)
    parser.add_argument("--grid", type=Path, help="draw released pictures at the first epsilon into this file")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[3.0, 10.0])
    parser.add_argument("--options", type=json.loads, default={}, help="of the recipe, as a JSON object")
    parser.add_argument("--public", type=int, default=CLIP_ART, help="clip-art pictures")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    folder, results = SETS["emoji"](), Results(asked.json, **machine())
    public = load_clipart(asked.public, folder.images.shape[1], colour=True)
    if asked.grid is not None:
        made, classes = select(folder, public, asked.epsilons[0], asked.options)[0], len(folder.classes)
        Image.fromarray(tiled(*draw(made, classes, COLUMNS * classes, 0), classes)).save(asked.grid, optimize=True)
    for epsilon in asked.epsilons if asked.seeds else ():
        results.put(row_of(folder, public, epsilon, asked.options, asked.seeds))
    show(results.rows, ("recipe", "epsilon", "accuracy:.4f"))


if __name__ == "__main__":
    main()
