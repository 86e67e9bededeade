"""Disjoint shards by keyed hash: one unit touches one teacher, and no unit's place depends on another's presence.

The guarantee compares the runs on two neighbours D and D', where D' has one unit more. Let A be the shards of the
units of D. If A has the same distribution in both runs, then for every value a of A the two runs' releases, given
A = a, are those of neighbours with fixed shards: one teacher's data differ and nothing else does. Every bound proven
for fixed shards (epsilon and delta, Renyi divergence, trade-off function) then holds for the whole, because it holds
even if a, which tells nothing about the added unit, were published too.

A has the same distribution in both runs:

* *Records.* A shard is a function of the secret key and of the record's own label and pixels. A is the same for the
  same key.
* *Subjects.* A shard is a function of the secret key and of the subject's number, and the numbers were drawn at the
  upload, uniformly among the sequences of distinct numbers (`service.ingest.subjects`). Of a sequence drawn for D', the
  part that belongs to D is again uniform among the sequences of distinct numbers. So the numbers of the units of D
  have the same distribution in both runs, and with them A, whatever the key and the hash function are. That holds for
  all jobs on the dataset together: they share the numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from privacy.errors import ContributionUnbounded, InvalidParameter, PrivacyError

SHARDS_MAX = 1 << 20
KEY_BYTES_MIN = 16

Units = npt.NDArray[np.uint8] | Sequence[bytes]


def record_units(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return one row of bytes per record, its label and pixels, for accounts whose unit is the record.

    Equal records give equal rows and so meet in one shard.

    Args:
        images: (n, ...) uint8. Private.
        labels: (n,) integers. Private.

    Returns:
        (n, 8 + pixels) uint8.

    Raises:
        InvalidParameter: the two differ in length.
    """
    if len(images) != len(labels):
        raise InvalidParameter("labels", "(hidden)", "there is one label for each image")
    label_bytes = np.ascontiguousarray(labels, dtype="<i8").view(np.uint8).reshape(len(labels), 8)
    pixels = int(np.prod(images.shape[1:]))
    return np.concatenate([label_bytes, images.reshape(len(images), pixels)], axis=1)


def subject_units(private_subjects: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return one row of bytes per record, its subject's number, for accounts whose unit is the subject.

    Args:
        private_subjects: (n,) integers, random numbers from the upload. Private.

    Returns:
        (n, 8) uint8.
    """
    return np.ascontiguousarray(private_subjects, dtype="<i8").view(np.uint8).reshape(len(private_subjects), 8)


def shard_of(units: Units, key: bytes, shards: int) -> npt.NDArray[np.int64]:
    """Assign every unit to a shard by BLAKE2b of its bytes under a secret key.

    Args:
        units: (n, bytes) uint8 rows (`record_units` or `subject_units`), or n byte strings. Private.
        key: the job's partition key, 16 to 64 bytes. Private: whoever knew it could choose its shard.
        shards: number of shards (teachers), public.

    Returns:
        (n,) int64 in [0, shards). Sizes are uneven and some shards may be empty.

    Privacy:
        The shard is a function of (key, unit) alone. Adding or removing a unit therefore changes one shard and
        leaves every other one as it was, whatever the unit is: a record, or all records of a subject. The argument
        from here to the guarantee stands at the top of this file.

    Raises:
        InvalidParameter: the key or the number of shards is out of range, or a unit is empty.
    """
    if not 1 <= shards <= SHARDS_MAX:
        raise InvalidParameter("shards", shards, f"between 1 and {SHARDS_MAX} shards")
    if not KEY_BYTES_MIN <= len(key) <= hashlib.blake2b.MAX_KEY_SIZE:
        raise InvalidParameter("key", "(hidden)", f"a partition key has {KEY_BYTES_MIN} to 64 bytes")
    digests = b"".join(
        hashlib.blake2b(unit, key=key, digest_size=8, person=b"obscura shard").digest() for unit in _rows(units)
    )
    return (np.frombuffer(digests, dtype="<u8") % np.uint64(shards)).astype(np.int64)


def shard_members(assigned: npt.NDArray[np.int64], shards: int) -> list[npt.NDArray[np.int64]]:
    """Return for each shard the indices of its records, ascending; empty shards have empty arrays."""
    order = np.argsort(assigned, kind="stable")
    ends = np.cumsum(np.bincount(assigned, minlength=shards))
    return np.split(order, ends[:-1])


def assert_disjoint(units: Units, assigned: npt.NDArray[np.int64], shards: int) -> None:
    """Check that every record has one shard in range and that all records of a unit share theirs.

    Args:
        units: the unit of each record, as in `shard_of`.
        assigned: (n,) the shard of each record.
        shards: number of shards.

    Raises:
        PrivacyError: a record has no shard, or one that does not exist.
        ContributionUnbounded: a unit lies in two shards and would change two teachers' votes. No message names it.
    """
    if len(assigned) != len(units):
        raise PrivacyError("the partition does not assign every record exactly once")
    if len(assigned) and (int(assigned.min()) < 0 or int(assigned.max()) >= shards):
        raise PrivacyError("the partition names a shard that does not exist")
    home: dict[bytes, int] = {}
    for unit, shard in zip(_rows(units), assigned.tolist(), strict=True):
        if home.setdefault(bytes(unit), shard) != shard:
            raise ContributionUnbounded("the partition is not disjoint: one unit lies in two shards")


def _rows(units: Units) -> Iterable[bytes | memoryview]:
    """Iterate over the units' bytes, without copying rows of an array."""
    if isinstance(units, np.ndarray):
        if units.dtype != np.uint8 or units.ndim != 2 or units.shape[1] == 0:
            raise InvalidParameter("units", "(hidden)", "units are rows of uint8 of at least one byte")
        view = np.ascontiguousarray(units).data.cast("B") if units.size else memoryview(b"")
        size = units.shape[1]
        return (view[i : i + size] for i in range(0, len(view), size))
    if any(len(unit) == 0 for unit in units):
        raise InvalidParameter("units", "(hidden)", "a unit without an id belongs to no one; declare an id for it")
    return iter(units)
