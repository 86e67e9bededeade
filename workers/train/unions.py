"""Several datasets as the one that a recipe reads, and the keys of all of them as one key.

Where the unit is the record, an image that lies in several of them is one record, whose account pays for it once. So it
is read from one of them: as often as the one has it that has it most often, and not at all where its labels differ.
Both are decided in silence, for whether datasets share an image is private.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from privacy.mechanisms.noise import derive_key
from service.datasets import vault
from service.datasets.vault import Images, Labels, Subjects
from service.storage.interface import Storage

_DIGEST_BYTES = 16


def key_of_all(keys: Collection[bytes]) -> bytes:
    """Return the key of what is made from datasets together: of one, its own. Without one of them it cannot be made."""
    first, *further = keys
    return derive_key(b"".join(keys), "datasets read together", len(keys)) if further else first


def open_together(
    storage: Storage, keys: Mapping[str, bytes], *, with_subjects: bool
) -> tuple[Images, Labels, Subjects | None]:
    """Decrypt datasets into memory, one behind the other. PRIVATE.

    Args:
        keys: of their contents, by the contents' names.

    Returns:
        Images, labels and subjects as `vault.open_dataset` and `vault.open_subjects` return those of one dataset.

    Raises:
        NotFound: one of them has no content.
    """
    private_images, private_labels, counts = vault.open_datasets(storage, keys)
    if with_subjects:  # recipes bound what one adds, wherever the records are from
        return private_images, private_labels, vault.open_all_subjects(storage, keys)
    if len(counts) == 1:
        return private_images, private_labels, None
    read = read_once(private_images, private_labels, np.repeat(np.arange(len(counts)), counts))
    return (private_images, private_labels, None) if read.all() else (private_images[read], private_labels[read], None)


def read_once(
    private_images: Images, private_labels: Labels, of_dataset: np.ndarray[Any, np.dtype[np.int64]]
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Tell which records are read, where several datasets may have the same one. PRIVATE.

    Args:
        private_images: (n, ...) uint8.
        private_labels: (n,).
        of_dataset: (n,) the number of each record's dataset.

    Privacy:
        Let no dataset have an image twice: what does is not covered (`privacy.accounting.certificate`). A record is an
        image with its copies in any of the datasets, in each of which it may have another label. It gives one record
        where all labels agree, and none where they do not, whatever else there is. So a record more or less, or fewer
        or more copies of it, change what is read by one record at most.
    """
    digests = b"".join(hashlib.blake2b(image, digest_size=_DIGEST_BYTES).digest() for image in private_images)
    _, image = np.unique(np.frombuffer(digests, dtype=f"S{_DIGEST_BYTES}"), return_inverse=True)
    copies = np.zeros((int(image.max()) + 1, int(of_dataset.max()) + 1), np.int32)
    np.add.at(copies, (image, of_dataset), 1)
    least, most = np.full(len(copies), np.iinfo(np.int64).max), np.full(len(copies), -1)
    np.minimum.at(least, image, private_labels)
    np.maximum.at(most, image, private_labels)
    alone, alike = (copies > 0).sum(axis=1) == 1, least == most
    chosen = of_dataset == copies.argmax(axis=1)[image]
    read: np.ndarray[Any, np.dtype[np.bool_]] = alone[image] | (alike[image] & chosen)
    return read
