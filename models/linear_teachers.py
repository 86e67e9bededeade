"""Linear discriminators, one to a shard, as one tensor program: a gradient step from zero in closed form.

With D(x, y) = sigmoid(w_y . x), a gradient step from w = 0 on -E_real log D - E_fake log(1 - D) gives w_y along
mean_real,y - x for the one synthetic image x that is asked about: a teacher points from the image to the mean of its
own records of that class. It abstains from classes of which it has none. A shard of fifteen records teaches a linear
teacher nothing else, and leaves it nothing to memorise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from models.shards import Shards
from models.teacher_ensemble import RealBatch

_BLOCK_BYTES = 8 * 2**20  # of gradients at a time


class LinearTeachers:
    """What N linear teachers know: the mean record of each class. PRIVATE.

    Args:
        shards: the records, in a space of d numbers. PRIVATE.
        teachers: those whose shards are asked for, side by side.
    """

    def __init__(
        self, shards: Shards, classes: int, teachers: slice = slice(None), *, device: torch.device | str = "cpu"
    ) -> None:
        self.device = torch.device(device)
        self._means = shards.means(classes, teachers).to(self.device)  # (N, classes, d)
        self._there = (shards.counts(classes, teachers) > 0).to(self.device)  # (N, classes)
        self.teachers = len(self._there)

    def __repr__(self) -> str:
        return f"LinearTeachers(teachers={self.teachers}, <private>)"

    def update(self, real: RealBatch, fake: Tensor, fake_labels: Tensor) -> None:
        """Learn nothing: the one step from zero is taken anew for every image."""

    def image_gradients(self, images: Tensor, labels: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield the direction of d log D_i / d x_j for blocks of teachers (PRIVATE).

        Args:
            images: (m, d) synthetic inputs x_j.
            labels: (m,) int64.

        Yields:
            The block of teachers and their directions, (n, m, d) float32; zero where a teacher abstains.
        """
        size = max(1, _BLOCK_BYTES // (4 * images.numel()))
        for start in range(0, self.teachers, size):
            block = slice(start, min(start + size, self.teachers))
            towards = self._means[block][:, labels].sub_(images)
            yield block, towards.mul_(self._there[block][:, labels, None])

    def state_dict(self) -> dict[str, Tensor]:
        """Return nothing: they are computed from the shards."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over nothing."""
