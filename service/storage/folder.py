"""Storage in a folder of this machine: a key is a path in the folder, and publishing is a flush and a rename."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from obscura.private_files import flush_directory, make_private, make_private_folder
from service.errors import Conflict, NotFound
from service.storage import interface
from service.times import to_the_hour


class FolderStorage(interface.Storage):
    """Storage in one folder of one file system. The folder is created if it is missing."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    @contextmanager
    def stage(self, key: str, mark: str = "") -> Iterator[Path]:
        target = self._path(key)
        make_private_folder(target.parent)
        staging = target.with_name(f"{target.name}.{mark or secrets.token_hex(8)}{interface.UNFINISHED}")
        staging.mkdir(mode=0o700)
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)  # a clean-up may be removing it at the same time

    def publish(self, staged: Path, key: str) -> None:
        target = self._path(key)
        if not staged.is_dir():
            with interface.open_regular(staged) as file:
                os.fsync(file.fileno())
            make_private(staged)
            staged.replace(target)
            flush_directory(target.parent)
            return
        hour = to_the_hour(datetime.now(UTC)).timestamp()
        for path in interface.regular_files(staged):
            os.utime(path, (hour, hour), follow_symlinks=False)
            with interface.open_regular(path) as file:
                os.fsync(file.fileno())
        for folder, _, _ in os.walk(staged):
            flush_directory(Path(folder))
        try:
            staged.rename(target)
        except OSError:
            if not target.is_dir():
                raise
            if interface.digest_directory(target) != interface.digest_directory(staged):
                raise Conflict("Different content has already been published under this identifier.") from None
        else:
            flush_directory(target.parent)

    def append(self, key: str, content: bytes) -> None:
        path = self._path(key)
        make_private_folder(path.parent)
        fresh = not path.exists()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            if os.write(descriptor, content) != len(content):
                raise OSError("an append was cut short")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if fresh:
            flush_directory(path.parent)

    def open(self, key: str, file: str = "") -> Path:
        path = self._path(key)
        if not path.is_dir() or (key and path.is_symlink()):
            raise NotFound("There are no files under this identifier.")
        if not file:
            return path
        path /= file
        if not interface.is_plain(file) or path.is_symlink() or not path.is_file():
            raise NotFound("This file does not exist.")
        return path

    def list(self, key: str) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self._path(key)) if not entry.is_symlink())
        except FileNotFoundError:
            return []

    def idle_seconds(self, key: str) -> float:
        path = self._path(key)
        try:
            newest = max(each.stat().st_mtime for each in (path, *path.rglob("*")))
        except OSError:  # renamed or removed meanwhile
            return 0.0
        return time.time() - newest

    def move(self, key: str, target: str) -> None:
        before, after = self._path(key), self._path(target)
        make_private_folder(after.parent)
        try:
            before.rename(after)
        except FileNotFoundError:
            raise NotFound("There is nothing under this key.") from None
        make_private(after)
        for changed in {before.parent, after.parent}:
            flush_directory(changed)

    def remove(self, key: str) -> None:
        doomed = path = self._path(key)
        if path.suffix != interface.UNFINISHED:
            doomed = path.with_name(f"{path.name}.{secrets.token_hex(8)}{interface.UNFINISHED}")
            try:
                path.rename(doomed)
            except FileNotFoundError:
                return
            flush_directory(path.parent)
        if doomed.is_dir():
            shutil.rmtree(doomed, ignore_errors=True)  # a concurrent clean-up removes the rest
        else:
            doomed.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        interface.require_key(key)
        return self._root / key
