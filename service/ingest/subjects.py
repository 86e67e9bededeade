"""Replace subject ids by numbers; the ids are not stored.

Unless subjects are recognised, the numbers are random: new for every upload, distinct, 63 bits, and independent of
everything else. So one more subject does not change the distribution of the other numbers: two such uploads can be
coupled so that all other numbers are equal. Consecutive numbers would not have this property, because one subject would
shift the others. `privacy.mechanisms.partition` continues the argument.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from obscura.wire.uploads import Fault, Refused, SubjectId, canonical

_NUMBER_BYTES = 8
_LABEL = b"obscura subject 1\0"


def subject_numbers(
    private_ids: Iterable[SubjectId], subjects_max: int, *, recognised: bool = False
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the subject's number for each record; raise Refused for a missing id or too many subjects.

    Args:
        recognised: compute each number from the id, in [0, 2^63), instead of at random. Anyone who knows an id can
            compute this number, so the service stores another number (`service.datasets.fingerprints`).
    """
    positions: dict[int | str, int] = {}  # of the subjects, in order of appearance

    def first_seen() -> Iterator[int]:
        for private_id in private_ids:
            position = positions.setdefault(canonical(private_id), len(positions))
            if position >= subjects_max:
                raise Refused(Fault.SUBJECTS_TOO_MANY)
            yield position

    indices = np.fromiter(first_seen(), dtype=np.int64)
    if not recognised:
        return random_numbers(len(positions))[indices]
    names = (_LABEL + str(name).encode("utf-8", "surrogateescape") for name in positions)
    halves = [hashlib.sha256(name).digest()[:_NUMBER_BYTES] for name in names]
    return np.array([int.from_bytes(half, "big") >> 1 for half in halves], np.int64)[indices]


def random_numbers(count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Draw `count` distinct secret numbers in [0, 2^63); all sequences are equally likely."""
    while True:
        drawn = np.frombuffer(secrets.token_bytes(_NUMBER_BYTES * count), dtype="<u8") >> np.uint64(1)
        if len(np.unique(drawn)) == count:
            return drawn.astype(np.int64)
