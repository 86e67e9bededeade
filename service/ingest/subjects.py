"""Replace subject ids by numbers; the ids are not stored.

Unless subjects are recognised (`hashed_numbers`), the numbers are random: fresh for every upload, distinct, 63 bits,
and independent of everything else. So one more subject does not change the distribution of the other numbers. Two
such uploads can be coupled so that all others have the same. Numbers that count the subjects would lack this: one
subject would move the others. `privacy.mechanisms.partition` continues the argument.
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
    """Return for each record the fresh random number of its subject; raise Refused for a missing id or too many."""
    positions: dict[int | str, int] = {}

    def first_seen() -> Iterator[int]:  # for each record, the index of its subject in order of appearance
        for private_id in private_ids:
            position = positions.setdefault(canonical(private_id), len(positions))
            if position >= subjects_max:
                raise Refused(Fault.SUBJECTS_TOO_MANY)
            yield position

    indices = np.fromiter(first_seen(), dtype=np.int64)
    return random_numbers(len(positions))[indices]


def hashed_numbers(private_ids: Iterable[SubjectId], subjects_max: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return for each record a number in [0, 2^63) that is a function of its subject's id.

    Anyone who knows an id knows its number, so the service stores others instead (`service.datasets.fingerprints`).
    Raises Refused as `subject_numbers` does.
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
    """Draw `count` distinct secret numbers in [0, 2^63); all sequences are equally likely."""
    while True:
        drawn = np.frombuffer(secrets.token_bytes(_NUMBER_BYTES * count), dtype="<u8") >> np.uint64(1)
        if len(np.unique(drawn)) == count:
            return drawn.astype(np.int64)
