"""Release a class histogram: how many units each declared class has, with exact discrete Gaussian noise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from privacy.plans.class_histogram import COUNTS, histogram_event
from privacy.plans.plan import Plan, PublicFacts
from workers.recipes.interface import Piece, Run
from workers.recipes.records import records_of_rank, records_to_sum

HISTOGRAM_FILE = "histogram.json"
_FORMAT = 1


@dataclass(frozen=True)
class ClassHistogram:
    """A released histogram. All fields may be published.

    Noisy counts are unbiased, may be negative, and have equal standard errors. `units_declared` is a public upper
    bound.
    """

    classes: tuple[str, ...]
    noisy_counts: tuple[int, ...]
    standard_error: float
    units_declared: int

    def save(self, directory: Path) -> None:
        """Write the histogram into an existing directory; equal histograms give equal bytes.

        The file's `counts` are the noisy counts clamped to the possible range: post-processing, slightly biased.
        """
        document = {
            "format": _FORMAT,
            "classes": self.classes,
            "counts": [min(max(count, 0), self.units_declared) for count in self.noisy_counts],
            "noisy_counts": self.noisy_counts,
            "standard_error": self.standard_error,
        }
        text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        (directory / HISTOGRAM_FILE).write_text(text, encoding="utf-8")


def read_histogram(directory: Path) -> Mapping[str, Any]:
    """Read the file written by `ClassHistogram.save`; raise ValueError if its format differs."""
    document: dict[str, Any] = json.loads((directory / HISTOGRAM_FILE).read_text(encoding="utf-8"))
    if document.pop("format", None) != _FORMAT:
        raise ValueError(f"the histogram has another format; this program reads {_FORMAT}")
    return document


def train(run: Run) -> ClassHistogram:
    """Count the units of each class and privatise the counts.

    Privacy:
        Adjacency: add or remove one unit. One release of L2 sensitivity 1 (proof at
        `privacy.plans.class_histogram.histogram_event`), paid for before its noise is drawn.
    """
    facts = run.facts
    run.progress(stage=COUNTS, step=0, steps=1)
    stddev = run.plan.noise_stddev[COUNTS]
    _, private_labels = records_of_rank(*records_to_sum(facts, run.data, run.secret), run.secret)
    private_counts = count_classes(private_labels, len(facts.classes))  # (classes,)
    run.pay(histogram_event(stddev), COUNTS)
    noise, shape = run.noise("class histogram"), len(facts.classes)
    released_counts = run.privatise(
        torch.from_numpy(private_counts),
        lambda counts: counts + torch.from_numpy(noise.discrete_gaussian(shape, stddev)),
    ).tolist()
    return ClassHistogram(facts.classes, tuple(released_counts), stddev, facts.units_declared)


def work(_plan: Plan, _facts: PublicFacts) -> tuple[Piece, ...]:
    return (Piece(COUNTS, 1, 1.0),)


def count_classes(private_labels: npt.NDArray[np.int64], classes: int) -> npt.NDArray[np.int64]:
    """Return how often each class occurs among the labels, (classes,) int64. Private.

    Privacy:
        One more label changes one count by 1; a label outside the declared classes changes none.
    """
    labels = np.asarray(private_labels)
    return np.bincount(labels[(labels >= 0) & (labels < classes)], minlength=classes).astype(np.int64)
