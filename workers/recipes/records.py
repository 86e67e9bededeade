"""Private records and public images as tensors. Private records are grouped by the account's unit.

Fixed features of private images are computed once, in blocks where each image's result depends on that image alone. The
result must be the same at every position of a block, whatever the other positions contain, as in passes of private
steps (`privacy.gradients.arithmetic`). A test on public images halves the block size until this holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from models.stand_ins import public_patterns
from privacy.errors import ContributionUnbounded
from privacy.gradients.estimator import Estimator
from privacy.gradients.places import rows_alike
from privacy.mechanisms.noise import SecureNoise, derive_key
from privacy.mechanisms.partition import (
    NOBODY,
    assert_disjoint,
    assert_one_record_each,
    one_record_each,
    record_units,
    shard_of,
    subject_units,
)
from privacy.plans.plan import PublicFacts
from privacy.plans.private_steps import StepsConfig
from workers.recipes.interface import TrainingData
from workers.recipes.ranks import rank, ranks

_RECORDS = 64  # records copied at once
_SEED = 1
Compute = Callable[[npt.NDArray[np.uint8]], Tensor]
_PUBLIC_IMAGES = 32
_PASS_NUMBERS = 2**26  # numbers of per-record gradients in memory at once
# On a CPU they should fit into its cache. Linear layers do not count: few of their gradients are written out at once.
_PASS_NUMBERS_GOOD = {"cpu": 2**22, "cuda": 2**26}
_PASS_ROWS_MAX = {"cpu": 64, "cuda": 4096}
_PASS_ROWS_SMALL, _PASS_INPUTS_SMALL = 512, 2**18  # on a CPU more rows, if all inputs have fewer numbers
_PASS_ROWS_GOOD = 8  # with fewer rows, overhead exceeds the cache's gain
_ROUND = 32  # places of a pass, or a smaller power of two; see `privacy.gradients.arithmetic`


def teacher_of_each(facts: PublicFacts, data: TrainingData, secret: bytes, teachers: int) -> npt.NDArray[np.int64]:
    """Return the number (n,) of each record's teacher, which is a keyed hash of the record's unit. Private.

    Raise ContributionUnbounded if a unit would have two teachers, or the data lack the records' subjects.

    Privacy:
        A unit's records all have one teacher, which depends on no other unit (`privacy.mechanisms.partition`).
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
    """Return the images and labels that a sum may add up. Private.

    They are all records or, if the account protects subjects, one record of each subject.

    Raise ContributionUnbounded if a subject would own two records, or the data lack the records' subjects.

    Privacy:
        A unit owns at most one of these records, so a sum's sensitivity to a record is its sensitivity to a unit
        (`privacy.mechanisms.partition`). The choice is the same in every attempt at a job.
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
    """Return the images and labels that this rank adds up. Ranks' parts are disjoint and cover all records. Private.

    Privacy:
        A record's rank is a keyed hash of the record alone (`privacy.mechanisms.partition`), so one record more or less
        leaves every other record at its rank.
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
    """The `count` units of a dataset, with their records. PRIVATE. A sampled unit has `rows_each` rows.

    Raise ContributionUnbounded if the account protects subjects, and the data lack the records' subjects.

    Privacy:
        A sampled record contributes its own rows. A sampled subject contributes `records_per_subject` rows, drawn with
        replacement from that subject's records alone. Their mean gradient is clipped once, so a subject adds at most as
        much as one record.
    """

    def __init__(self, facts: PublicFacts, config: StepsConfig, data: TrainingData) -> None:
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
        """Return the record numbers (len(drawn) * rows_each,) of sampled units, unit by unit. `NOBODY` is padding."""
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
    """Return the pixels (n, c, h, w) in [0, 1] of some records, black for `NOBODY`. PRIVATE."""
    chosen = _chosen(private_images, records)
    chosen = chosen[:, None] if chosen.ndim == 3 else chosen.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(chosen)).float() / 255


def labels_of(private_labels: npt.NDArray[np.int64], records: npt.NDArray[np.int64]) -> Tensor:
    """Return the labels (n,) of some records, 0 for `NOBODY`. PRIVATE."""
    return torch.from_numpy(_chosen(private_labels, records).astype(np.int64))


def _chosen(values: npt.NDArray[Any], records: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    there = records != NOBODY
    chosen = np.zeros((len(records), *values.shape[1:]), dtype=values.dtype)
    chosen[there] = values[records[there]]
    return chosen


def _subjects(facts: PublicFacts, data: TrainingData) -> npt.NDArray[np.int64] | None:
    if facts.unit == "record":
        return None
    if data.private_subjects is None:
        raise ContributionUnbounded("the account protects subjects, but the data lack the records' subjects")
    return np.asarray(data.private_subjects)


class AnchorsMissing(ValueError):
    """The plan's public dataset has no usable images. Nothing was charged."""


def anchor_images(config: StepsConfig, facts: PublicFacts, data: TrainingData) -> Tensor:
    """Return the public images (m, c, h, w) in [0, 1] from which GEP computes its basis. Call this before paying.

    They are patterns from a public seed, or a random selection from the plan's public dataset. m is `config.anchors`,
    or less if that dataset has fewer images. Raise AnchorsMissing if the dataset has no images.
    """
    if not config.anchors_dataset_id:
        return public_patterns(config.anchors, facts.channels, facts.height, facts.width, _SEED)
    if data.public_anchors is None or not len(data.public_anchors):
        raise AnchorsMissing("the public dataset for the anchors has no images; choose another")
    stream = torch.Generator().manual_seed(_SEED)
    chosen = torch.randperm(len(data.public_anchors), generator=stream)[: config.anchors]
    return public_images(data, chosen.numpy(), facts)


def public_images(data: TrainingData, rows: npt.NDArray[np.int64], facts: PublicFacts) -> Tensor:
    """Return the images `rows` of the public dataset, converted to the declared shape: (n, c, h, w) in [0, 1].

    A colour image becomes grey by the mean of its channels; resizing is bilinear with antialiasing.
    """
    assert data.public_anchors is not None
    images = pixels_of(data.public_anchors, rows)  # (n, 1 or 3, any, any)
    if facts.channels == 1:
        images = images.mean(dim=1, keepdim=True)
    images = images.expand(-1, facts.channels, -1, -1)
    size = (facts.height, facts.width)
    return functional.interpolate(images, size, mode="bilinear", antialias=True)


def alike_block(compute: Compute, shape: tuple[int, ...], most: int, agreed: Callable[[bool], bool]) -> int:
    """Return the block size: `most`, halved until an image's result is the same at every position of a block.

    `compute` maps images (n, *shape) uint8 to (n, ...); `agreed` returns whether all processes agree.
    """
    images = np.random.default_rng(0).integers(0, 256, (_PUBLIC_IMAGES, *shape), dtype=np.uint8)
    size = most
    while size > 1 and not agreed(rows_alike(lambda chosen: compute(images[chosen.numpy()]), size, len(images))):
        size //= 2
    return size


def computed_alike(
    private_images: npt.NDArray[np.uint8],
    compute: Compute,
    most: int,
    agreed: Callable[[bool], bool] = lambda alike: alike,
) -> Tensor:
    """Apply `compute` to images (n, ...) in blocks of the size from `alike_block`; return (n, ...). PRIVATE.

    The last block is padded with black images.
    """
    size = alike_block(compute, private_images.shape[1:], most, agreed)
    n, found = len(private_images), torch.empty(0)
    for at in range(0, max(1, n), size):  # without images, only the shape
        block = np.zeros((size, *private_images.shape[1:]), dtype=np.uint8)
        there = private_images[at : at + size]
        block[: len(there)] = there
        part = compute(block)
        if at == 0:
            found = part.new_empty(n, *part.shape[1:])
        found[at : at + size] = part[: len(there)]
    return found


def pass_size(estimator: Estimator, repeats: int, inputs: int, device: torch.device) -> int:
    """Return how many units, of `repeats` rows each, go through the network in one pass. The number is public.

    Large passes are fast, but the last pass is half empty on average. So a pass is as large as memory and caches allow,
    but no larger than most samples. With several ranks, it is no larger than a rank's part of most samples.
    """
    small = min(_PASS_ROWS_SMALL, _PASS_INPUTS_SMALL // inputs)
    most = max(1, max(_PASS_ROWS_MAX[device.type], small) // repeats)
    fitting = _PASS_NUMBERS / estimator.coordinates
    written = sum(math.prod(shape) for shape in estimator.shapes.values() if len(shape) != 2)
    good = max(_PASS_NUMBERS_GOOD[device.type] / max(1, written), _PASS_ROWS_GOOD / repeats)
    room = min(fitting, good)
    expected = estimator.expected_batch / ranks()
    size = min(most, room, expected + 2 * math.sqrt(expected))
    return round(size / _ROUND) * _ROUND if size > _ROUND else 2 ** max(0, round(math.log2(size)))
