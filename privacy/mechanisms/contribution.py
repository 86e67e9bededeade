"""What one subject may add to a sum: one record, so that a sensitivity proven for a record holds for a subject.

A sum over records has the sensitivity of one record only if a unit owns one record. Votes need none of this: they are
sums over teachers, and all records of a subject lie in one teacher's shard (`privacy.mechanisms.partition`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from privacy.errors import ContributionUnbounded, InvalidParameter
from privacy.mechanisms.partition import KEY_BYTES_MIN

_DIGEST_BYTES = 16


def one_record_each(
    private_subjects: npt.NDArray[np.int64], private_records: Iterable[npt.NDArray[np.uint8]], key: bytes
) -> npt.NDArray[np.int64]:
    """Choose one record of every subject: the one whose content has the smallest BLAKE2b digest under a secret key.

    Args:
        private_subjects: (n,) the number of each record's subject. Private.
        private_records: n rows (bytes,) uint8, each record's label and pixels (`partition.record_units`), of which only
            one has to be there at a time. Private.
        key: the job's key for this choice, 16 to 64 bytes. Private.

    Returns:
        (subjects,) int64, the chosen records' indices, ascending.

    Privacy:
        Adjacency add/remove of one subject, that is of all its records. Which record is chosen is a function of the
        key and of the subject's own records alone (of two with equal digests, the first). So with a subject added,
        every other subject's choice is what it was, and the chosen records of the two neighbours differ by exactly
        one record. Any sum over the chosen records therefore changes by what one record adds: its sensitivity to a
        subject is its sensitivity to a record, whatever the number of records a subject has.

    Raises:
        InvalidParameter: there are more or fewer subjects than rows, or the key is out of range.
    """
    if not KEY_BYTES_MIN <= len(key) <= hashlib.blake2b.MAX_KEY_SIZE:
        raise InvalidParameter("key", "(hidden)", f"a key has {KEY_BYTES_MIN} to 64 bytes")
    digests = b"".join(
        hashlib.blake2b(row.tobytes(), key=key, digest_size=_DIGEST_BYTES, person=b"obscura choice").digest()
        for row in private_records
    )
    if len(digests) != _DIGEST_BYTES * len(private_subjects):
        raise InvalidParameter("private_subjects", "(hidden)", "there is one subject for each record")
    if not digests:
        return np.zeros(0, dtype=np.int64)
    high, low = np.frombuffer(digests, dtype=">u8").reshape(-1, 2).T
    order = np.lexsort((low, high, private_subjects))  # by subject, then by digest; equal ones keep their order
    sorted_subjects = private_subjects[order]
    first = np.append(True, sorted_subjects[1:] != sorted_subjects[:-1])
    return np.sort(order[first])


def assert_one_record_each(private_subjects: npt.NDArray[np.int64]) -> None:
    """Check, before a sum over these records is paid for, that no subject owns two of them.

    Raises:
        ContributionUnbounded: one does; the message names neither subject nor number.
    """
    if len(np.unique(private_subjects)) != len(private_subjects):
        raise ContributionUnbounded("a subject would add more than one record to a sum")
