"""A storage as small as one can be: rows of an SQLite file. What is opened is a copy, as of a storage elsewhere."""

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from service.errors import Conflict, InvalidInput, NotFound
from service.settings import Settings
from service.storage.files import regular_files
from service.storage.interface import Storage, StorageUnavailable, is_plain


class ToyStorage(Storage):
    """Each file is a row, and a folder is the rows whose keys begin with its own."""

    def __init__(self, settings: Settings) -> None:
        self._scratch = settings.data_dir / "toy"
        self._scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._connected() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS files (key TEXT PRIMARY KEY, content BLOB, at REAL)")

    @contextmanager
    def stage(self, key: str, mark: str = "") -> Iterator[Path]:
        _check(key)
        with tempfile.TemporaryDirectory(prefix=mark, dir=self._scratch) as folder:
            yield Path(folder)

    def publish(self, staged: Path, key: str) -> None:
        _check(key)
        if staged.is_dir():
            content = {f"{key}/{path.relative_to(staged)}": path.read_bytes() for path in regular_files(staged)}
        else:
            content = {key: staged.read_bytes()}
        with self._connected() as connection:
            there = dict(connection.execute(*_below("SELECT key, content FROM files", key)).fetchall())
            if there and staged.is_dir() and there != content:
                raise Conflict("Another content has already been published under this key.")
            rows = [(name, each, time.time()) for name, each in content.items()]
            connection.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", rows)
        if staged.is_dir():
            shutil.rmtree(staged)

    def append(self, key: str, content: bytes) -> None:
        _check(key)
        with self._connected() as connection:
            connection.execute("INSERT OR IGNORE INTO files VALUES (?, x'', 0)", (key,))
            row = (content, time.time(), key)
            connection.execute("UPDATE files SET content = CAST(content || ? AS BLOB), at = ? WHERE key = ?", row)

    def open(self, key: str, file: str = "") -> Path:
        _check(key)
        if file and not is_plain(file):
            raise NotFound("This file does not exist.")
        whole = f"{key}/{file}".strip("/")
        with self._connected() as connection:
            rows = connection.execute(*_below("SELECT key, content FROM files", whole)).fetchall()
        if not rows or bool(file) is not any(name == whole for name, _ in rows):
            raise NotFound("There is nothing under this key.")
        copy = Path(tempfile.mkdtemp(dir=self._scratch))
        for name, content in rows:
            path = copy / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_bytes(content)
        return copy / whole

    def list(self, key: str) -> list[str]:
        with self._connected() as connection:
            rows = connection.execute(*_below("SELECT key FROM files", key)).fetchall()
        below = [name.removeprefix(f"{key}/") for (name,) in rows if name != key]
        return sorted({name.split("/", 1)[0] for name in below})

    def idle_seconds(self, key: str) -> float:
        with self._connected() as connection:
            (newest,) = connection.execute(*_below("SELECT max(at) FROM files", key)).fetchone()
        return 0.0 if newest is None else time.time() - float(newest)

    def move(self, key: str, target: str) -> None:
        _check(key)
        _check(target)
        with self._connected() as connection:
            query, values = _below("UPDATE OR REPLACE files SET key = ? || substr(key, ?)", key)
            if not connection.execute(query, (target, len(key) + 1, *values)).rowcount:
                raise NotFound("There is nothing under this key.")

    def remove(self, key: str) -> None:
        _check(key)
        with self._connected() as connection:
            connection.execute(*_below("DELETE FROM files", key))

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        path = self._scratch / "files.db"
        with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection


class Fickle(ToyStorage):
    """Does not answer while it is away."""

    away = False

    def _connected(self) -> AbstractContextManager[sqlite3.Connection]:
        if type(self).away:
            raise StorageUnavailable("The bucket secret-bucket is away.", why="away")
        return super()._connected()


def _below(query: str, key: str) -> tuple[str, tuple[str, ...]]:
    """Narrow a query to a key and what is below it."""
    return (f"{query} WHERE key = ? OR key GLOB ?", (key, f"{key}/*")) if key else (f"{query} WHERE key GLOB ?", ("*",))


def _check(key: str) -> None:
    if key and not all(is_plain(step) for step in key.split("/")):
        raise InvalidInput("This is not a key of ours.")
