"""What `select_public` draws for emoji of 64 x 64, from public clip art, beside `moments`' figures of small folders.

Run `python -m benchmarks.select_public --json FILE --grid PICTURE`. Every row votes with a fresh secret, draws 2,500
images and measures them as `benchmarks.small_folders` does: the small CNN, ten epochs, tested once on real emoji that
took no part. `--development` measures on held-out private pictures, where the recipe's constants were chosen.
"""

from __future__ import annotations

import argparse
import json
import platform
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
from benchmarks.small_data import DEVELOPMENT, SETS, Folder, facts_of
from models.portable.selected import SelectedPictures
from privacy.accounting.filter import open_filter
from privacy.plans.plan import Plan
from privacy.plans.registry import build_plan
from workers.recipes.interface import Run, TrainingData
from workers.recipes.select_public.loop import train

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
) -> dict[str, Any]:
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--grid", type=Path, help="draw released pictures at the first epsilon into this file")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[3.0, 10.0])
    parser.add_argument("--options", type=json.loads, nargs="+", default=[{}], help="of the recipe, as JSON objects")
    parser.add_argument("--public", type=int, default=CLIP_ART, help="clip-art pictures")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--development", action="store_true", help="measure where the constants were chosen")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    folder = (DEVELOPMENT if asked.development else SETS)["emoji"]()
    public = load_clipart(asked.public, folder.images.shape[1], colour=True)
    if asked.grid is not None:
        made, _, _ = select(folder, public, asked.epsilons[0], asked.options[0])
        classes = len(folder.classes)
        picture = tiled(*draw(made, classes, COLUMNS * classes, 0), classes)
        Image.fromarray(picture).save(asked.grid, optimize=True)
    rows = [
        row_of(folder, public, epsilon, options, asked.seeds)
        for epsilon in (asked.epsilons if asked.seeds else ())
        for options in asked.options
    ]
    for row in rows:
        print(f"{row['recipe']} epsilon {row['epsilon']:g} {row['options']}: {row['accuracy']:.4f}")
    if asked.json is not None:
        document = {"machine": f"{platform.machine()} CPU", "torch": torch.__version__, "rows": rows}
        asked.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
