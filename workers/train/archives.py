"""Zip and tar archives of samples: entries in order, with a fixed date, and all SHA-256 sums at the end.

Equal entries give equal bytes on every platform. Memory does not grow with the size of an entry.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date of a zip entry
_SPOOL_BYTES = 4 * 2**20  # larger side files are stored on disk while the archive is written
_SUMS = "SHA256SUMS"


def side_file() -> IO[bytes]:
    """Return a temporary file for content that is added after the images. The caller must close it."""
    return tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)


class Hashing(io.RawIOBase):
    """Forwards writes and computes their SHA-256."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self.digest.update(content)
        self._target.write(content)
        return len(content)


@dataclass(frozen=True)
class Archive:
    """A new archive. `begin` opens an entry of a name and a size; `sums` collects one line per entry."""

    begin: Callable[[str, int | None], AbstractContextManager[IO[bytes]]]
    sums: IO[bytes]

    @contextmanager
    def open(self, name: str, size: int | None = None) -> Iterator[Hashing]:
        """Open an entry for writing; its `digest` is complete afterwards. A tar needs the size."""
        with self.begin(name, size) as target:
            entry = Hashing(target)
            yield entry
        self.sums.write(f"{entry.digest.hexdigest()}  {name}\n".encode())

    def add(self, name: str, content: bytes) -> None:
        with self.open(name, len(content)) as entry:
            entry.write(content)


@contextmanager
def zip_archive(path: Path) -> Iterator[Archive]:
    """Create a zip without compression, because images are compressed already."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as file, side_file() as sums:

        def begin(name: str, size: int | None) -> IO[bytes]:
            entry = zipfile.ZipInfo(name, date_time=_EPOCH)
            entry.external_attr = 0o644 << 16
            entry.create_system = 3  # the same bytes on every platform
            entry.file_size = size or 0
            return file.open(entry, "w", force_zip64=size is None)

        yield Archive(begin, sums)
        sums.seek(0)
        with begin(_SUMS, None) as target:
            shutil.copyfileobj(sums, target)


@contextmanager
def tar_archive(path: Path) -> Iterator[Archive]:
    """Create a tar in WebDataset's convention: files other than images are named `__<name>__`, which readers skip."""
    with path.open("wb") as file, side_file() as sums:

        @contextmanager
        def begin(name: str, size: int | None) -> Iterator[IO[bytes]]:
            entry = tarfile.TarInfo(name)  # dated 1970, mode 644, without an owner
            entry.size = size or 0
            file.write(entry.tobuf(tarfile.USTAR_FORMAT))
            yield file
            file.write(bytes(-entry.size % tarfile.BLOCKSIZE))

        yield Archive(begin, sums)
        size = sums.tell()
        sums.seek(0)
        with begin(f"__{_SUMS}__", size) as target:
            shutil.copyfileobj(sums, target)
        file.write(bytes(2 * tarfile.BLOCKSIZE))  # the end of a tar
