"""How many images come of one seed: in batches, each with a random stream of its own, and from numbers to pixels.

All of it is part of the format of a sample: changed, it would give other images for the same seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

IMAGES_PER_BATCH = 256


def batches(count: int, seed: int, chosen: Sequence[int]) -> Iterator[tuple[Tensor, torch.Generator]]:
    """Yield the labels (b,) int64 and the random stream of each batch, `count` labels in all.

    Args:
        count: of images.
        seed: public, 0 <= seed < 2**63.
        chosen: labels that take turns.
    """
    every = torch.tensor(chosen, dtype=torch.int64)
    for batch, start in enumerate(range(0, count, IMAGES_PER_BATCH)):
        labels = every[torch.arange(start, min(start + IMAGES_PER_BATCH, count)) % len(every)]
        digest = hashlib.sha256(f"obscura/sample/{seed}/{batch}".encode()).digest()
        yield labels, torch.Generator(device="cpu").manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def to_pixels(values: Tensor) -> Tensor:
    """Turn images (b, c, h, w) in [0, 1] into pixels (b, h, w, c) uint8 on the CPU."""
    pixels = (values.clamp(0, 1) * 255).round().to(torch.uint8)
    return pixels.permute(0, 2, 3, 1).contiguous().cpu()
