"""Public images made from a seed: overlapping rectangles and discs of random size and brightness ("dead leaves").

They replace missing public auxiliary images (Baradad et al. 2021, arXiv:2106.05963, train on such images; sizes follow
a power law, so edges occur at every scale as in photographs).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

_SHAPES = 24


def public_patterns(count: int, channels: int, height: int, width: int, seed: int) -> Tensor:
    """Return m patterns (m, channels, height, width) float32 in [0, 1]; equal public seeds give equal patterns."""
    uniform = partial(torch.rand, generator=torch.Generator().manual_seed(seed))
    y = (torch.arange(height) + 0.5)[None, :, None] / height
    x = (torch.arange(width) + 0.5)[None, None] / width
    images = uniform(count, channels, 1, 1).expand(count, channels, height, width).clone()
    for _ in range(_SHAPES):
        centre, colour = uniform(count, 2, 1, 1), uniform(count, channels, 1, 1)
        radius = 0.5 / (1 + 15 * uniform(count, 1, 1))  # many small ones, few large ones
        stretch = 0.5 + uniform(count, 1, 1)
        dy, dx = (y - centre[:, 0]).abs() * stretch, (x - centre[:, 1]).abs()
        box, disc = torch.maximum(dy, dx), (dy**2 + dx**2).sqrt()
        inside = torch.where(uniform(count, 1, 1) < 0.5, box, disc) < radius  # (m, h, w)
        images = torch.where(inside[:, None], colour, images)
    return images
