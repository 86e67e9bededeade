"""Discriminators that are linear in the features of a Gaussian kernel, one to a shard: a gradient step in closed form.

With D(x, y) = sigmoid(w_y . phi(x)) and phi the features of the kernel k(r, x) = exp(-|r - x|^2 / 2 h^2), a gradient
step from w = 0 on -E_real log D - E_fake log(1 - D) gives w_y = (mean_real,y phi - mean_fake,y phi) / 2. So
d log D / d x is along

    mean over its records r of the class: k(r, x) (r - x),  less the same mean over the student's images of the class:

a teacher pulls an image to those of its records that are near, and away from where the student's images crowd. That is
the witness function of the maximum mean discrepancy (Gretton et al. 2012, "A kernel two-sample test"). The features of
a Gaussian kernel tell all distributions apart, where pixels alone tell means, and they are public.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from models.shards import Shards
from models.teacher_ensemble import RealBatch

_BLOCK_BYTES = {"cpu": 2**21, "cuda": 2**26}  # of gradients at a time: about a processor's cache; some GPU memory
_GRID = 16  # steps of an image's pixel to a step of a byte
_WEIGHTS = 2.0**24  # steps of a kernel's value from 0 to 1
_HALVINGS = 10  # exp(-u) is taken as (1 + u / 2^10)^(-2^10)


class KernelTeachers:
    """What N such teachers know: their records. PRIVATE.

    Args:
        shards: the records, as bytes of d pixels. PRIVATE.
        bandwidth: h, the public distance within which a record is near, in units of full brightness.
        teachers: those whose shards are asked for, side by side.
    """

    def __init__(
        self,
        shards: Shards,
        classes: int,
        bandwidth: float,
        teachers: slice = slice(None),
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        self.device = torch.device(device)
        self._shards, self._first = shards, teachers.start or 0
        self._counts = shards.counts(classes, teachers).to(self.device)  # (N, classes)
        self.teachers, self._bandwidth = len(self._counts), bandwidth
        self._shown, self._shown_labels = torch.zeros(0), torch.zeros(0, dtype=torch.int64)

    def __repr__(self) -> str:
        return f"KernelTeachers(teachers={self.teachers}, <private>)"

    def update(self, real: RealBatch, fake: Tensor, fake_labels: Tensor) -> None:
        """Take the one step from zero anew, against these synthetic images (s, d) of classes (s,)."""
        del real  # all of a shard's records are looked at
        self.show(fake, fake_labels)

    def show(self, images: Tensor, labels: Tensor) -> None:
        """Take these synthetic images for the student's, from now on."""
        self._shown, self._shown_labels = images, labels

    def image_gradients(self, images: Tensor, labels: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield the direction of d log D_i / d x_j for blocks of teachers (PRIVATE).

        A teacher's is a function of its own records alone, to the last bit: pixels and weights are integers in float64,
        whose sums of products are exact in whatever order they are added, and each weight takes the same few divisions
        and products, wherever in a block its record stands.

        Args:
            images: (m, d) synthetic inputs x_j.
            labels: (m,) int64.

        Yields:
            The block of teachers and their directions, (n, m, d) float32; zero where a teacher abstains.
        """
        m, d = images.shape
        at = (images.double() * (255 * _GRID)).round_()  # (m, d) integers
        crowd = self._crowd(at, labels).float()  # (m, d)
        size = max(1, _BLOCK_BYTES.get(self.device.type, 2**26) // (4 * images.numel()))
        for start in range(0, self.teachers, size):
            block = slice(start, min(start + size, self.teachers))
            rows, own_labels, owner = self._shards.records_of(slice(self._first + start, self._first + block.stop))
            records = rows.to(self.device).double()  # (r, d) bytes
            weights = self._near(records, at, _GRID)  # (r, m) integers
            record, image = (own_labels.to(self.device)[:, None] == labels).nonzero(as_tuple=True)  # (e,)
            weight = weights[record, image]
            place = owner.to(self.device)[record] * m + image  # (e,)
            n = block.stop - block.start
            pull = torch.zeros(n * m, d, dtype=torch.float64, device=self.device)
            pull.index_add_(0, place, records[record].mul_(weight[:, None]))
            whole = torch.zeros(n * m, dtype=torch.float64, device=self.device).index_add_(0, place, weight)
            counts = self._counts[block][:, labels, None].float()  # (n, m, 1)
            each = counts.clamp(min=1)
            g = pull.float().view(n, m, d).mul_(_GRID / each)
            g.addcmul_(whole.float().view(n, m, 1) / each, at.float(), value=-1.0).sub_(crowd)
            yield block, g.mul_(counts > 0)

    def _crowd(self, at: Tensor, labels: Tensor) -> Tensor:
        """Return the mean pull (m, d) of the student's images of each image's class. Public."""
        shown = (self._shown.double() * (255 * _GRID)).round_()  # (s, d)
        same = self._shown_labels[:, None] == labels  # (s, m)
        weights = self._near(shown, at) * same
        return (weights.T @ shown - weights.sum(0)[:, None] * at) / same.sum(0).clamp(min=1)[:, None]

    def _near(self, rows: Tensor, at: Tensor, unit: int = 1) -> Tensor:
        """Return the kernel's values of rows (r, d) in units of `unit`, and images (m, d), integers all: (r, m)."""
        norms = torch.linalg.vecdot(rows, rows)[:, None] * unit**2 + at.square().sum(1)
        squares = norms - 2 * unit * (rows @ at.T)  # (r, m) exact
        falls = 1 + squares * (0.5 / (self._bandwidth * 255 * _GRID) ** 2 / 2**_HALVINGS)
        for _ in range(_HALVINGS):
            falls = falls * falls
        near: Tensor = (_WEIGHTS / falls).round_()
        return near

    def state_dict(self) -> dict[str, Tensor]:
        """Return nothing: they are computed from the shards."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over nothing."""
