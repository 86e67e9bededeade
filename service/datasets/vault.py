"""Stored datasets: arrays sealed under a key of each dataset's own, and the keys, whose destruction is the deletion.

A key is a file of 32 random bytes, `<keys_dir>/datasets/<content>.key`. It is on the disk before the arrays get their
name, and it is destroyed before they lose it, so that every copy of the arrays, a backup too, dies with it. The content
of a dataset has the dataset's id as its name; what was written anew, because somebody withdrew, has a number behind it
(`Dataset.content`). Functions here that take a `dataset_id` take such a name as well.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Collection, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from obscura.private_files import flush_directory, make_file_once, new_private_file, write_through
from service.errors import Conflict, NotFound
from service.failpoints import failpoint
from service.ingest.array_files import IMAGES_NAME, LABELS_NAME, SEALED_SUFFIX, SUBJECTS_NAME, context_of
from service.sealing import KEY_BYTES, SealBroken, SealedReader, new_key
from service.settings import Settings
from service.storage import storage_of
from service.storage.files import open_regular
from service.storage.interface import CONTENT, UNFINISHED, Storage, key_of

Array = np.ndarray[Any, np.dtype[Any]]
Images = np.ndarray[Any, np.dtype[np.uint8]]
Labels = np.ndarray[Any, np.dtype[np.int64]]
Subjects = np.ndarray[Any, np.dtype[np.int64]]
_BATCH_BYTES = 4 * 2**20
STAGED_DOTS = 2  # in the name of what an upload stages, `NAME.MARK.tmp`; what is written anew has one more


def open_dataset(settings: Settings, dataset_id: str) -> tuple[Images, Labels]:
    """Decrypt a stored dataset into memory, read-only. PRIVATE unless the dataset is public.

    Returns:
        Images uint8 (n, height, width) or (n, height, width, 3), and labels int64 (n), each an index into the
        declared classes.

    Raises:
        NotFound: The dataset has no content, or no key (SealBroken: the content is not what was stored).
    """
    return _read(settings, dataset_id, IMAGES_NAME), open_labels(settings, dataset_id)


def open_content(
    storage: Storage, content: str, key: bytes, *, with_subjects: bool = False
) -> tuple[Images, Labels, Subjects | None]:
    """Decrypt a stored dataset with a key that was read before. PRIVATE unless the dataset is public.

    Args:
        content: Name of the dataset's content.

    Returns:
        Images and labels as for `open_dataset`, and subjects as for `open_subjects`.

    Raises:
        NotFound: There is no content (SealBroken: the content is not what was stored under this key).
    """
    folder = _folder(storage, content)

    def read(name: str) -> Array:
        with SealedArray(folder, content, name, key) as array:
            return array.read()

    return read(IMAGES_NAME), read(LABELS_NAME), read(SUBJECTS_NAME) if with_subjects else None


def open_images(settings: Settings, dataset_id: str) -> SealedArray:
    """Open the images of a stored dataset, to be read batch by batch. PRIVATE unless the dataset is public.

    Raises:
        NotFound: As for `open_dataset`.
    """
    return _open(settings, dataset_id, IMAGES_NAME)


def open_labels(settings: Settings, dataset_id: str) -> Labels:
    """Decrypt the labels of a stored dataset alone, as `open_dataset` does."""
    return _read(settings, dataset_id, LABELS_NAME)


def open_subjects(settings: Settings, dataset_id: str) -> Subjects:
    """Decrypt the stored subjects of a dataset into memory, read-only. PRIVATE.

    Returns:
        int64 (n): for each record the random number that stands for its subject (`service.ingest.subjects`).

    Raises:
        NotFound: As for `open_dataset`, or the dataset carries no subject ids.
    """
    return _read(settings, dataset_id, SUBJECTS_NAME)


def shred(settings: Settings, dataset_id: str) -> None:
    """Destroy a dataset's key, then remove its files. Doing it twice changes nothing.

    Raises:
        Conflict: There are files, but the folder of the keys is not there, so the key cannot be destroyed.
    """
    storage = storage_of(settings)
    if not key_path(settings, dataset_id).parent.is_dir() and storage.holds(key_of(dataset_id)):
        raise Conflict("The folder of the keys is missing, so nothing was destroyed. Is its disk mounted?")
    destroy_file(key_path(settings, dataset_id))
    failpoint("shred.after")
    storage.remove(key_of(dataset_id))


def shred_all(settings: Settings, dataset_id: str, *, kept: str | None = None) -> None:
    """Destroy all that there is of a dataset, as `shred`: what it was uploaded as, and what was written anew.

    Args:
        kept: the name of the content that stays.
    """
    storage = storage_of(settings)
    there = storage.list("datasets")
    for name in {dataset_id, *_contents(dataset_id, {*stored_keys(settings), *there})} - {kept}:
        shred(settings, name)
    for name in there:  # what died while it was written anew
        if name.endswith(UNFINISHED) and name.count(".") > STAGED_DOTS and name.startswith(f"{dataset_id}."):
            storage.remove(f"datasets/{name}")


def contents_of(settings: Settings, dataset_id: str) -> list[str]:
    """Return the names of all contents of a dataset of which there is a key or a folder, the oldest first."""
    return _contents(dataset_id, stored_names(settings))


def stored_names(settings: Settings) -> set[str]:
    """Return all names under which there is a key or a folder: of contents, and of what is being staged."""
    return stored_keys(settings).union(storage_of(settings).list("datasets"))


def stored_keys(settings: Settings) -> set[str]:
    """Return the names of the contents that this machine has keys of."""
    return {path.name.removesuffix(".key") for path in (settings.keys_path / "datasets").glob("ds_*.key")}


def dataset_of(name: str) -> str | None:
    """Return whose content has this name; None where no dataset's can."""
    parts = CONTENT.fullmatch(name)
    return None if parts is None else parts[1]


def version_of(name: str) -> int:
    """Return how often a content was written anew."""
    return int(name.partition(".")[2] or 0)


def name_of(dataset_id: str, version: int) -> str:
    """Return the name of a dataset's content that was written anew for the so-manieth time, from 1 on."""
    return f"{dataset_id}.{version}"


def key_path(settings: Settings, dataset_id: str) -> Path:
    """Return where a dataset's key lies."""
    return settings.keys_path / f"{key_of(dataset_id)}.key"


def fingerprint_key_path(settings: Settings) -> Path:
    """Return where the secret lies under which images are fingerprinted."""
    return settings.keys_path / "fingerprints.key"


def make_fingerprint_key(settings: Settings) -> None:
    """Make that secret, unless there is one. Another one later would let known images pass for new.

    It appears under its name whole, so of processes that start together one makes it. A file of another length is what
    a crash of an earlier version left: nothing was ever fingerprinted under it.
    """
    path = fingerprint_key_path(settings)
    if path.exists() and path.stat().st_size != KEY_BYTES:
        path.unlink()
    if not path.exists():
        make_file_once(path, new_key())


def write_key(path: Path, key: bytes) -> None:
    """Write a key into a new file that its owner alone can read, and wait until it is on the disk.

    Raises:
        OSError: The disk failed, or there is a file already.
    """
    path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with new_private_file(path) as file:
        write_through(file, key)
    for folder in (path.parent, path.parent.parent):
        flush_directory(folder)


def read_key(path: Path) -> bytes:
    """Return a key.

    Raises:
        NotFound: The key is gone, or is not 32 bytes long.
    """
    try:
        with open_regular(path) as file:
            key = file.read(KEY_BYTES + 1)
    except NotFound:
        raise NotFound("The key of this content is not there: it was deleted, or its folder is missing.") from None
    if len(key) != KEY_BYTES:
        raise NotFound("The key of this content is damaged.")
    return key


def key_id_of(key: bytes) -> str:
    """Return what names a key without telling anything about it: 64 hex digits, which nobody can guess either."""
    return hashlib.sha256(b"obscura key 1\0" + key).hexdigest()


def destroy_file(path: Path) -> None:
    """Overwrite a small file with random bytes on the disk and remove it. A missing one is as good."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    with open(descriptor, "wb", buffering=0) as file:
        file.write(secrets.token_bytes(max(os.fstat(descriptor).st_size, 1)))
        os.fsync(descriptor)
    path.unlink(missing_ok=True)  # two processes may destroy it at the same time
    flush_directory(path.parent)


class SealedArray:
    """A sealed .npy file whose header has been read: its shape and type are known before its values are.

    Args:
        directory: that holds it.
        dataset_id: whose it is.
        name: of the array, as `images.npy`.
        key: of the dataset.

    Raises:
        NotFound: There is no such regular file, or it holds no plain array (SealBroken: it does not open).
    """

    def __init__(self, directory: Path, dataset_id: str, name: str, key: bytes) -> None:
        file = open_regular(directory / f"{name}{SEALED_SUFFIX}")
        self._reader = SealedReader(file, key, context_of(dataset_id, name))
        try:
            self.shape, self.dtype = self._header()
        except BaseException:
            self._reader.close()
            raise

    def read(self) -> Array:
        """Return the whole array, read-only."""
        values = np.empty(self.shape, self.dtype)
        self._fill(values)
        values.flags.writeable = False
        return values

    def batches(self) -> Iterator[Array]:
        """Yield the values in order, a bounded number of records at a time; the memory is used again for each batch."""
        record_bytes = max(prod(self.shape[1:]) * self.dtype.itemsize, 1)
        space = np.empty((min(max(_BATCH_BYTES // record_bytes, 1), self.shape[0]), *self.shape[1:]), self.dtype)
        for start in range(0, self.shape[0], max(len(space), 1)):
            batch = space[: self.shape[0] - start]
            self._fill(batch)
            yield batch

    def __enter__(self) -> SealedArray:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def _header(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        try:
            if np.lib.format.read_magic(self._reader) != (1, 0):
                raise SealBroken
            shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(self._reader)
        except SealBroken:
            raise
        except Exception:  # the header is a Python literal; its parser's messages quote it
            raise SealBroken from None
        values_bytes = self._reader.size - self._reader.tell()
        # Compared before anything is allocated: a header may claim any shape.
        if fortran_order or dtype.kind not in "iu" or prod(shape) * dtype.itemsize != values_bytes or not shape:
            raise SealBroken
        return shape, dtype

    def _fill(self, values: Array) -> None:
        raw = values.reshape(-1).view(np.uint8)
        if self._reader.readinto(raw) != raw.nbytes:
            raise SealBroken


def _contents(dataset_id: str, names: Collection[str]) -> list[str]:
    return sorted((name for name in names if dataset_of(name) == dataset_id), key=version_of)


def _read(settings: Settings, dataset_id: str, name: str) -> Array:
    with _open(settings, dataset_id, name) as array:
        return array.read()


def _open(settings: Settings, dataset_id: str, name: str) -> SealedArray:
    folder = _folder(storage_of(settings), dataset_id)
    return SealedArray(folder, dataset_id, name, read_key(key_path(settings, dataset_id)))


def _folder(storage: Storage, dataset_id: str) -> Path:
    try:
        return storage.open(key_of(dataset_id))
    except NotFound:
        raise NotFound("This dataset has no content.") from None
