"""The default by DPImageBench's protocol: accuracy of three deep classifiers that learned synthetic images.

Run `python -m benchmarks.dpimagebench --json FILE`. 55,000 training images are private (45,000 of CIFAR-10), because
the protocol keeps 5,000 for validation; delta is 1.67e-6; classifiers learn 60,000 synthetic images. The protocol picks
the epoch on real validation images; here the last step counts and the test images are looked at once. Networks are
small ones of the three kinds, with three epochs; the published depths and 50 epochs are jobs of
`benchmarks.in_pieces`, for a GPU.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from benchmarks.classifier_runs import first
from benchmarks.deep_classifiers import SHAPES, judged
from benchmarks.generator_runs import draw, here, trained
from benchmarks.results import Results, Row, parser_of, show, since
from benchmarks.small_data import SETS, Folder, channels_first

DELTA = 1.67e-6
SAMPLES = 60_000
_VALIDATION = 5000
_QUICK, _EPOCHS = "quick", 3
PUBLISHED = {("fashion", 1.0): 0.822, ("fashion", 10.0): 0.878}  # FETA-Pro, mean of three networks


def private_part(dataset: str) -> Folder:
    """Return a set without the training images that the protocol keeps for validation."""
    whole = SETS[dataset]()
    return first(whole, len(whole.labels) - _VALIDATION)


def row_of(folder: Folder, dataset: str, epsilon: float, seed: int, samples: int, device: torch.device) -> Row:
    """Train the default with a fresh secret, draw from it, and let the three networks judge the images."""
    generator, _, training = trained(folder, "moments", {}, epsilon, delta=DELTA, device=device)
    seconds = {"training": round(training, 1)}
    synthetic = draw(generator, len(folder.classes), samples, seed)
    test = channels_first(folder.test_images), torch.from_numpy(folder.test_labels)
    accuracy = {}
    for name, shape in SHAPES[_QUICK].items():
        began = time.monotonic()
        sizes: dict[str, Any] = {"classes": len(folder.classes), "epochs": _EPOCHS, "device": device}
        accuracy[name] = judged(shape, synthetic, test, seed=seed, **sizes)
        seconds[name] = since(began)
        print(f"{dataset} epsilon {epsilon:g} seed {seed} {name}: {accuracy[name]:.4f}", flush=True)
    row: Row = {"dataset": dataset, "epsilon": epsilon, "delta": DELTA, "records": len(folder.labels)}
    row |= {"samples": samples, "budget": _QUICK, "seed": seed, "accuracy": accuracy}
    mean = statistics.mean(accuracy.values())
    return row | {"mean": mean, "published": PUBLISHED.get((dataset, epsilon)), "seconds": seconds}


def main() -> None:
    """Measure all rows, print them and, where asked, keep them as JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--dataset", choices=["fashion", "cifar10"], default="fashion")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--samples", type=int, default=SAMPLES, help="synthetic images; fewer are not the protocol's")
    options = parser.parse_args()
    results, folder = Results(options.json), private_part(options.dataset)
    for epsilon in options.epsilons:
        for seed in options.seeds:
            key = {"dataset": options.dataset, "epsilon": epsilon, "seed": seed, "samples": options.samples}
            if results.find(**key) is None:
                results.put(row_of(folder, options.dataset, epsilon, seed, options.samples, here()[0]))
    show(results.rows, ("dataset", "epsilon", "seed", "mean:.4f", "published"))


if __name__ == "__main__":
    main()
