"""The recipes a runner can train, by the name that plans and jobs use."""

from __future__ import annotations

from collections.abc import Mapping

from workers.recipes import class_histogram, datalens, dp_classifier, dp_diffusion, dpgan
from workers.recipes.interface import Trainer

TRAINERS: Mapping[str, Trainer] = {
    "class_histogram": class_histogram.train,
    "datalens": datalens.train,
    "dp_classifier": dp_classifier.train,
    "dp_diffusion": dp_diffusion.train,
    "dpgan": dpgan.train,
}

# Those that several processes train faster than one (`workers.recipes.ranks`).
TOGETHER: frozenset[Trainer] = frozenset({datalens.train, dp_classifier.train, dp_diffusion.train, dpgan.train})
