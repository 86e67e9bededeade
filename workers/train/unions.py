"""Several datasets as the one that a recipe reads, and the keys of all of them as one key.

Where the unit is the record, an image that lies in several of them is one record, whose account pays for it once. So it
is read from one of them: as often as the one has it that has it most often, and not at all where its labels differ.
Both are decided in silence, for whether datasets share an image is private.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from privacy.mechanisms.noise import derive_key
from service.datasets import vault
from service.datasets.vault import Images, Labels, Subjects
from service.settings import Settings

_DIGEST_BYTES = 16


def key_of_all(keys: Sequence[bytes]) -> bytes:
    """Return the key of what is made from datasets together: of one, its own. Without one of them it cannot be made."""
    return keys[0] if len(keys) == 1 else derive_key(b"".join(keys), "datasets read together", len(keys))


def open_together(
    settings: Settings, dataset_ids: Sequence[str], *, with_subjects: bool
) -> tuple[Images, Labels, Subjects | None]:
    """Decrypt datasets into memory, one behind the other. PRIVATE.

    Returns:
        Images, labels and subjects as `vault.open_dataset` and `vault.open_subjects` return those of one dataset.

    Raises:
        NotFound: one of them has no content, or no key.
    """
    if len(dataset_ids) == 1:
        subjects = vault.open_subjects(settings, dataset_ids[0]) if with_subjects else None
        return *vault.open_dataset(settings, dataset_ids[0]), subjects
    private_images, private_labels, counts = vault.open_datasets(settings, dataset_ids)
    if with_subjects:  # recipes bound what one adds, wherever the records are from
        return private_images, private_labels, vault.open_all_subjects(settings, dataset_ids)
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
