"""The account's unit, in a recipe's terms: which teacher learns from a record, which records a sum may add, and which
records stand for a sampled unit in one step.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from privacy.errors import ContributionUnbounded
from privacy.mechanisms.noise import SecureNoise, derive_key
from privacy.mechanisms.partition import (
    assert_disjoint,
    assert_one_record_each,
    one_record_each,
    record_units,
    shard_of,
    subject_units,
)
from privacy.mechanisms.sampling import NOBODY
from workers.recipes.ranks import rank, ranks

if TYPE_CHECKING:
    import numpy.typing as npt

    from privacy.plans.plan import PublicFacts
    from privacy.plans.private_steps import StepsConfig
    from workers.recipes.interface import TrainingData

_RECORDS = 64  # whose bytes are copied at once


def teacher_of_each(facts: PublicFacts, data: TrainingData, secret: bytes, teachers: int) -> npt.NDArray[np.int64]:
    """Return each record's teacher (n,): a keyed hash of its unit. Private.

    Privacy:
        A unit's records all have one teacher, whose place depends on no other unit (`privacy.mechanisms.partition`).

    Raises:
        ContributionUnbounded: a unit would have two teachers, or nobody knows whose the records are.
    """
    private_subjects, key = _subjects(facts, data), derive_key(secret, "shards")
    if private_subjects is None:
        units = record_units(np.asarray(data.private_images), data.private_labels)
    else:
        units = subject_units(private_subjects)
    assigned = shard_of(units, key, teachers)
    assert_disjoint(units, assigned, teachers)
    return assigned


def records_to_sum(
    facts: PublicFacts, data: TrainingData, secret: bytes
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the images and labels that a sum over records may add up: all, or one of each subject. Private.

    Privacy:
        A unit owns at most one of them, so a sum's sensitivity to a record is its sensitivity to a unit
        (`privacy.mechanisms.partition`). The choice is the same in every attempt at a job.

    Raises:
        ContributionUnbounded: a subject would own two, or nobody knows whose the records are.
    """
    private_subjects = _subjects(facts, data)
    if private_subjects is None:
        return data.private_images, data.private_labels
    key = derive_key(secret, "contributions")
    blocks = (slice(at, at + _RECORDS) for at in range(0, len(data.private_images), _RECORDS))
    records = (record_units(np.asarray(data.private_images[block]), data.private_labels[block]) for block in blocks)
    chosen = one_record_each(private_subjects, chain.from_iterable(records), key)
    assert_one_record_each(private_subjects[chosen])
    return data.private_images[chosen], data.private_labels[chosen]


def records_of_rank(
    private_images: npt.NDArray[np.uint8], private_labels: npt.NDArray[np.int64], secret: bytes
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the images and labels that this rank adds up; the parts of all ranks are disjoint and cover them. Private.

    Privacy:
        A record's rank is a keyed hash of the record alone (`privacy.mechanisms.partition`). So one record more or
        less leaves every other record at its rank, wherever it stands in the dataset.
    """
    if ranks() == 1:
        return private_images, private_labels
    key, own = derive_key(secret, "ranks"), np.zeros(len(private_labels), dtype=np.bool_)
    for at in range(0, len(private_labels), _RECORDS):
        block = slice(at, at + _RECORDS)
        units = record_units(np.asarray(private_images[block]), private_labels[block])
        own[block] = shard_of(units, key, ranks()) == rank()
    return private_images[own], private_labels[own]


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
        subjects = _subjects(facts, data)
        if subjects is None:
            self._starts = self._order = None
            self.count, self.rows_each = len(data.private_labels), 1
            return
        self._order = np.argsort(subjects, kind="stable")
        _, starts = np.unique(subjects[self._order], return_index=True)
        self._starts = np.append(starts, len(subjects))
        self.count, self.rows_each = len(starts), config.records_per_subject

    def records(self, drawn: npt.NDArray[np.int64], coins: SecureNoise) -> npt.NDArray[np.int64]:
        """Return the records (len(drawn) * rows_each,) of sampled units; those of one unit stand beside each other.

        `NOBODY` has no records: `NOBODY` stands in their places.
        """
        if self._order is None or self._starts is None:
            return drawn
        found = np.full((len(drawn), self.rows_each), NOBODY)
        there = drawn != NOBODY
        first, last = self._starts[drawn[there]], self._starts[drawn[there] + 1] - 1
        shares = coins.uniform(found.shape)[there]  # (units, rows_each)
        picks = np.floor(shares * (last - first + 1)[:, None]).astype(np.int64)
        found[there] = self._order[np.minimum(first[:, None] + picks, last[:, None])]
        return found.reshape(-1)


def pixels_of(private_images: npt.NDArray[np.uint8], records: npt.NDArray[np.int64]) -> Tensor:
    """Return some records' pixels (n, c, h, w) in [0, 1]; `NOBODY`'s are black. PRIVATE."""
    chosen = _chosen(private_images, records)
    chosen = chosen[:, None] if chosen.ndim == 3 else chosen.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(chosen)).float() / 255


def labels_of(private_labels: npt.NDArray[np.int64], records: npt.NDArray[np.int64]) -> Tensor:
    """Return some records' labels (n,); `NOBODY`'s is 0. PRIVATE."""
    return torch.from_numpy(_chosen(private_labels, records).astype(np.int64))


def _chosen(values: npt.NDArray[Any], records: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    there = records != NOBODY
    chosen = np.zeros((len(records), *values.shape[1:]), dtype=values.dtype)
    chosen[there] = values[records[there]]
    return chosen


def _subjects(facts: PublicFacts, data: TrainingData) -> npt.NDArray[np.int64] | None:
    """Return the number of each record's subject; None where the unit is the record."""
    if facts.unit == "record":
        return None
    if data.private_subjects is None:
        raise ContributionUnbounded("the account protects subjects, and the data do not say whose the records are")
    return np.asarray(data.private_subjects)
