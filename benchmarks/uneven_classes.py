"""From how many records on does a rare class show, and would better counts of the classes help it?

Run `python -m benchmarks.uneven_classes --json FILE`. The private images are 300 of nine classes of Fashion-MNIST and a
few of the tenth; each of three classes is the rare one in turn. `moments` trains on them, a linear classifier (ridge
regression from pixels onto the classes) learns 2,000 images drawn evenly and is tested once on all 10,000 test images.
The variant `exact` uses the exact counts, which no release can have: its gain bounds that of any better counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from benchmarks.results import Results, Row, machine, parser_of, show, since
from benchmarks.runs import DELTA, draw, tests_of, trained
from benchmarks.small_data import Folder, fashion
from privacy.plans.moments import VISIBLE
from workers.evaluation.utility import Utility, accuracy_by_class, confusion_of
from workers.recipes import warm_start

EACH, SAMPLES, RIDGE = 300, 2000, 1e-2
RARE = (1, 3, 8)  # trousers, dresses and bags: easy, middling, and unlike all others
COUNTS = (10, 30, 60, 100, 200, 300)
EPSILONS = (1.0, 3.0)
COMPARED = (30, 100)  # counts at which the exact counts are tried
_SEED = 20


def with_rare(whole: Folder, rare: int, count: int) -> Folder:
    """Return EACH records of every class but one, of which there are `count`."""
    stream = np.random.Generator(np.random.PCG64([_SEED, rare, count]))
    mixed = stream.permutation(len(whole.labels))
    kept = [mixed[whole.labels[mixed] == label][: count if label == rare else EACH] for label in range(10)]
    own = stream.permutation(np.concatenate(kept))
    return Folder(whole.images[own], whole.labels[own], whole.test_images, whole.test_labels, whole.classes)


def exact_counts(folder: Folder) -> AbstractContextManager[object]:
    """Let a training know the exact counts: not private, for comparison alone."""
    counts = np.bincount(folder.labels, minlength=len(folder.classes)).astype(float)
    return mock.patch.object(warm_start, "shrink_counts", return_value=counts)


def ridge(images: Tensor, labels: Tensor, test_images: Tensor) -> Tensor:
    """Return the classes (m,) that a linear classifier predicts after learning images (n, c, h, w), labels (n,)."""
    rows, tested = (torch.cat([x.flatten(1).double() / 255, torch.ones(len(x), 1)], 1) for x in (images, test_images))
    targets = torch.nn.functional.one_hot(labels).double()
    penalty = RIDGE * len(rows) * torch.eye(rows.shape[1], dtype=torch.float64)
    return (tested @ torch.linalg.solve(rows.T @ rows + penalty, rows.T @ targets)).argmax(dim=1)


def measure(folder: Folder, rare: int, epsilon: float, variant: str, seed: int) -> Row:
    """Train once and return how much of each class is recognised."""
    started = time.monotonic()
    with exact_counts(folder) if variant == "exact" else nullcontext():
        generator, plan, _ = trained(folder, "moments", {}, epsilon)
    test, truth = tests_of(folder)
    predicted = ridge(*draw(generator, len(folder.classes), SAMPLES, seed), test)
    found = Utility.of(confusion_of(truth, predicted, len(folder.classes)))
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
    """Yield the rare class, its count, epsilon and variant of each row."""
    for epsilon in epsilons:
        for count in counts:
            for rare in RARE:
                yield from ((rare, count, epsilon, name) for name in ("today", "exact")[: 1 + (count in COMPARED)])


def main() -> None:
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
