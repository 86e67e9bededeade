"""What the default recipe, `moments`, is worth on small folders, in grey and in colour, beside what they were before.

Run `python -m benchmarks.small_folders --json FILE`. Every row trains on a folder with a fresh secret, draws 8,000
synthetic images (2,500 of 64 x 64), trains the evaluation's small CNN on them for ten epochs to the last step, and
tests it once on real images that took no part. Nothing is selected on them: what the defaults follow from was chosen on
other data or on the private side (`--development` measures there). Rows are written as they are finished; a file that
already has a row of the same settings keeps it, so that a run which was cut off goes on.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from benchmarks.generator_runs import DELTA, OURS, PRIOR, accuracy_of, draw, samples_of, tiled, train
from benchmarks.small_data import DEVELOPMENT, SETS, Folder, channels_first
from privacy.plans.moments.options import MomentsConfig

REAL = "real"
ROWS: Mapping[str, tuple[float, ...]] = {
    "digits": (1.0, 3.0, 10.0),
    "fashion_3000": (1.0, 3.0, 10.0),
    "fashion_10000": (1.0, 3.0, 10.0),
    "emoji": (3.0, 10.0),
    "cifar10": (10.0,),
}


def row_of(name: str, folder: Folder, variant: str, epsilon: float | None, seeds: Sequence[int]) -> dict[str, Any]:
    """Measure one row: the median over seeds of the accuracy, and what each seed gave."""
    runs: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    for seed in seeds:
        if epsilon is None:
            images, labels, seconds = channels_first(folder.images), torch.from_numpy(folder.labels), 0.0
        else:
            generator, plan, seconds = train(folder, variant, epsilon)
            config = plan.config_of(MomentsConfig).model_dump()
            images, labels = draw(generator, len(folder.classes), samples_of(folder), seed)
        accuracy = accuracy_of(images, labels, folder, seed)
        runs.append({"seed": seed, "train_seconds": round(seconds, 1), "accuracy": accuracy})
        print(f"  {name} {variant} epsilon {epsilon}: {accuracy:.4f} ({seconds:.0f} s)", flush=True)
    return {
        "dataset": name,
        "n": len(folder.labels),
        "epsilon": epsilon,
        "delta": DELTA,
        "variant": variant,
        "accuracy": statistics.median(run["accuracy"] for run in runs),
        "seeds": list(seeds),
        "runs": runs,
        "config": config,
    }


def grid(folder: Folder, epsilon: float, variant: str, file: Path, columns: int = 12) -> None:
    """Draw a picture of released samples, one row for each class."""
    generator, _, _ = train(folder, variant, epsilon)
    classes = len(folder.classes)
    picture = tiled(*draw(generator, classes, columns * classes, 0), classes)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture.squeeze()).save(file, optimize=True)


def main() -> None:
    """Measure all rows, print them as a table and, where asked, keep them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--datasets", nargs="+", default=list(ROWS))
    parser.add_argument("--epsilons", type=float, nargs="+")
    parser.add_argument("--variants", nargs="+", choices=[PRIOR, OURS, REAL], default=[PRIOR, OURS, REAL])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--development", action="store_true", help="measure where the defaults were chosen")
    parser.add_argument("--grids", type=Path, help="draw pictures into this folder, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sets = DEVELOPMENT if options.development else SETS
    rows: list[dict[str, Any]] = []
    if options.json is not None and options.json.exists():
        rows = json.loads(options.json.read_text(encoding="utf-8"))["rows"]
    for name in [name for name in sets if name in options.datasets or options.development]:
        folder = sets[name]()
        epsilons = options.epsilons or ROWS.get(name, (1.0, 10.0))
        wanted = [(v, e) for e in epsilons for v in options.variants if v != REAL]
        for variant, epsilon in [*wanted, *([(REAL, None)] if REAL in options.variants else [])]:
            settings = (name, variant, epsilon, options.seeds)
            if settings in [(row["dataset"], row["variant"], row["epsilon"], row["seeds"]) for row in rows]:
                continue
            rows.append(row_of(name, folder, variant, epsilon, options.seeds))
            if options.json is not None:
                document = {"machine": f"{platform.machine()} CPU", "torch": torch.__version__, "rows": rows}
                options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        if options.grids is not None:
            for epsilon in epsilons:
                for variant in (PRIOR, OURS):
                    grid(folder, epsilon, variant, options.grids / f"{name}_{epsilon:g}_{variant}.png")
    print(f"{'dataset':<14} {'n':>6} {'epsilon':>7} {'variant':<7} {'cnn':>7}")
    for row in rows:
        epsilon = "" if row["epsilon"] is None else f"{row['epsilon']:g}"
        print(f"{row['dataset']:<14} {row['n']:>6} {epsilon:>7} {row['variant']:<7} {row['accuracy']:>7.4f}")


if __name__ == "__main__":
    main()
