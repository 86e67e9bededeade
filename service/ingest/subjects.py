"""Whose record each one is. The ids end here: what is stored are random numbers in their place.

But for subjects that are to be recognised (`hashed_numbers`), the numbers are drawn afresh for every upload, one for
each distinct id, uniformly among the ways to give the subjects distinct numbers of 63 bits, and depend on nothing else.
So an upload with one subject more gives all others numbers of the same distribution, whatever the ids are and wherever
that subject's records stand, and two such uploads can be coupled so that everybody else's number is the same. Numbers
that count the subjects (in order of appearance, or in alphabetical order) would lack this: one subject's presence would
move the numbers of others.
`privacy.mechanisms.partition` continues the argument.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from obscura.wire.faults import Fault, Refused
from obscura.wire.subjects import SubjectId, canonical

_NUMBER_BYTES = 8
_LABEL = b"obscura subject 1\0"


def subject_numbers(private_ids: Iterable[SubjectId], subjects_max: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return for each record the fresh random number of its subject.

    Raises:
        Refused: An id is missing, or there are more than `subjects_max` subjects.
    """
    first_seen = np.fromiter(_first_seen(private_ids, subjects_max), dtype=np.int64)
    return random_numbers(int(first_seen.max()) + 1)[first_seen]


def hashed_numbers(private_ids: Iterable[SubjectId], subjects_max: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return for each record the same number, in [0, 2^63), as for its subject in every other upload.

    Whoever knows an id knows its number. So these are for the service alone, which stores others in their place
    (`service.datasets.recognition`). That two ids share a number is as unlikely as a collision of 63 bits.

    Raises:
        Refused: As for `subject_numbers`.
    """
    numbers: dict[int | str, int] = {}
    names = [canonical(private_id) for private_id in private_ids]
    for name in names:
        if name not in numbers:
            digest = hashlib.sha256(_LABEL + str(name).encode("utf-8", "surrogateescape")).digest()
            numbers[name] = int.from_bytes(digest[:_NUMBER_BYTES], "big") >> 1
            if len(numbers) > subjects_max:
                raise Refused(Fault.SUBJECTS_TOO_MANY)
    return np.array([numbers[name] for name in names], dtype=np.int64)


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
