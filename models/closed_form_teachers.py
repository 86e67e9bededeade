"""Discriminators in closed form, one per shard, linear in pixels or in the features of a kernel.

Each takes one gradient step from w = 0 on the loss -E_real log D - E_fake log(1 - D). This needs no iteration.

With D(x, y) = sigmoid(w_y . x), the step gives a w_y in the direction mean_real,y - x for the one synthetic image x
that is queried. So a linear teacher points from the image to the mean of its own records of that class, and abstains
from classes without records. From a shard of fifteen records it can learn nothing else, and it memorises nothing.

With D(x, y) = sigmoid(w_y . phi(x)), the step gives w_y = (mean_real,y phi - mean_fake,y phi) / 2. Here phi are the
features of the kernel k(r, x) = exp(-|r - x|^2 / 2 h^2). So d log D / d x has the direction

    mean over its records r of the class: k(r, x) (r - x),  less the same mean over the student's images of the class:

a teacher pulls an image to nearby records, and away from regions with many of the student's images. That is the witness
function of the maximum mean discrepancy (Gretton et al. 2012, "A kernel two-sample test"). The features of a Gaussian
kernel distinguish all distributions, where pixels alone distinguish means, and they are public.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from models.shards import ShardBatch, Shards, blocks

_LINEAR_BLOCK_BYTES = 2**23  # of gradients at once
_KERNEL_BLOCK_BYTES = {"cpu": 2**21, "cuda": 2**26}  # of gradients: about a CPU's cache; some GPU memory
_GRID = 16  # steps of an image's pixel per step of a byte
_WEIGHTS = 2.0**24  # steps of a kernel's value from 0 to 1
_HALVINGS = 10  # exp(-u) is taken as (1 + u / 2^10)^(-2^10)


class _ClosedForm:
    """Teachers that are computed from their shards and have no further state. PRIVATE."""

    def __init__(
        self, shards: Shards, classes: int, teachers: slice, device: torch.device | str, block_bytes: int
    ) -> None:
        self.device, self._block_bytes = torch.device(device), block_bytes
        self._counts = shards.counts(classes, teachers).to(self.device)  # (N, classes)
        self.teachers = len(self._counts)

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...


class LinearTeachers(_ClosedForm):
    """N linear teachers, which store the mean record of each class. PRIVATE."""

    def __init__(
        self,
        shards: Shards,
        classes: int,
        teachers: slice = slice(None),
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(shards, classes, teachers, device, _LINEAR_BLOCK_BYTES)
        self._means = shards.means(classes, teachers).to(self.device)  # (N, classes, d)

    def update(self, real: ShardBatch, fake: Tensor, fake_labels: Tensor) -> None:
        """Do nothing, because the one step from zero is computed anew for every image."""

    def image_gradients(self, images: Tensor, labels: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield each block of teachers and the directions of d log D_i / d x_j: (n, m, d), zero for abstentions."""
        for block in blocks(self.teachers, self._block_bytes // (4 * images.numel())):
            towards = self._means[block][:, labels].sub_(images)
            yield block, towards.mul_((self._counts[block] > 0)[:, labels, None])


class KernelTeachers(_ClosedForm):
    """N teachers with a Gaussian kernel, which store their records. PRIVATE.

    Args:
        bandwidth: h, the public width of the kernel, in units of full brightness.
    """

    def __init__(
        self,
        shards: Shards,
        classes: int,
        bandwidth: float,
        teachers: slice = slice(None),
        *,
        device: torch.device | str = "cpu",
        block_bytes: int | None = None,
    ) -> None:
        suited = _KERNEL_BLOCK_BYTES.get(torch.device(device).type, 2**26)
        super().__init__(shards, classes, teachers, device, block_bytes or suited)
        self._shards, self._first, self._bandwidth = shards, teachers.start or 0, bandwidth
        self._shown, self._shown_labels = torch.zeros(0), torch.zeros(0, dtype=torch.int64)

    def update(self, real: ShardBatch, fake: Tensor, fake_labels: Tensor) -> None:
        """Store synthetic images (s, d) and labels (s,). `image_gradients` takes the one step from zero with them."""
        del real  # all of a shard's records are used
        self._shown, self._shown_labels = fake, fake_labels

    def image_gradients(self, images: Tensor, labels: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield each block of teachers and the directions of d log D_i / d x_j: (n, m, d) float32. PRIVATE.

        A teacher's direction is a function of its own records alone, to the last bit: pixels and weights are integers
        in float64, whose sums of products are exact in any order. Each weight is computed by the same few divisions and
        products at every position in a block. The direction is zero where a teacher abstains.
        """
        m, d = images.shape
        at = (images.double() * (255 * _GRID)).round_()  # (m, d) integers
        # The mean pull (m, d) of the student's images of the same class, which is public.
        shown = (self._shown.double() * (255 * _GRID)).round_()  # (s, d)
        same = self._shown_labels[:, None] == labels  # (s, m)
        pulls = self._near(shown, at) * same
        crowd = ((pulls.T @ shown - pulls.sum(0)[:, None] * at) / same.sum(0).clamp(min=1)[:, None]).float()
        for block in blocks(self.teachers, self._block_bytes // (4 * images.numel())):
            rows, own_labels, owner = self._shards.records_of(
                slice(self._first + block.start, self._first + block.stop)
            )
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

    def _near(self, rows: Tensor, at: Tensor, unit: int = 1) -> Tensor:
        """Return integer kernel values (r, m) between integer rows (r, d) times `unit` and integer images (m, d)."""
        norms = torch.linalg.vecdot(rows, rows)[:, None] * unit**2 + at.square().sum(1)
        squares = norms - 2 * unit * (rows @ at.T)  # (r, m) exact
        falls = 1 + squares * (0.5 / (self._bandwidth * 255 * _GRID) ** 2 / 2**_HALVINGS)
        for _ in range(_HALVINGS):
            falls = falls * falls
        near: Tensor = (_WEIGHTS / falls).round_()
        return near
