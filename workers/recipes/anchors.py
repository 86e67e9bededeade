"""Public images of a dataset that a plan names, in the declared shape; and those on which GEP finds its basis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.public_patterns import public_patterns
from privacy.plans.plan import PublicFacts
from privacy.plans.private_steps import StepsConfig
from workers.recipes.interface import TrainingData
from workers.recipes.units import pixels_of

if TYPE_CHECKING:
    import numpy.typing as npt

_SEED = 1


class AnchorsMissing(ValueError):
    """The plan's public anchors are not there. Nothing was charged."""


def require_anchors(config: StepsConfig, data: TrainingData) -> None:
    """Let a training pass whose public anchors are there, or can be made; recipes ask before they pay.

    Raises:
        AnchorsMissing: the plan names a public dataset whose images are not there, or which has none.
    """
    if config.anchors_dataset_id and (data.public_anchors is None or not len(data.public_anchors)):
        raise AnchorsMissing("the public dataset of the anchors has no images")


def anchor_images(config: StepsConfig, facts: PublicFacts, data: TrainingData) -> Tensor:
    """Return images of which nothing is private.

    Args:
        config: `anchors` is how many, m; `anchors_dataset_id` says whether they come from a public dataset.
        facts: the declared shape, to which images of any other shape are brought.
        data: its `public_anchors` alone are read.

    Returns:
        (m, c, h, w) in [0, 1]; fewer where the public dataset has fewer. Which of its images, is a draw of a public
        seed.

    Raises:
        AnchorsMissing: as `require_anchors`.
    """
    if not config.anchors_dataset_id:
        return public_patterns(config.anchors, facts.channels, facts.height, facts.width, _SEED)
    require_anchors(config, data)
    assert data.public_anchors is not None
    stream = torch.Generator().manual_seed(_SEED)
    chosen = torch.randperm(len(data.public_anchors), generator=stream)[: config.anchors]
    return public_images(data, chosen.numpy(), facts)


def public_images(data: TrainingData, rows: npt.NDArray[np.int64], facts: PublicFacts) -> Tensor:
    """Return some images of the public dataset (n, c, h, w) in [0, 1], brought to the declared shape.

    Grey of a colour image is the mean of its channels; sizes change by bilinear interpolation with antialiasing, each
    side by its own factor.
    """
    assert data.public_anchors is not None
    images = pixels_of(data.public_anchors, rows)  # (n, 1 or 3, any, any)
    if facts.channels == 1:
        images = images.mean(dim=1, keepdim=True)
    images = images.expand(-1, facts.channels, -1, -1)
    size = (facts.height, facts.width)
    return functional.interpolate(images, size, mode="bilinear", antialias=True)
