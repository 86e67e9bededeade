"""Assign each unit independently of the others: shards and records by keyed hash, Poisson samples by secret coins.

Shards: compare the runs on neighbours D and D', where D' has one more unit. A denotes the shards of the units of D. If
A has the same distribution in both runs, then given A = a the releases are those of neighbours with fixed shards: only
one teacher's data differ. Every bound proven for fixed shards (epsilon and delta, Renyi divergence, trade-off function)
then holds. It would hold even if a were published: a reveals nothing about the added unit.

A has the same distribution in both runs:

* *Records.* A shard is a function of the secret key and the record's own label and pixels.
* *Subjects.* A shard is a function of the secret key and the subject's number. Numbers were drawn at the upload,
  uniformly among sequences of distinct numbers (`service.ingest.array_files`); the part of a sequence for D' that
  belongs to D is again uniform. So the numbers of D's units, and A, have the same distribution in both runs, for all
  jobs on the dataset together.

Sums: a sum over records has the sensitivity of one record only if a unit owns one record. Votes are sums over teachers.

Samples: every unit's own coin decides whether it enters a batch, as the accountant assumes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from privacy.errors import ContributionUnbounded, InvalidParameter, PrivacyError
from privacy.mechanisms.noise import SecureNoise

SHARDS_MAX = 1 << 20
KEY_BYTES_MIN = 16
NOBODY = -1  # an empty place of a pass
_DIGEST_BYTES = 16


def record_units(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Encode private labels (n,) and images (n, ...) as rows (n, 8 + pixels) uint8. Equal records get equal rows.

    Raises:
        InvalidParameter: labels and images differ in length.
    """
    if len(images) != len(labels):
        raise InvalidParameter("labels", "(hidden)", "each image needs one label")
    label_bytes = np.ascontiguousarray(labels, dtype="<i8").view(np.uint8).reshape(len(labels), 8)
    pixels = int(np.prod(images.shape[1:]))
    return np.concatenate([label_bytes, images.reshape(len(images), pixels)], axis=1)


def subject_units(private_subjects: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Encode the private subject numbers (n,), which the upload drew at random, as rows (n, 8) uint8."""
    return np.ascontiguousarray(private_subjects, dtype="<i8").view(np.uint8).reshape(len(private_subjects), 8)


def shard_of(units: npt.NDArray[np.uint8], key: bytes, shards: int) -> npt.NDArray[np.int64]:
    """Assign every unit to a shard by BLAKE2b of its bytes under a secret key.

    Args:
        units: (n, bytes) rows of `record_units` or `subject_units`. Private.
        key: the job's partition key, 16 to 64 bytes. Private: an attacker who knew it could choose a shard.
        shards: number of shards (teachers). Public.

    Returns:
        (n,) int64 in [0, shards). Sizes are uneven; shards may be empty.

    Privacy:
        A shard is a function of (key, unit) alone, so adding or removing a unit changes one shard and no other.

    Raises:
        InvalidParameter: the key or the number of shards is out of range, or units are not rows of bytes.
    """
    if not 1 <= shards <= SHARDS_MAX:
        raise InvalidParameter("shards", shards, f"it must be between 1 and {SHARDS_MAX}")
    if not KEY_BYTES_MIN <= len(key) <= hashlib.blake2b.MAX_KEY_SIZE:
        raise InvalidParameter("key", "(hidden)", f"a partition key must have {KEY_BYTES_MIN} to 64 bytes")
    digests = b"".join(
        hashlib.blake2b(unit, key=key, digest_size=8, person=b"obscura shard").digest() for unit in _rows(units)
    )
    return (np.frombuffer(digests, dtype="<u8") % np.uint64(shards)).astype(np.int64)


def shard_members(assigned: npt.NDArray[np.int64], shards: int) -> list[npt.NDArray[np.int64]]:
    """Return the ascending indices of each shard's records; empty shards have empty arrays."""
    order = np.argsort(assigned, kind="stable")
    ends = np.cumsum(np.bincount(assigned, minlength=shards))
    return np.split(order, ends[:-1])


def assert_disjoint(units: npt.NDArray[np.uint8], assigned: npt.NDArray[np.int64], shards: int) -> None:
    """Raise unless every record has one shard (n,) in range, and all records of a unit have the same shard.

    Raises:
        PrivacyError: a record has no shard, or a shard that does not exist.
        ContributionUnbounded: a unit is in two shards; the message does not name it.
    """
    if len(assigned) != len(units):
        raise PrivacyError("the partition does not assign every record exactly once")
    if len(assigned) and (int(assigned.min()) < 0 or int(assigned.max()) >= shards):
        raise PrivacyError("the partition names a shard that does not exist")
    home: dict[bytes, int] = {}
    for unit, shard in zip(_rows(units), assigned.tolist(), strict=True):
        if home.setdefault(bytes(unit), shard) != shard:
            raise ContributionUnbounded("the partition is not disjoint: one unit is in two shards")


def _rows(units: npt.NDArray[np.uint8]) -> Iterator[memoryview]:
    if units.dtype != np.uint8 or units.ndim != 2 or units.shape[1] == 0:
        raise InvalidParameter("units", "(hidden)", "units must be rows of uint8, each of at least one byte")
    view = np.ascontiguousarray(units).data.cast("B") if units.size else memoryview(b"")
    size = units.shape[1]
    return (view[i : i + size] for i in range(0, len(view), size))


def one_record_each(
    private_subjects: npt.NDArray[np.int64], private_records: Iterable[npt.NDArray[np.uint8]], key: bytes
) -> npt.NDArray[np.int64]:
    """Choose one record of every subject: the record with the smallest BLAKE2b digest under a secret key.

    Args:
        private_subjects: (n,) each record's subject. Private.
        private_records: n rows (bytes,) uint8 of label and pixels (`record_units`), read one at a time. Private.
        key: the job's key for this choice, 16 to 64 bytes. Private.

    Returns:
        (subjects,) int64, the chosen records' indices, ascending.

    Privacy:
        Adjacency add/remove of one subject with all its records. The choice is a function of the key and the subject's
        own records alone (if digests are equal, the first wins). So the chosen records of neighbours differ by exactly
        one. A sum over them has the same sensitivity to a subject as to a record.

    Raises:
        InvalidParameter: the numbers of subjects and rows differ, or the key is out of range.
    """
    if not KEY_BYTES_MIN <= len(key) <= hashlib.blake2b.MAX_KEY_SIZE:
        raise InvalidParameter("key", "(hidden)", f"a key must have {KEY_BYTES_MIN} to 64 bytes")
    digests = b"".join(
        hashlib.blake2b(row.tobytes(), key=key, digest_size=_DIGEST_BYTES, person=b"obscura choice").digest()
        for row in private_records
    )
    if len(digests) != _DIGEST_BYTES * len(private_subjects):
        raise InvalidParameter("private_subjects", "(hidden)", "each record needs one subject")
    if not digests:
        return np.zeros(0, dtype=np.int64)
    high, low = np.frombuffer(digests, dtype=">u8").reshape(-1, 2).T
    order = np.lexsort((low, high, private_subjects))  # by subject, then by digest; equal digests keep their order
    sorted_subjects = private_subjects[order]
    first = np.append(True, sorted_subjects[1:] != sorted_subjects[:-1])
    return np.sort(order[first])


def assert_one_record_each(private_subjects: npt.NDArray[np.int64]) -> None:
    """Raise ContributionUnbounded if a subject owns two records of a sum. Call this before the charge."""
    if len(np.unique(private_subjects)) != len(private_subjects):
        raise ContributionUnbounded("a subject would add more than one record to a sum")


def poisson_sample(units: int, probability: float, noise: SecureNoise) -> npt.NDArray[np.int64]:
    """Draw one Poisson sample: each unit is in it with one probability, independently of the others.

    Args:
        units: number of units (records or subjects). Private.
        probability: chance of each unit to be in the sample, in (0, 1]. Public.
        noise: a generator for this step alone.

    Returns:
        (batch,) ascending indices, possibly none. PRIVATE, as is their number: amplification needs an unknown sample.

    Privacy:
        Each unit is drawn independently with at most `probability` (rounded down to a multiple of 2^-53). So
        `PoissonGaussianEvent(probability, ...)` describes a noisy sum over the sample. One more unit shifts the later
        coins of the stream; coins are independent, so the distribution stays the same.

    Raises:
        InvalidParameter: the probability is not in (0, 1], or the number of units is negative.
    """
    if not 0 < probability <= 1:
        raise InvalidParameter("probability", probability, "a sampling probability must be above 0 and at most 1")
    if units < 0:
        raise InvalidParameter("units", units, "the number of units cannot be negative")
    return np.flatnonzero(noise.uniform(units) + 2.0**-53 <= probability)


def deal_passes(
    drawn: npt.NDArray[np.int64], units: int, size: int, groups: int, noise: SecureNoise
) -> list[list[npt.NDArray[np.int64]]]:
    """Divide a sample into groups by each unit's own coin, and each group into passes (batches) of one size.

    Args:
        drawn: (batch,) result of `poisson_sample`, ascending. PRIVATE.
        units: number of units, as for `poisson_sample`. PRIVATE.
        size: places of a pass. Public.
        groups: number of groups. Public.
        noise: a generator for this step and purpose alone.

    Returns:
        For each group its passes (size,) of ascending indices, with `NOBODY` in the empty places at the end. PRIVATE,
            including their number.

    Privacy:
        A unit's group does not depend on the other units. So one more unit changes only its own group's passes, where
        later units move by one place. (Later coins of the stream shift; they are independent of all data.)
    """
    group_of = (noise.integers64(units) % np.uint64(groups))[drawn] if groups > 1 else np.zeros(len(drawn))
    passes = []
    for group in range(groups):
        members = drawn[group_of == group]
        places = np.full(-(-len(members) // size) * size, NOBODY)
        places[: len(members)] = members
        passes.append(list(places.reshape(-1, size)))
    return passes
