"""From how many records on a rare class shows, and whether better counts of the classes would help it.

Run `python -m benchmarks.uneven_classes --json FILE`. Of Fashion-MNIST, 300 records of nine classes and a few of the
tenth are private. `moments` trains on them, a linear classifier (ridge regression from pixels onto the classes) learns
2,000 images drawn evenly, and is tested once on all 10,000 test images: what is told is how much of the rare class it
recognises, beside the mean over the others. Which class is rare goes round. Variants differ in what is made of the
released counts, at the same noise:

* today: what `workers.recipes.shrinkage` does,
* common: one weight for all classes, and no class believed to have less than a tenth of the mean, as before,
* exact: as today, with the exact counts, which no release can give. What this gains is the most that a paid release of
  better counts could.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.generator_runs import DELTA, OURS, draw, train
from benchmarks.results import Results, Row, machine, parser_of, show, since
from benchmarks.small_data import Folder, channels_first, fashion
from privacy.plans.moments import VISIBLE
from workers.evaluation.utility import Utility, accuracy_by_class, confusion_of
from workers.recipes import warm_start

Array = npt.NDArray[np.float64]
EACH, SAMPLES, RIDGE = 300, 2000, 1e-2
RARE = (1, 3, 8)  # trousers, dresses and bags: easy, middling, and unlike all others
COUNTS = (10, 30, 60, 100, 200, 300)
EPSILONS = (1.0, 3.0)
STEERED = (30, 100)  # counts at which variants are compared
_SEED = 20


def with_rare(whole: Folder, rare: int, count: int) -> Folder:
    """Return EACH records of every class but one, of which there are `count`."""
    stream = np.random.Generator(np.random.PCG64([_SEED, rare, count]))
    mixed = stream.permutation(len(whole.labels))
    kept = [mixed[whole.labels[mixed] == label][: count if label == rare else EACH] for label in range(10)]
    own = stream.permutation(np.concatenate(kept))
    return Folder(whole.images[own], whole.labels[own], whole.test_images, whole.test_labels, whole.classes)


@contextmanager
def today(_folder: Folder) -> Iterator[None]:
    """Change nothing."""
    yield


@contextmanager
def common(_folder: Folder) -> Iterator[None]:
    """Do with counts and means what was done before."""

    def weight(mean_square: float, noise_variance: float) -> float:
        return max(0.0, 1.0 - noise_variance / max(mean_square, 1e-30))

    def counts_before(counts: Array, noise_stddev: float) -> Array:
        lifted = np.maximum(counts, 0.1 * max(1.0, float(counts.mean())))
        middle, variance = float(lifted.mean()), float(lifted.var(ddof=1))
        found: Array = middle + weight(variance, noise_stddev**2) * (lifted - middle)
        return found

    def means_before(sums: Array, counts: Array, prior: Array, noise_stddev: float) -> Array:
        classes, total = len(sums), float(counts.sum())
        pooled = sums.sum(axis=0) / total
        pooled = pooled * prior / (prior + classes * (noise_stddev / total) ** 2)
        own = sums / counts[:, None] - pooled
        for start in range(0, own.shape[1], 8):
            group = own[:, start : start + 8]
            mean_square = float((group**2).mean()) * classes / (classes - 1)
            group *= weight(mean_square, float(np.mean((noise_stddev / counts) ** 2)))
        found: Array = pooled + own
        return found

    with (
        mock.patch.object(warm_start, "shrink_counts", counts_before),
        mock.patch.object(warm_start, "shrink_means", means_before),
    ):
        yield


@contextmanager
def exact(folder: Folder) -> Iterator[None]:
    """Know the counts: not private, for comparison alone."""
    counts = np.bincount(folder.labels, minlength=len(folder.classes)).astype(float)
    with mock.patch.object(warm_start, "shrink_counts", return_value=counts):
        yield


VARIANTS: Mapping[str, Callable[[Folder], Any]] = {"today": today, "common": common, "exact": exact}


def ridge(images: Tensor, labels: Tensor, test_images: Tensor) -> Tensor:
    """Return the classes (m,) that a linear classifier names, which learned images (n, c, h, w) and labels (n,)."""
    rows, tested = (torch.cat([x.flatten(1).double() / 255, torch.ones(len(x), 1)], 1) for x in (images, test_images))
    targets = torch.nn.functional.one_hot(labels).double()
    penalty = RIDGE * len(rows) * torch.eye(rows.shape[1], dtype=torch.float64)
    return (tested @ torch.linalg.solve(rows.T @ rows + penalty, rows.T @ targets)).argmax(dim=1)


def measure(folder: Folder, rare: int, epsilon: float, variant: str, seed: int) -> Row:
    """Train once, and say how much of each class is recognised."""
    started = time.monotonic()
    with VARIANTS[variant](folder):
        generator, plan, _ = train(folder, OURS, epsilon)
    drawn = draw(generator, len(folder.classes), SAMPLES, seed)
    predicted = ridge(*drawn, channels_first(folder.test_images))
    found = Utility.of(confusion_of(torch.from_numpy(folder.test_labels), predicted, len(folder.classes)))
    shares = accuracy_by_class(found.confusion)
    taken = sum(row[rare] for row in found.confusion)
    others = [share for label, share in enumerate(shares) if label != rare and share is not None]
    return {
        "rare": rare,
        "count": int((folder.labels == rare).sum()),
        "epsilon": epsilon,
        "delta": DELTA,
        "variant": variant,
        "seed": seed,
        "recall": shares[rare],
        "precision": float(found.confusion[rare][rare] / taken) if taken else 0.0,
        "others": float(np.mean(others)),
        "balanced": found.balanced_accuracy,
        "class_shown_from": plan.facts["class_shown_from"],
        "seconds": since(started),
    }


def wanted(epsilons: Sequence[float], counts: Sequence[int]) -> Iterator[tuple[int, int, float, str]]:
    """The rows: what shows, and at two counts the variants."""
    for epsilon in epsilons:
        for count in counts:
            for rare in RARE:
                yield rare, count, epsilon, "today"
                if count in STEERED:
                    yield from ((rare, count, epsilon, variant) for variant in VARIANTS if variant != "today")


def main() -> None:
    """Make the rows that are missing."""
    parser = parser_of(__doc__)
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results, whole = Results(options.json, visible=VISIBLE, **machine()), fashion()
    for rare, count, epsilon, variant in wanted(options.epsilons, options.counts):
        if results.find(rare=rare, count=count, epsilon=epsilon, variant=variant) is None:
            results.put(measure(with_rare(whole, rare, count), rare, epsilon, variant, seed=0))
    show(results.rows, ("rare", "count", "epsilon", "variant", "recall:.2f", "others:.2f", "balanced:.3f"))


if __name__ == "__main__":
    main()
