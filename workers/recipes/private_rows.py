"""From sampled units to a network's rows: which records stand for a unit in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from privacy.errors import ContributionUnbounded
from privacy.mechanisms.noise import SecureNoise

if TYPE_CHECKING:
    import numpy.typing as npt

    from privacy.plans.plan import PublicFacts
    from privacy.plans.private_steps import StepsConfig
    from workers.recipes.interface import TrainingData


class Units:
    """The units of a dataset, each with its records. PRIVATE.

    Privacy:
        A sampled record gives its own rows. A sampled subject gives `records_per_subject` rows, drawn with replacement
        from that subject's records alone, whose mean gradient is clipped as one: so whatever its records are, a
        subject adds what one record adds where the unit is the record.

    Attributes:
        count: of the units that are there. PRIVATE.
        rows_each: records drawn for one sampled unit.
    """

    def __init__(self, facts: PublicFacts, config: StepsConfig, data: TrainingData) -> None:
        """Find each subject's records.

        Raises:
            ContributionUnbounded: the account protects subjects, and nobody knows whose the records are.
        """
        if facts.unit == "record":
            self._starts = self._order = None
            self.count, self.rows_each = len(data.private_labels), 1
            return
        if data.private_subjects is None:
            raise ContributionUnbounded("the account protects subjects, and the data do not say whose the records are")
        subjects = np.asarray(data.private_subjects)
        self._order = np.argsort(subjects, kind="stable")
        _, starts = np.unique(subjects[self._order], return_index=True)
        self._starts = np.append(starts, len(subjects))
        self.count, self.rows_each = len(starts), config.records_per_subject

    def records(self, drawn: npt.NDArray[np.int64], coins: SecureNoise) -> npt.NDArray[np.int64]:
        """Return the records (len(drawn) * rows_each,) of sampled units; those of one unit stand beside each other."""
        if self._order is None or self._starts is None:
            return drawn
        first, sizes = self._starts[drawn], self._starts[drawn + 1] - self._starts[drawn]
        picks = np.floor(coins.uniform((len(drawn), self.rows_each)) * sizes[:, None]).astype(np.int64)
        found: npt.NDArray[np.int64] = self._order[(first[:, None] + np.minimum(picks, sizes[:, None] - 1)).reshape(-1)]
        return found


def pixels_of(private_images: npt.NDArray[np.uint8], records: npt.NDArray[np.int64]) -> Tensor:
    """Return some records' pixels (n, c, h, w) in [0, 1]. PRIVATE."""
    chosen = np.asarray(private_images[records])
    chosen = chosen[:, None] if chosen.ndim == 3 else chosen.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(chosen)).float() / 255


def labels_of(private_labels: npt.NDArray[np.int64], records: npt.NDArray[np.int64]) -> Tensor:
    """Return some records' labels (n,). PRIVATE."""
    return torch.from_numpy(np.array(private_labels[records], dtype=np.int64))
