"""What images of `moments` and DataLens are worth on Fashion-MNIST or CIFAR-10.

Run `python -m benchmarks.datalens_utility --json FILE`. Every row trains on all training images with a fresh secret,
draws synthetic images, trains three classifiers on them to the last step of a fixed protocol and tests them once on the
10,000 test images. Settings were chosen on held-out training images.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.generator_runs import DELTA, draw, here, trained
from benchmarks.results import Results, Row, parser_of, show
from benchmarks.small_data import SETS, Folder, channels_first
from models.classifiers import CLASSIFIER_KINDS, ClassifierKind
from models.released import ReleasedGenerator
from privacy.plans.datalens import VOTES
from workers.evaluation.utility import train_and_test

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # recipe and options
    "moments": ("moments", {}),
    "datalens": ("datalens", {}),
}


def train(
    folder: Folder, variant: str, epsilon: float, device: torch.device
) -> tuple[ReleasedGenerator, dict[str, Any]]:
    """Train one generator on a folder's private images; returns it and public facts."""
    recipe, options = VARIANTS[variant]
    generator, plan, seconds = trained(folder, recipe, options, epsilon, device=device)
    facts = {
        "images_aggregated": sum(stage.event.count for stage in plan.stages if stage.name.startswith(VOTES)),
        "config": plan.config.model_dump(),
        "train_seconds": seconds,
    }
    return generator, facts


def measure(
    folder: Folder,
    generator: ReleasedGenerator,
    samples: int,
    seed: int,
    device: torch.device,
    kinds: Sequence[ClassifierKind],
) -> dict[str, float]:
    """Accuracy on the test images of each classifier trained on `samples` synthetic images."""
    classes = len(folder.classes)
    synthetic, wanted = draw(generator, classes, samples, seed, device)
    test, truth = channels_first(folder.test_images), torch.from_numpy(folder.test_labels)
    return {
        kind: train_and_test(kind, synthetic, wanted, test, truth, classes=classes, seed=seed, device=device).accuracy
        for kind in kinds
    }


def row_of(
    folder: Folder,
    variant: str,
    epsilon: float,
    seeds: Sequence[int],
    samples: int,
    device: torch.device,
    kinds: Sequence[ClassifierKind] = CLASSIFIER_KINDS,
) -> Row:
    """Measure one row: the median over seeds of each classifier's accuracy, and what each seed gave."""
    runs: list[Row] = []
    facts: Row = {}
    for seed in seeds:
        generator, facts = train(folder, variant, epsilon, device)
        seconds = facts.pop("train_seconds")
        accuracy = measure(folder, generator, samples, seed, device, kinds)
        runs.append({"seed": seed, "train_seconds": round(seconds, 1), "accuracy": accuracy})
        print(f"  {variant} epsilon {epsilon:g} seed {seed}: {accuracy} ({seconds:.0f} s)", flush=True)
    return {
        "variant": variant,
        "epsilon": epsilon,
        "delta": DELTA,
        "teacher_stage": facts["images_aggregated"] > 0,
        **facts,
        "samples": samples,
        "accuracy": {kind: statistics.median(run["accuracy"][kind] for run in runs) for kind in kinds},
        "seeds": list(seeds),
        "runs": runs,
    }


def main() -> None:
    """Measure all rows, print them and, where asked, keep them as JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--dataset", choices=["fashion", "cifar10"], default="fashion")
    parser.add_argument("--classifiers", nargs="+", choices=CLASSIFIER_KINDS, default=list(CLASSIFIER_KINDS))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--samples", type=int, default=60_000)
    options = parser.parse_args()
    device, machine = here()
    folder = SETS[options.dataset]()
    results = Results(options.json, dataset=options.dataset, machine=machine, torch=torch.__version__)
    for epsilon in options.epsilons:
        for variant in options.variants:
            key = {"variant": variant, "epsilon": epsilon, "seeds": options.seeds, "samples": options.samples}
            if results.find(**key) is None:
                results.put(row_of(folder, *key.values(), device, options.classifiers))
    show([{**row, **row["accuracy"]} for row in results.rows], ("variant", "epsilon", *options.classifiers))


if __name__ == "__main__":
    main()
