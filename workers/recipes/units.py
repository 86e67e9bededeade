"""The account's unit, in a recipe's terms: which teacher learns from a record, and which records a sum may add."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from privacy.errors import ContributionUnbounded
from privacy.mechanisms.contribution import assert_one_record_each, one_record_each
from privacy.mechanisms.noise import derive_key
from privacy.mechanisms.partition import assert_disjoint, record_units, shard_of, subject_units

if TYPE_CHECKING:
    import numpy.typing as npt

    from privacy.plans.plan import PublicFacts
    from workers.recipes.interface import TrainingData


def teacher_of_each(facts: PublicFacts, data: TrainingData, secret: bytes, teachers: int) -> npt.NDArray[np.int64]:
    """Return each record's teacher (n,): a keyed hash of its unit. Private.

    Privacy:
        A unit's records all have one teacher, whose place depends on no other unit (`privacy.mechanisms.partition`).

    Raises:
        ContributionUnbounded: a unit would have two teachers, or nobody knows whose the records are.
    """
    if facts.unit == "subject":
        units = subject_units(_subjects(data))
    else:
        units = record_units(np.asarray(data.private_images), data.private_labels)
    assigned = shard_of(units, derive_key(secret, "shards"), teachers)
    assert_disjoint(units, assigned, teachers)
    return assigned


def records_to_sum(
    facts: PublicFacts, data: TrainingData, secret: bytes
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the images and labels that a sum over records may add up: all, or one of each subject. Private.

    Privacy:
        A unit owns at most one of them, so a sum's sensitivity to a record is its sensitivity to a unit
        (`privacy.mechanisms.contribution`). The choice is the same in every attempt at a job.

    Raises:
        ContributionUnbounded: a subject would own two, or nobody knows whose the records are.
    """
    if facts.unit == "record":
        return data.private_images, data.private_labels
    private_subjects = _subjects(data)
    records = record_units(np.asarray(data.private_images), data.private_labels)
    chosen = one_record_each(private_subjects, records, derive_key(secret, "contributions"))
    assert_one_record_each(private_subjects[chosen])
    return data.private_images[chosen], data.private_labels[chosen]


def _subjects(data: TrainingData) -> npt.NDArray[np.int64]:
    if data.private_subjects is None:
        raise ContributionUnbounded("the account protects subjects, and the data do not say whose the records are")
    return np.asarray(data.private_subjects)
