"""What the default recipe, `moments`, is worth on small folders, in grey and in colour.

Run `python -m benchmarks.small_folders --json FILE`. Every row trains on a folder with a fresh secret, draws 8,000
synthetic images (2,500 of 64 x 64), trains the evaluation's small CNN on them for ten epochs to the last step, and
tests it once on real images that took no part. `prior` releases class means alone; `real` are the private images.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from PIL import Image

from benchmarks.generator_runs import DELTA, OURS, PRIOR, accuracy_of, draw, samples_of, tiled, train
from benchmarks.results import Results, Row, machine, parser_of, show
from benchmarks.small_data import SETS, Folder, channels_first
from privacy.plans.moments import MomentsConfig

REAL = "real"
ROWS: Mapping[str, tuple[float, ...]] = {
    "digits": (1.0, 3.0, 10.0),
    "fashion_3000": (1.0, 3.0, 10.0),
    "fashion_10000": (1.0, 3.0, 10.0),
    "emoji": (3.0, 10.0),
    "cifar10": (10.0,),
}


def row_of(name: str, folder: Folder, variant: str, epsilon: float | None, seeds: Sequence[int]) -> Row:
    """Measure one row: the median over seeds of the accuracy, and what each seed gave."""
    runs: list[Row] = []
    config: Row = {}
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
    """Draw released samples into a file, one row for each class."""
    generator, classes = train(folder, variant, epsilon)[0], len(folder.classes)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(tiled(*draw(generator, classes, columns * classes, 0), classes).squeeze()).save(file, optimize=True)


def main() -> None:
    """Measure all rows, print them and, where asked, keep them as JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--datasets", nargs="+", default=list(ROWS))
    parser.add_argument("--epsilons", type=float, nargs="+")
    parser.add_argument("--variants", nargs="+", choices=[PRIOR, OURS, REAL], default=[PRIOR, OURS, REAL])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--grids", type=Path, help="draw samples of the default into this folder, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(options.json, **machine())
    for name in [name for name in ROWS if name in options.datasets]:
        folder, epsilons = SETS[name](), options.epsilons or ROWS[name]
        wanted = [(v, e) for e in epsilons for v in options.variants if v != REAL]
        for variant, epsilon in [*wanted, *([(REAL, None)] if REAL in options.variants else [])]:
            if results.find(dataset=name, variant=variant, epsilon=epsilon, seeds=options.seeds) is None:
                results.put(row_of(name, folder, variant, epsilon, options.seeds))
        for epsilon in epsilons if options.grids is not None else ():
            grid(folder, epsilon, OURS, options.grids / f"{name}_{epsilon:g}.png")
    show(results.rows, ("dataset", "n", "epsilon", "variant", "accuracy:.4f"))


if __name__ == "__main__":
    main()
