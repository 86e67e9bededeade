"""What this machine keeps of a bucket: folders in which publications are prepared, and copies of what was read.

A copy has the name of its publication's id, so it never grows old. It is removed when nobody has asked for it for an
hour; who has it open by then reads on.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from obscura.private_files import make_private_folder

KEPT_SECONDS = 3600.0
_SWEEP_SECONDS = 60.0  # between two looks at what is to be removed; what is younger is not locked yet, perhaps


@dataclass(frozen=True)
class Source:
    """A file that can be copied here.

    Attributes:
        id: of its publication.
        path: in the publication.
        size: in bytes.
        hour: by which it is dated.
        write: writes its content into a new file, or raises.
        is_there: tells whether the bucket has it still.
    """

    id: str
    path: str
    size: int
    hour: int
    write: Callable[[Path], None]
    is_there: Callable[[], bool]


class Copies:
    """The folder of one machine for one bucket. Several processes use it at the same time.

    Args:
        folder: made when it is needed.
    """

    def __init__(self, folder: Path) -> None:
        self._staging, self._copies = folder / "staging", folder / "copies"
        self._swept = float("-inf")

    @contextmanager
    def stage(self, name: str) -> Iterator[Path]:
        """Make a folder of that name that lives as long as the block; removes those of processes that have died."""
        make_private_folder(self._staging)
        self._sweep()
        outer = self._staging / secrets.token_hex(8)
        outer.mkdir(mode=0o700)
        lock = os.open(outer, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (outer / name).mkdir(mode=0o700)
            yield outer / name
        finally:
            shutil.rmtree(outer, ignore_errors=True)
            os.close(lock)

    def keep(self, staged: Path, copies: Mapping[Path, Source]) -> None:
        """Make copies of the files of what was published just now, which are here no longer under their old names."""
        for path, source in copies.items():
            target = self._path(source)
            make_private_folder(target.parent)
            os.utime(path, (source.hour, source.hour))
            path.replace(target)
        if staged.is_dir():
            shutil.rmtree(staged)

    def open(self, files: Mapping[str, Source]) -> Path:
        """Return where the files lie, copied here where they are not yet: a folder with these paths, and no others.

        Raises:
            FileNotFoundError: the bucket no longer has one of them.
        """
        make_private_folder(self._copies)
        for source in files.values():
            self._copy(source)
        ids = {source.id for source in files.values()}
        cut = {source.path[: len(source.path) - len(path)] for path, source in files.items()}
        if len(ids) == 1 and len(cut) == 1:
            return self._copies / ids.pop() / cut.pop()
        said = repr(sorted((path, source.id, source.path) for path, source in files.items()))
        together = self._copies / hashlib.sha256(said.encode()).hexdigest()[:32]
        make_private_folder(together)
        for path, source in files.items():
            make_private_folder((together / path).parent)
            with suppress(FileExistsError):
                os.link(self._path(source), together / path)
        return together

    def _copy(self, source: Source) -> None:
        path = self._path(source)
        if path.is_file() and path.stat().st_size == source.size and source.is_there():
            with suppress(FileNotFoundError):
                os.utime(self._copies / source.id)
                return
        make_private_folder(path.parent)
        with self.stage("copy") as staging:
            fresh = staging / "content"
            source.write(fresh)
            os.utime(fresh, (source.hour, source.hour))
            fresh.replace(path)

    def _path(self, source: Source) -> Path:
        return self._copies / source.id / source.path

    def _sweep(self) -> None:
        """Remove what dead processes have staged, and copies that nobody has asked for lately."""
        if time.monotonic() - self._swept < _SWEEP_SECONDS:
            return
        self._swept, now = time.monotonic(), time.time()
        for outer in self._staging.iterdir():
            with suppress(OSError):  # somebody works in it, or it is gone
                if outer.stat().st_mtime > now - _SWEEP_SECONDS:
                    continue
                lock = os.open(outer, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(outer, ignore_errors=True)
                finally:
                    os.close(lock)
        for copy in self._copies.iterdir() if self._copies.is_dir() else ():
            with suppress(OSError):
                if copy.stat().st_mtime < now - KEPT_SECONDS:
                    doomed = self._staging / secrets.token_hex(8)
                    copy.rename(doomed)
                    shutil.rmtree(doomed, ignore_errors=True)
