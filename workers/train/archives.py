"""Zip and tar archives of samples: entries in order, with one fixed date, and the SHA-256 of each at the end.

Equal entries give equal bytes on every platform. Memory does not grow with the size of an entry.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
import tempfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date a zip entry can carry
_SPOOL_BYTES = 4 * 2**20  # side files larger than this go to disk while the archive is written
_CHUNK_BYTES = 2**20
_SUMS = "SHA256SUMS"


def side_file() -> IO[bytes]:
    """Return a temporary file for content that is added after the images; close it."""
    return tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)


class Archive(ABC):
    """A new archive. Leaving its context without an exception adds `SHA256SUMS`."""

    def __init__(self) -> None:
        self._lines = side_file()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._lines.seek(0)
                self._finish(self._lines)
        finally:
            self._lines.close()
            self._close()

    @abstractmethod
    def add(self, name: str, content: bytes) -> str:
        """Write an entry and return its SHA-256."""

    @abstractmethod
    def _finish(self, sums: IO[bytes]) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...

    def _note(self, name: str, digest: str) -> str:
        self._lines.write(f"{digest}  {name}\n".encode())
        return digest


class ZipArchive(Archive):
    """A zip without compression: images are compressed already."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._archive = zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True)

    def add(self, name: str, content: bytes) -> str:
        self._archive.writestr(_zip_entry(name), content)
        return self._note(name, hashlib.sha256(content).hexdigest())

    def add_file(self, name: str, source: IO[bytes]) -> str:
        """Write an entry from the whole of a file, and return its SHA-256."""
        source.seek(0)
        with self.open(name) as entry:
            shutil.copyfileobj(source, entry, _CHUNK_BYTES)
        return entry.sha256

    @contextmanager
    def open(self, name: str) -> Iterator[Hashing]:
        """Open an entry for writing; it has its `sha256` afterwards."""
        with self._archive.open(_zip_entry(name), "w", force_zip64=True) as target:
            entry = Hashing(target)
            yield entry
        self._note(name, entry.sha256)

    def _finish(self, sums: IO[bytes]) -> None:
        with self._archive.open(_zip_entry(_SUMS), "w", force_zip64=True) as target:
            shutil.copyfileobj(sums, target, _CHUNK_BYTES)

    def _close(self) -> None:
        self._archive.close()


class TarArchive(Archive):
    """A tar in WebDataset's convention: other files than images are called `__<name>__`, which its readers skip."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("wb")

    def add(self, name: str, content: bytes) -> str:
        self._write(name, len(content), io.BytesIO(content))
        return self._note(name, hashlib.sha256(content).hexdigest())

    def _finish(self, sums: IO[bytes]) -> None:
        size = sums.seek(0, io.SEEK_END)
        sums.seek(0)
        self._write(f"__{_SUMS}__", size, sums)
        self._file.write(bytes(2 * tarfile.BLOCKSIZE))  # the end of a tar

    def _write(self, name: str, size: int, source: IO[bytes]) -> None:
        entry = tarfile.TarInfo(name)  # dated 1970, mode 644, of nobody in particular
        entry.size = size
        self._file.write(entry.tobuf(tarfile.USTAR_FORMAT))
        shutil.copyfileobj(source, self._file, _CHUNK_BYTES)
        self._file.write(bytes(-size % tarfile.BLOCKSIZE))

    def _close(self) -> None:
        self._file.close()


class Hashing(io.RawIOBase):
    """Forwards writes and computes their SHA-256."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._digest.update(content)
        self._target.write(content)
        return len(content)


def _zip_entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, date_time=_EPOCH)
    entry.external_attr = 0o644 << 16
    entry.create_system = 3  # the same bytes on every platform
    return entry
