"""The public images on which GEP finds its basis, whatever the network: those of a public dataset, or patterns."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from models.public_patterns import public_patterns
from privacy.plans.plan import PublicFacts
from privacy.plans.private_steps import StepsConfig
from workers.recipes.interface import TrainingData
from workers.recipes.units import pixels_of

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
    images = pixels_of(data.public_anchors, chosen.numpy())  # (m, 1 or 3, any, any)
    if facts.channels == 1:
        images = images.mean(dim=1, keepdim=True)
    images = images.expand(-1, facts.channels, -1, -1)
    size = (facts.height, facts.width)
    return functional.interpolate(images, size, mode="bilinear", antialias=True)
