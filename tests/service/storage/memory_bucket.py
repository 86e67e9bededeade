"""The objects of a bucket in memory, for tests that look at every moment; lists may be behind, as some servers' are."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator

from service.storage.s3.bucket import Damaged, Listed


class Dead(BaseException):
    """Nothing more of this process reaches the bucket."""


class MemoryBucket:
    """Stands for `service.storage.s3.bucket.Bucket`.

    Args:
        behind: how many changes lists do not show yet.
    """

    def __init__(self, behind: int = 0) -> None:
        self._objects: dict[str, tuple[bytes, float]] = {}
        self._names: list[set[str]] = [set()]
        self._behind = behind
        self.left: int | None = None  # requests until the process that asks dies

    def put(self, name: str, content: bytes) -> None:
        self._ask()
        self._objects[name] = (content, time.time())
        self._names.append(set(self._objects))

    def get(self, name: str) -> bytes | None:
        self._ask()
        return self._objects.get(name, (None, 0.0))[0]

    def get_checked(self, name: str, size: int, sha256: str) -> bytes | None:
        content = self.get(name)
        if content is not None and (len(content) != size or hashlib.sha256(content).hexdigest() != sha256):
            raise Damaged
        return content

    def is_there(self, name: str) -> bool:
        return self.get(name) is not None

    def delete(self, name: str) -> None:
        self._ask()
        self._objects.pop(name, None)
        self._names.append(set(self._objects))

    def list(self, prefix: str, *, deep: bool = True) -> Iterator[Listed]:
        self._ask()
        names = sorted(name for name in self._names[-1 - min(self._behind, len(self._names) - 1)])
        folders = set()
        for name in names:
            if name.startswith(prefix):
                first, slash, _ = name[len(prefix) :].partition("/")
                if slash and not deep:
                    folders.add(f"{prefix}{first}/")
                else:
                    yield Listed(name, time.time() - self._objects.get(name, (b"", time.time()))[1])
        yield from (Listed(folder, is_folder=True) for folder in sorted(folders))

    def _ask(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Dead
