"""Where a training keeps how far it is: sealed under the key of its dataset, so that it dies with the images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from io import BufferedReader, BufferedWriter, RawIOBase
from typing import Any, BinaryIO

from service.errors import NotFound
from service.failpoints import failpoint
from service.sealing import CHUNK_BYTES, SealBroken, SealedReader, SealedWriter
from service.storage.files import open_regular
from service.storage.interface import Storage
from workers.recipes.interface import CheckpointDamaged

CHECKPOINT_FILE = "checkpoint.sealed"


@dataclass(frozen=True)
class SealedFolder:
    """The checkpoint of one job (`workers.recipes.interface.CheckpointFolder`).

    Args:
        folder: a key in it, shared by the job's attempts.
        key: of the dataset that is trained on, 32 bytes.
        context: names the job, so that another job's checkpoint does not open here.
    """

    storage: Storage
    folder: str
    key: bytes = field(repr=False)
    context: str

    def replace(self, write: Callable[[BinaryIO], None]) -> None:
        """Seal what `write` says, then put it in the checkpoint's place.

        Survives a crash at any point: readers see the old checkpoint or the new one.

        Raises:
            OSError: the disk failed; the old checkpoint is still there.
        """
        key = f"{self.folder}/{CHECKPOINT_FILE}"
        with self.storage.stage(key) as staging:
            path = staging / CHECKPOINT_FILE
            with path.open("xb") as file:
                sealed = SealedWriter(file, self.key, self.context)
                with BufferedWriter(_Sealing(sealed), CHUNK_BYTES) as stream:
                    write(stream)
                sealed.finish()
            failpoint("checkpoint.before")
            self.storage.publish(path, key)
        failpoint("checkpoint.after")

    def open(self) -> BinaryIO | None:
        """Open the checkpoint for reading, once all of it is known to be genuine; None before the first one.

        Raises:
            CheckpointDamaged: it is not what was written, or was written under another key.
        """
        try:
            file = open_regular(self.storage.open(self.folder, CHECKPOINT_FILE))
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
