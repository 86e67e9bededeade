"""A bucket in memory: it crashes at any request, goes away, and lists late, as some servers do."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.storage import BACKENDS
from service.storage.interface import StorageUnavailable

pytest.importorskip("botocore", reason="needs botocore: pip install '.[s3]'")
from service.storage.s3.bucket import Listed, Patience
from service.storage.s3.storage import S3Storage

MEMORY_URL = "s3://memory"


class Dead(BaseException):
    """Nothing more of this process reaches the bucket."""


class NoPatience(Patience):
    """Expires claims at once, so that one that a dead process left delays nothing."""

    request_seconds, claim_seconds = -60.0, 0.0


class MemoryBucket:
    """Stands for `service.storage.s3.bucket.Bucket`; lists do not show the latest changes, as many as `behind`."""

    def __init__(self, behind: int = 0, patience: Patience = NoPatience(0, 1, 1, 1)) -> None:
        self._objects: dict[str, tuple[bytes, float]] = {}
        self._names: list[set[str]] = [set()]
        self._behind, self.patience = behind, patience
        self.left: int | None = None  # requests until the process that asks dies
        self.is_away = False

    def serve(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        """Make `MEMORY_URL` a storage over this bucket, with copies in a folder."""
        storage = S3Storage(MEMORY_URL, folder, bucket=self)  # type: ignore[arg-type]
        monkeypatch.setitem(BACKENDS, "s3", lambda _: storage)

    def put(self, name: str, content: bytes) -> None:
        self._ask()
        self._objects[name] = (content, time.time())
        self._names.append(set(self._objects))

    def get(self, name: str) -> bytes | None:
        self._ask()
        return self._objects.get(name, (None, 0.0))[0]

    def is_there(self, name: str) -> bool:
        return self.get(name) is not None

    def delete(self, name: str) -> None:
        self._ask()
        self._objects.pop(name, None)
        self._names.append(set(self._objects))

    def list(self, prefix: str, *, deep: bool = True) -> Iterator[Listed]:
        self._ask()
        names = sorted(self._names[-1 - min(self._behind, len(self._names) - 1)])
        folders = set()
        for name in names:
            if name.startswith(prefix):
                first, slash, _ = name[len(prefix) :].partition("/")
                if slash and not deep:
                    folders.add(f"{prefix}{first}/")
                else:
                    yield Listed(name, time.time() - self._objects.get(name, (b"", time.time()))[1])
        yield from map(Listed, sorted(folders))

    def _ask(self) -> None:
        if self.is_away:
            raise StorageUnavailable("The bucket secret-bucket is away.", why="away")
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Dead
