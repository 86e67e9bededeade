"""Whose record each one is. The ids end here: what is stored are random numbers in their place.

The numbers are drawn afresh for every upload, one for each distinct id, uniformly among the ways to give the subjects
distinct numbers of 63 bits, and depend on nothing else. So an upload with one subject more gives all others numbers of
the same distribution, whatever the ids are and wherever that subject's records stand, and two such uploads can be
coupled so that everybody else's number is the same. Numbers that count the subjects (in order of appearance, or in
alphabetical order) would lack this: one subject's presence would move the numbers of others.
`privacy.mechanisms.partition` continues the argument.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from obscura.wire.faults import Fault, Refused
from obscura.wire.subjects import SubjectId, canonical

_NUMBER_BYTES = 8


def subject_numbers(private_ids: Iterable[SubjectId], subjects_max: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return for each record the fresh random number of its subject.

    Raises:
        Refused: An id is missing, or there are more than `subjects_max` subjects.
    """
    first_seen = np.fromiter(_first_seen(private_ids, subjects_max), dtype=np.int64)
    return random_numbers(int(first_seen.max()) + 1)[first_seen]


def random_numbers(count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Draw `count` distinct secret numbers in [0, 2^63); every sequence of distinct numbers is equally likely."""
    while True:
        drawn = np.frombuffer(secrets.token_bytes(_NUMBER_BYTES * count), dtype="<u8") >> np.uint64(1)
        if len(np.unique(drawn)) == count:
            return drawn.astype(np.int64)


def _first_seen(private_ids: Iterable[SubjectId], subjects_max: int) -> Iterator[int]:
    """Yield for each record the position of its subject among the distinct ones so far."""
    positions: dict[int | str, int] = {}
    for private_id in private_ids:
        position = positions.setdefault(canonical(private_id), len(positions))
        if position >= subjects_max:
            raise Refused(Fault.SUBJECTS_TOO_MANY)
        yield position
