"""Stored datasets: arrays sealed under one key per dataset, and the keys. Destroying a key deletes the dataset.

A key is a file of 32 random bytes, `<keys_dir>/datasets/<content>.key`. It is written before the arrays are published,
and destroyed before they are removed. Then every copy of the arrays, including backups, is unreadable. Content is named
by its dataset's id; after a withdrawal it is rewritten under a numbered name (`Dataset.content`).
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from obscura.private_files import flush_directory, make_file_once, new_private_file, write_through
from service.db.session import SessionFactory
from service.errors import Conflict, NotFound
from service.failpoints import failpoint
from service.ingest.array_files import IMAGES_NAME, LABELS_NAME, SEALED_SUFFIX, SUBJECTS_NAME, ArrayFile, context_of
from service.sealing import KEY_BYTES, SealBroken, SealedReader, new_key
from service.settings import Settings
from service.storage import storage_of
from service.storage.interface import CONTENT, UNFINISHED, Storage, key_of, open_regular
from service.times import Clock

Array = np.ndarray[Any, np.dtype[Any]]
Images = np.ndarray[Any, np.dtype[np.uint8]]
Labels = np.ndarray[Any, np.dtype[np.int64]]
Subjects = np.ndarray[Any, np.dtype[np.int64]]
_BATCH_BYTES = 4 * 2**20
STAGED_DOTS = 2  # in the name of an upload's staging folder, `NAME.MARK.tmp`; rewritten content has one more


@dataclass(frozen=True)
class Vault:
    """The storage of sealed datasets, and this machine's folder of keys. The argument `name` names a content."""

    storage: Storage
    keys_path: Path

    @classmethod
    def of(cls, settings: Settings) -> Vault:
        return cls(storage_of(settings), settings.keys_path)

    def open_dataset(self, name: str) -> tuple[Images, Labels]:
        """Decrypt images and labels into memory with this machine's key, as `open_content` does."""
        with self.open_array(name, IMAGES_NAME) as images, self.open_array(name, LABELS_NAME) as labels:
            return images.read(), labels.read()

    def open_array(self, name: str, array: str) -> SealedArray:
        """Open an array, such as IMAGES_NAME, or raise NotFound. PRIVATE unless the dataset is public."""
        return SealedArray(_folder(self.storage, name), name, array, read_key(self.key_path(name)))

    def shred(self, name: str) -> None:
        """Destroy a content's key, then remove the content. Idempotent. Raise Conflict if the key folder is missing."""
        key, path = key_of(name), self.key_path(name)
        if not path.parent.is_dir() and self.storage.holds(key):
            raise Conflict(
                "The folder of the keys is missing, so nothing was destroyed. Check that its disk is mounted."
            )
        destroy_file(path)
        failpoint("shred.after")
        self.storage.remove(key)

    def shred_all(self, dataset_id: str, *, kept: str | None = None) -> None:
        """Shred all contents of a dataset except `kept`, including remains of an interrupted rewrite."""
        listed = self.storage.list("datasets")
        contents = (name for name in {*self.stored_keys(), *listed} if dataset_of(name) == dataset_id)
        for name in {dataset_id, *contents} - {kept}:
            self.shred(name)
        for name in listed:
            if name.endswith(UNFINISHED) and name.count(".") > STAGED_DOTS and name.startswith(f"{dataset_id}."):
                self.storage.remove(f"datasets/{name}")

    def contents_of(self, dataset_id: str) -> list[str]:
        """Return the names of a dataset's contents that have a key or a folder, oldest first."""
        return sorted((name for name in self.stored_names() if dataset_of(name) == dataset_id), key=version_of)

    def stored_names(self) -> set[str]:
        """Return all names that have a key or a folder, including staging folders."""
        return self.stored_keys().union(self.storage.list("datasets"))

    def stored_keys(self) -> set[str]:
        """Return the names of the contents whose keys are on this machine."""
        return {path.name.removesuffix(".key") for path in (self.keys_path / "datasets").glob("ds_*.key")}

    def key_path(self, name: str) -> Path:
        return self.keys_path / f"{key_of(name)}.key"

    def rewrite(self, present: str, dataset_id: str, numbers: Collection[int]) -> tuple[str, bytes]:
        """Publish a dataset's content without some subjects, under a new name and key; return the name and the key.

        `numbers` are the stored numbers of the subjects to remove. PRIVATE. If the key of `present` is missing, the
        database is older than the vault. Then the newest content with a key is rewritten.
        """
        names = self.contents_of(dataset_id)
        newer = [name for name in names if version_of(name) > version_of(present)]
        source = next((name for name in (present, *newer[::-1]) if self.key_path(name).exists()), present)
        target, key = f"{dataset_id}.{max(map(version_of, [present, *names])) + 1}", new_key()
        with self.storage.stage(key_of(target)) as staged:
            with self.open_array(source, SUBJECTS_NAME) as subjects:
                stays = ~np.isin(subjects.read(), np.fromiter(numbers, np.int64))
            for name in (SUBJECTS_NAME, LABELS_NAME, IMAGES_NAME):
                with self.open_array(source, name) as array:
                    shape, path = (int(stays.sum()), *array.shape[1:]), staged / f"{name}{SEALED_SUFFIX}"
                    with ArrayFile(path, shape, array.dtype, key=key, context=context_of(target, name)) as stored:
                        at = 0
                        for batch in array.batches():
                            stored.append(batch[stays[at : at + len(batch)]])
                            at += len(batch)
            self.storage.send(staged, key_of(target))
            write_key(self.key_path(target), key)
            self.storage.publish(staged, key_of(target))
        return target, key


@dataclass(frozen=True)
class DatasetContext:
    """The dependencies for receiving or rewriting a dataset, created once per request."""

    settings: Settings
    factory: SessionFactory
    clock: Clock

    @property
    def vault(self) -> Vault:
        return Vault.of(self.settings)


def open_content(
    storage: Storage, content: str, key: bytes, *, with_subjects: bool = False
) -> tuple[Images, Labels, Subjects | None]:
    """Decrypt a stored dataset into memory, read-only. PRIVATE unless the dataset is public.

    Returns:
        Images uint8 (n, height, width) or (n, height, width, 3); labels int64 (n), indexes into the declared classes;
        and, if `with_subjects`, subjects int64 (n): the random number of each record's subject.

    Raises:
        NotFound: there is no content.
        SealBroken: the content was changed, or sealed under another key. A subclass of NotFound.
    """
    folder, arrays = _folder(storage, content), list[Array]()
    for name in (IMAGES_NAME, LABELS_NAME, *((SUBJECTS_NAME,) if with_subjects else ())):
        with SealedArray(folder, content, name, key) as array:
            arrays.append(array.read())
    return arrays[0], arrays[1], arrays[2] if with_subjects else None


def dataset_of(name: str) -> str | None:
    """Return the id of the dataset whose content has this name; None if it is not a name of content."""
    parts = CONTENT.fullmatch(name)
    return None if parts is None else parts[1]


def version_of(name: str) -> int:
    """Return how often a dataset had been rewritten for withdrawals when this content was written."""
    return int(name.partition(".")[2] or 0)


def fingerprint_key_path(settings: Settings) -> Path:
    return settings.keys_path / "fingerprints.key"


def make_fingerprint_key(settings: Settings) -> None:
    """Create the secret key of fingerprints, atomically, unless it exists. With a new key, known images look new."""
    path = fingerprint_key_path(settings)
    if not path.exists():
        make_file_once(path, new_key())


def write_key(path: Path, key: bytes) -> None:
    """Write a key durably into a new private file."""
    path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with new_private_file(path) as file:
        write_through(file, key)
    for folder in (path.parent, path.parent.parent):
        flush_directory(folder)


def read_key(path: Path) -> bytes:
    """Return a key; raise NotFound if it is missing or damaged."""
    try:
        with open_regular(path) as file:
            key = file.read(KEY_BYTES + 1)
    except NotFound:
        raise NotFound("The key of this content is missing: it was deleted, or its folder is not mounted.") from None
    if len(key) != KEY_BYTES:
        raise NotFound("The key of this content is damaged.")
    return key


def key_id_of(key: bytes) -> str:
    """Return an identifier of a key, 64 hex digits, that reveals nothing about the key."""
    return hashlib.sha256(b"obscura key 1\0" + key).hexdigest()


def destroy_file(path: Path) -> None:
    """Overwrite a small file with random bytes on the disk and remove it. Idempotent."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    with open(descriptor, "wb", buffering=0) as file:
        file.write(secrets.token_bytes(max(os.fstat(descriptor).st_size, 1)))
        os.fsync(descriptor)
    path.unlink(missing_ok=True)  # another process may destroy it at the same time
    flush_directory(path.parent)


class SealedArray(AbstractContextManager["SealedArray"]):
    """A sealed .npy file whose header has been read, so its shape and type are known before its values are read.

    Raises:
        NotFound: there is no such regular file.
        SealBroken: the file does not open, or does not contain a plain array. A subclass of NotFound.
    """

    def __init__(self, directory: Path, content: str, name: str, key: bytes) -> None:
        file = open_regular(directory / f"{name}{SEALED_SUFFIX}")
        self._reader = SealedReader(file, key, context_of(content, name))
        try:
            if np.lib.format.read_magic(self._reader) != (1, 0):
                raise SealBroken
            shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(self._reader)
            values_bytes = self._reader.size - self._reader.tell()
            # Checked before anything is allocated: a header may claim any shape.
            if fortran_order or dtype.kind not in "iu" or not shape or prod(shape) * dtype.itemsize != values_bytes:
                raise SealBroken
        except Exception:  # the header is a Python literal, and the parser's messages quote it
            self._reader.close()
            raise SealBroken from None
        self.shape, self.dtype = shape, dtype

    def read(self) -> Array:
        """Return the whole array, read-only."""
        values = np.empty(self.shape, self.dtype)
        self._fill(values)
        values.flags.writeable = False
        return values

    def batches(self) -> Iterator[Array]:
        """Yield the values in order, a bounded number of records at a time. The memory is reused for each batch."""
        record_bytes = max(prod(self.shape[1:]) * self.dtype.itemsize, 1)
        space = np.empty((min(max(_BATCH_BYTES // record_bytes, 1), self.shape[0]), *self.shape[1:]), self.dtype)
        for start in range(0, self.shape[0], max(len(space), 1)):
            batch = space[: self.shape[0] - start]
            self._fill(batch)
            yield batch

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def _fill(self, values: Array) -> None:
        raw = values.reshape(-1).view(np.uint8)
        if self._reader.readinto(raw) != raw.nbytes:
            raise SealBroken


def _folder(storage: Storage, name: str) -> Path:
    try:
        return storage.open(key_of(name))
    except NotFound:
        raise NotFound("This dataset has no content.") from None
