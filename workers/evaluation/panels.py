"""Figures about a release that are computed from its synthetic images alone.

Everything here is post-processing of a published generator: it costs no budget and may be shown to anyone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

HISTOGRAM_BINS = 32
# Pairwise distances are taken on at most this many images of a class: 200 give 19,900 pairs, plenty for a mean.
PAIRED_IMAGES_MAX = 200
# Two images are near twins when their root-mean-square pixel difference is at most this share of the full range.
# The closest of 200 real images of a Fashion-MNIST class differ by 0.07 or more.
TWIN_DISTANCE_MAX = 0.02
TWIN_SHARE_MAX = 0.05
# Distance within a class relative to the distance between classes; real Fashion-MNIST classes lie at 0.57 to 0.93.
RELATIVE_DIVERSITY_MIN = 0.25

MODE_COLLAPSE_RULE = (
    f"A class is flagged when its mean pairwise distance is below {RELATIVE_DIVERSITY_MIN:.0%} of the mean distance "
    f"between images of different classes, or when more than {TWIN_SHARE_MAX:.0%} of its images have a near twin "
    f"(root-mean-square pixel difference of at most {TWIN_DISTANCE_MAX:.0%} of the range). "
    f"Both are computed on at most {PAIRED_IMAGES_MAX} images a class."
)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ClassPanel:
    """What the synthetic images of one class look like. Distances are root-mean-square pixel differences in [0, 1]."""

    name: str
    images: int
    diversity: float
    diversity_relative: float
    twin_share: float
    collapsed: bool


@dataclass(frozen=True)
class Panels:
    """What the synthetic images of a release look like."""

    images: int
    classes: tuple[ClassPanel, ...]
    exact_duplicates: int
    between_class_distance: float
    histogram: tuple[float, ...]

    @property
    def collapsed(self) -> tuple[str, ...]:
        """Names of the classes that the mode-collapse rule flags."""
        return tuple(panel.name for panel in self.classes if panel.collapsed)


def measure(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], classes: Sequence[str]) -> Panels:
    """Measure synthetic images.

    Args:
        images: synthetic, uint8 (n, h, w) or (n, h, w, c).
        labels: class of each image, int64 (n,), in [0, len(classes)).
        classes: names of the classes.

    Returns:
        Panels; a class without images has diversity 0 and is not flagged.
    """
    flat = images.reshape(len(images), -1)
    members = [flat[labels == index][:PAIRED_IMAGES_MAX].astype(np.float64) / 255.0 for index in range(len(classes))]
    between = _between_class_distance(members)
    panels = []
    for index, (name, group) in enumerate(zip(classes, members, strict=True)):
        diversity, twin_share = _within_class(group)
        relative = diversity / between if between > 0 else 0.0
        collapsed = len(group) > 1 and (
            twin_share > TWIN_SHARE_MAX or (between > 0 and relative < RELATIVE_DIVERSITY_MIN)
        )
        panels.append(ClassPanel(name, int((labels == index).sum()), diversity, relative, twin_share, collapsed))
    counts, _ = np.histogram(images, bins=HISTOGRAM_BINS, range=(0, 256))
    return Panels(
        images=len(images),
        classes=tuple(panels),
        exact_duplicates=len(flat) - len({row.tobytes() for row in np.ascontiguousarray(flat)}),
        between_class_distance=between,
        histogram=tuple(float(share) for share in counts / max(1, counts.sum())),
    )


def _distances(left: Floats, right: Floats) -> Floats:
    """Root-mean-square differences between the rows of (a, d) and (b, d): (a, b)."""
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :] - 2.0 * left @ right.T
    distances: Floats = np.sqrt(np.maximum(squares, 0.0) / left.shape[1])
    return distances


def _within_class(group: Floats) -> tuple[float, float]:
    """Mean pairwise distance of a class, and the share of its images that have a near twin."""
    if len(group) < 2:
        return 0.0, 0.0
    distances = _distances(group, group)
    off_diagonal = ~np.eye(len(group), dtype=bool)
    np.fill_diagonal(distances, np.inf)
    return float(distances[off_diagonal].mean()), float((distances.min(axis=1) <= TWIN_DISTANCE_MAX).mean())


def _between_class_distance(members: Sequence[Floats]) -> float:
    """Mean distance between images of different classes, each pair of classes weighted alike; 0 with one class."""
    present = [group for group in members if len(group)]
    means = [float(_distances(left, right).mean()) for i, left in enumerate(present) for right in present[i + 1 :]]
    return float(np.mean(means)) if means else 0.0
