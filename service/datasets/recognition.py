"""Subjects that are known again: the same number in every dataset of a project, and no second budget.

What the confined process hands over is a hash of each id, which whoever knows the id could compute. In its place go
halves of an HMAC under this installation's secret, which is 32 bytes that no upload ever meets: one is the number under
which the subject's records are stored, the other its fingerprint. A subject's number depends on its own id alone, so
one more subject changes nobody else's; to whoever does not have the secret the numbers of an upload are as random as if
they had been drawn (`privacy.mechanisms.partition`).

Ids mean something within a project: in another one, the same id is somebody else.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import numpy as np

from service.datasets.fingerprints import DIGEST_BYTES, Fingerprints

Numbers = np.ndarray[Any, np.dtype[np.int64]]
_LABEL = b"obscura recognised subject 1\0"
_NUMBER_BYTES = 8


def recognise(private_hashes: Numbers, project_id: str, key: bytes) -> tuple[Numbers, Fingerprints]:
    """Return the stored number of each record's subject (n,), and the fingerprints of the subjects. PRIVATE.

    Args:
        private_hashes: (n,) what `service.ingest.subjects.hashed_numbers` made of the ids.
        project_id: in which the ids mean something.
        key: the secret of this installation, 32 bytes.

    Raises:
        ValueError: two subjects would have one number, which is as unlikely as guessing one.
    """
    subjects, of_record = np.unique(private_hashes, return_inverse=True)
    start = hmac.new(key, _LABEL + project_id.encode() + b"\0", hashlib.sha256)
    digests = []
    for subject in subjects.astype(">i8"):
        each = start.copy()
        each.update(subject.tobytes())
        digests.append(each.digest())
    numbers = np.array([int.from_bytes(digest[:_NUMBER_BYTES], "big") >> 1 for digest in digests], np.int64)
    if len(np.unique(numbers)) != len(numbers):
        raise ValueError
    return numbers[of_record], frozenset(digest[-DIGEST_BYTES:] for digest in digests)
