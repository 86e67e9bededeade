"""Where a training keeps how far it is: sealed under the key of its dataset, so that it dies with the images."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BufferedReader, BufferedWriter, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO

from obscura.private_files import flush_directory
from service.artifacts import open_regular
from service.errors import NotFound
from service.failpoints import failpoint
from service.sealing import CHUNK_BYTES, SealBroken, SealedReader, SealedWriter
from workers.recipes.interface import CheckpointDamaged

CHECKPOINT_FILE = "checkpoint.sealed"


@dataclass(frozen=True)
class SealedFolder:
    """The checkpoint of one job (`workers.recipes.interface.CheckpointFolder`).

    Args:
        directory: shared by the job's attempts; made when missing.
        key: of the dataset that is trained on, 32 bytes.
        context: names the job, so that another job's checkpoint does not open here.
    """

    directory: Path
    key: bytes = field(repr=False)
    context: str

    def replace(self, write: Callable[[BinaryIO], None]) -> None:
        """Seal what `write` says into a neighbour of the checkpoint, then rename it there.

        Survives a crash at any point: readers see the old checkpoint or the new one.

        Raises:
            OSError: the disk failed; the old checkpoint is still there.
        """
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.directory / CHECKPOINT_FILE
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "wb") as file:
                sealed = SealedWriter(file, self.key, self.context)
                with BufferedWriter(_Sealing(sealed), CHUNK_BYTES) as stream:
                    write(stream)
                sealed.finish()
                file.flush()
                os.fsync(descriptor)
            failpoint("checkpoint.before")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        flush_directory(self.directory)
        failpoint("checkpoint.after")

    def open(self) -> BinaryIO | None:
        """Open the checkpoint for reading, once all of it is known to be genuine; None when there is none yet.

        Raises:
            CheckpointDamaged: it is not what was written, or was written under another key.
        """
        try:
            file = open_regular(self.directory / CHECKPOINT_FILE)
        except NotFound:
            return None
        try:
            sealed = BufferedReader(SealedReader(file, self.key, self.context), CHUNK_BYTES)
            while sealed.read(CHUNK_BYTES):
                pass
        except SealBroken:
            file.close()
            raise CheckpointDamaged from None
        sealed.seek(0)
        return sealed


class _Sealing(RawIOBase):
    """What is written here is sealed."""

    def __init__(self, sealed: SealedWriter) -> None:
        super().__init__()
        self._sealed = sealed

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any, /) -> int:
        """Take everything."""
        self._sealed.write(data)
        return len(data)
