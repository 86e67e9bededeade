"""The default on five sets by DPImageBench's protocol: three deep classifiers and their mean.

Run `python -m benchmarks.dpimagebench --json FILE`. 55,000 training images are private (45,000 of CIFAR-10), for the
protocol keeps 5,000 for validation, delta is 1.67e-6, and 60,000 synthetic images are learned. There the epoch is
picked on real validation images; here the last step counts and the test images are looked at once, so that nothing
private is selected on. Here are small networks of the three kinds and three epochs; the published depths and 50 epochs
are jobs of `benchmarks.in_pieces`, for a GPU. Of CelebA, Camelyon and EuroSAT delta is 1 / (n ln n), and a public draw
keeps images out; where one cannot be had (`benchmarks.dpimagebench_sets`) its row says so. A file that has a row of the
same settings keeps it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.classifier_runs import first
from benchmarks.deep_classifiers import SHAPES, judged
from benchmarks.dpimagebench_sets import LAYOUTS, read_set
from benchmarks.generator_runs import draw, here, trained
from benchmarks.small_data import SETS, Folder, channels_first

DELTA = 1.67e-6
SAMPLES = 60_000
_VALIDATION = 5000
_QUICK, _EPOCHS = "quick", 3
PUBLISHED = {  # FETA-Pro, which uses no public data: mean of three networks, its own logs
    ("fashion", 1.0): 0.822,
    ("fashion", 10.0): 0.878,
    ("celeba", 1.0): 0.885,
    ("celeba", 10.0): 0.946,
    ("camelyon", 1.0): 0.815,
    ("camelyon", 10.0): 0.825,
}


def private_part(dataset: str) -> tuple[Folder, float]:
    """Return a set without the training images that the protocol keeps out, and delta.

    Raises:
        FileNotFoundError: the set is not there.
    """
    if dataset not in LAYOUTS:
        whole = SETS[dataset]()
        return first(whole, len(whole.labels) - _VALIDATION), DELTA
    whole = read_set(dataset)
    n = len(whole.labels) - LAYOUTS[dataset].validation
    return whole.cut(n), float(f"{1 / (n * math.log(n)):.3g}")


def row_of(
    folder: Folder,
    dataset: str,
    epsilon: float,
    seed: int,
    samples: int,
    device: torch.device,
    delta: float = DELTA,
) -> dict[str, Any]:
    """Train the default with a fresh secret, draw from it, and let the three networks judge the images.

    Args:
        folder: whose images are all private, and whose test images are public.
        dataset: its name, for the row.
        epsilon: of the training, at delta.
        seed: public, of the drawn images and the networks.
        samples: synthetic images.
        device: where to train.
        delta: of the training.
    """
    generator, _, training = trained(folder, "moments", {}, epsilon, delta=delta, device=device)
    seconds = {"training": round(training, 1)}
    synthetic = draw(generator, len(folder.classes), samples, seed)
    test = channels_first(folder.test_images), torch.from_numpy(folder.test_labels)
    accuracy = {}
    for name, shape in SHAPES[_QUICK].items():
        began = time.monotonic()
        sizes: dict[str, Any] = {"classes": len(folder.classes), "epochs": _EPOCHS, "device": device}
        accuracy[name] = judged(shape, synthetic, test, seed=seed, **sizes)
        seconds[name] = round(time.monotonic() - began, 1)
        print(f"{dataset} epsilon {epsilon:g} seed {seed} {name}: {accuracy[name]:.4f}", flush=True)
    row: dict[str, Any] = {"dataset": dataset, "epsilon": epsilon, "delta": delta, "records": len(folder.labels)}
    row |= {"samples": samples, "budget": _QUICK, "seed": seed, "accuracy": accuracy}
    mean = statistics.mean(accuracy.values())
    return row | {"mean": mean, "published": PUBLISHED.get((dataset, epsilon)), "seconds": seconds}


def main() -> None:
    """Measure all rows, print each and, where asked, keep them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dataset", choices=["fashion", "cifar10", *LAYOUTS], default="fashion")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--samples", type=int, default=SAMPLES, help="synthetic images; fewer are not the protocol's")
    options = parser.parse_args()
    device, _ = here()
    rows: list[dict[str, Any]] = []
    if options.json is not None and options.json.exists():
        rows = json.loads(options.json.read_text(encoding="utf-8"))
    rows = [row for row in rows if "not_run" not in row or row["dataset"] != options.dataset]
    try:
        folder, delta = private_part(options.dataset)
    except FileNotFoundError as missing:
        rows.append({"dataset": options.dataset, "not_run": str(missing)})
        print(f"{options.dataset} was not run: {missing}")
        if options.json is not None:
            options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
        return
    done = {
        (row["dataset"], row["epsilon"], row["seed"], row["budget"], row["samples"])
        for row in rows
        if "not_run" not in row
    }
    for epsilon in options.epsilons:
        for seed in options.seeds:
            if (options.dataset, epsilon, seed, _QUICK, options.samples) in done:
                continue
            rows.append(row_of(folder, options.dataset, epsilon, seed, options.samples, device, delta))
            if options.json is not None:
                options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    for row in rows:
        if "not_run" in row:
            continue
        print(f"{row['dataset']} epsilon {row['epsilon']:g} seed {row['seed']}: mean {row['mean']:.4f}")


if __name__ == "__main__":
    main()
