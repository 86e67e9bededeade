"""The private records of every teacher: disjoint, uneven shards, read in batches of one public shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

_SUMMED_TOGETHER = 4096  # records


def blocks(teachers: int, size: int) -> Iterator[slice]:
    """Yield slices of the teachers, `size` (at least one) per block."""
    size = max(1, size)
    return (slice(at, min(at + size, teachers)) for at in range(0, teachers, size))


@dataclass(frozen=True, repr=False)
class ShardBatch:
    """`width` records of each teacher for one training step, read block by block (PRIVATE)."""

    private_records: torch.Tensor
    private_labels: torch.Tensor
    private_rows: torch.Tensor
    device: torch.device

    def read(self, block: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs (n, r, d) with bytes scaled to [0, 1], and labels (n, r), for the teachers of `block`."""
        rows = self.private_rows[block]
        # index_select copies whole rows, several times faster than advanced indexing
        inputs = self.private_records.index_select(0, rows.flatten()).view(*rows.shape, -1).to(self.device)
        inputs = inputs / 255 if inputs.dtype == torch.uint8 else inputs.float()
        return inputs, self.private_labels[rows].to(self.device)


class Shards:
    """The assignment of records to teachers.

    Args:
        private_records: (n, d) uint8 pixels or float features. Private.
        private_labels: (n,) int64. Private.
        members: for each teacher the indices of its records (`privacy.mechanisms.partition.shard_members`), possibly
            none. Private.
        device: the device of the batches; the records stay on their own device.

    Attributes:
        teachers: number of shards, empty ones included.
        active: (teachers,) bool, the teachers that have records and may vote (PRIVATE).

    Raises:
        ValueError: a record has two teachers, or an index is out of range.
    """

    def __init__(
        self,
        private_records: torch.Tensor,
        private_labels: torch.Tensor,
        members: Sequence[npt.NDArray[np.int64]],
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        if len(members) == 0 or len(private_records) != len(private_labels):
            raise ValueError("shards need at least one teacher and one label for each record")
        flat = np.concatenate(list(members)).astype(np.int64)
        if len(np.unique(flat)) != len(flat):
            raise ValueError("shards must be disjoint: a record belongs to more than one teacher")
        if len(flat) and not (flat.min() >= 0 and flat.max() < len(private_records)):
            raise ValueError("a shard contains the index of a record that does not exist")
        if len(private_records) == 0:  # all subjects withdrew: add a record without a teacher
            private_records = private_records.new_zeros(1, private_records.shape[1])
            private_labels = torch.zeros(1, dtype=torch.int64)
        self._records, self._labels = private_records, private_labels
        self._flat = torch.from_numpy(np.append(flat, 0))  # a last row to point to if all shards are empty
        self._sizes = torch.tensor([len(m) for m in members])
        self._starts = self._sizes.cumsum(0) - self._sizes
        self._device = torch.device(device)
        self.teachers, self.active = len(members), (self._sizes > 0).to(device)

    def batch(self, width: int, generator: torch.Generator, teachers: slice = slice(None)) -> ShardBatch:
        """Take `width` records of each teacher: start at a random position of its shard, and wrap around at the end.

        Args:
            width: records of one teacher in the step. A smaller shard repeats its records; rows of an empty shard are
                arbitrary.
            generator: a CPU generator, advanced by the same amount for all data and teachers.

        Returns:
            A batch of public shape (requested teachers, width). A teacher's rows depend on that teacher's shard alone;
            otherwise one record could change the rounding of other teachers' sums.
        """
        sizes = self._sizes[teachers, None]  # (n, 1)
        places = torch.rand(self.teachers, 1, generator=generator, dtype=torch.float64)[teachers]
        first = (places * sizes.clamp(min=1)).long()
        cycle = (first + torch.arange(width)) % sizes.clamp(min=1)
        rows = self._flat[(self._starts[teachers, None] + cycle).clamp(max=len(self._flat) - 1)]
        return ShardBatch(self._records, self._labels, rows, self._device)

    def counts(self, classes: int, teachers: slice = slice(None)) -> torch.Tensor:
        """Return each of these teachers' number of records of each class, (n, classes) int64. PRIVATE."""
        rows, owners = self._rows(teachers)
        group = owners * classes + self._labels[rows]
        return torch.bincount(group, minlength=len(self._sizes[teachers]) * classes).view(-1, classes)

    def means(self, classes: int, teachers: slice = slice(None)) -> torch.Tensor:
        """Return the mean of each teacher's records of each class, (n, classes, d) float32. PRIVATE.

        Sums of bytes are exact, so one record cannot change another teacher's mean, not even in the last bit. The mean
        is zero if a teacher has no record of the class.
        """
        rows, owners = self._rows(teachers)
        group = owners * classes + self._labels[rows]
        sizes, width = len(self._sizes[teachers]), self._records.shape[1]
        sums = torch.zeros(sizes * classes, width)
        for some, where in zip(torch.split(rows, _SUMMED_TOGETHER), torch.split(group, _SUMMED_TOGETHER), strict=True):
            sums.index_add_(0, where, self._records.index_select(0, some).float())
        if self._records.dtype == torch.uint8:
            sums /= 255
        counts = self.counts(classes, teachers).clamp(min=1)
        return sums.view(sizes, classes, width).div_(counts[..., None]).to(self._device)

    def records_of(self, teachers: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return all records of these teachers, teacher by teacher (PRIVATE).

        Returns:
            The records (r, d), their labels (r,), and the position (r,) of each record's teacher in the slice.
        """
        rows, owners = self._rows(teachers)
        return self._records.index_select(0, rows), self._labels[rows], owners

    def _rows(self, teachers: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the records of these teachers, teacher by teacher, and the position of each record's teacher."""
        first, sizes = int(self._starts[teachers][0]), self._sizes[teachers]
        return self._flat[first : first + int(sizes.sum())], torch.arange(len(sizes)).repeat_interleave(sizes)
