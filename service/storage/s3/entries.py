"""The objects of a bucket: their format, finding them, and claiming the first write of an entry.

    keys/KEY                    an entry: content published under a key, or about to be (`NAME.MARK.tmp`)
    keys/KEY/~ID                a segment of a growing file, such as a journal, written by one process
    parts/ORIGIN/ID/FILE.PART   a part of a file that is too large for its entry
    claims/KEY/ID               a process that is about to write an entry

An entry is one object. It is written last, so it and its parts appear at the same moment. ORIGIN is the key under
which the content was first published. ID is unique and increases with time.
"""

from __future__ import annotations

import hashlib
import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from posixpath import basename

from pydantic import BaseModel

from service.errors import NotFound
from service.storage.interface import UNFINISHED, StorageUnavailable
from service.storage.s3.bucket import Bucket, Listed

DAMAGED = "The stored content is damaged: the storage does not hold what was written."
KEYS, PARTS, SEGMENT, _CLAIMS = "keys/", "parts/", "~", "claims/"
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.1, 3.0  # between two claims


class File(BaseModel, frozen=True, ser_json_bytes="base64", val_json_bytes="base64"):
    """A published file: its content, or the digests of its parts (empty until the parts are written)."""

    size: int
    sha256: str = ""
    parts: tuple[str, ...] = ()
    content: bytes | None = None

    @classmethod
    def holding(cls, content: bytes) -> File:
        """Return a file that needs no parts."""
        return cls(size=len(content), sha256=hashlib.sha256(content).hexdigest(), content=content)


class Entry(BaseModel, frozen=True, ser_json_bytes="base64", val_json_bytes="base64"):
    """A publication: a folder, or one file, published under a key."""

    id: str
    origin: str  # the key under which it was first published
    is_folder: bool  # otherwise one file, with an empty name in `files`
    hour: int  # timestamp of its files, in seconds since 1970
    files: Mapping[str, File]  # by their paths in the folder

    def part_name(self, file: int, part: int) -> str:
        return f"{PARTS}{self.origin}/{self.id}/{file}.{part}"

    def parts(self) -> list[str]:
        """Return the object names of all parts."""
        files = enumerate(self.files.values())
        return [self.part_name(number, part) for number, file in files for part in range(len(file.parts))]

    def sources(self, name: str) -> dict[str, Source]:
        """Return the files by path; `name` replaces an empty path."""
        sources = {}
        for number, (path, file) in enumerate(self.files.items()):
            parts = tuple((self.part_name(number, each), sha256) for each, sha256 in enumerate(file.parts))
            sources[path] = Source(self.id, path or name, self.hour, file, parts)
        return sources


@dataclass(frozen=True)
class Source:
    """A file that can be copied to this machine."""

    id: str  # of its publication
    path: str  # in the publication
    hour: int  # timestamp of the copy
    file: File
    parts: tuple[tuple[str, str], ...]  # its objects, each with a digest


def new_id() -> str:
    """Return a unique id, greater than earlier ids if the clocks agree."""
    return f"{time.time_ns():016x}{secrets.token_hex(6)}"


@dataclass(frozen=True)
class Entries:
    bucket: Bucket

    def entry(self, key: str) -> Entry | None:
        """Return the entry of exactly this key, published or in progress; raise NotFound if it is damaged."""
        content = self.bucket.get(KEYS + key)
        try:
            return None if content is None else Entry.model_validate_json(content)
        except ValueError:
            raise NotFound(DAMAGED) from None

    def at_and_below(self, key: str) -> Iterator[Listed]:
        name = KEYS + key
        for listed in self.bucket.list(name):
            if listed.name == name or listed.name.startswith(f"{name}/"):
                yield listed

    def entries(self, key: str) -> dict[str, Entry]:
        """Return the entries at and below a key, by key."""
        names = {listed.name.removeprefix(KEYS) for listed in self.at_and_below(key)} | {key}
        names = {name for name in names if not basename(name).startswith(SEGMENT)}
        return {name: entry for name in names if (entry := self.entry(name)) is not None}

    def find(self, path: str) -> dict[str, Source] | None:
        """Return the files at and below a path, by relative path ("" for a file itself); None if there are none."""
        entry = self.entry(path)
        if entry is not None:
            return entry.sources(basename(path))
        steps = path.split("/")
        for cut in range(len(steps) - 1, 0, -1):
            entry = self.entry("/".join(steps[:cut]))
            if entry is not None and entry.is_folder:
                inner, files = "/".join(steps[cut:]), entry.sources("")
                if inner in files:
                    return {"": files[inner]}
                return {
                    name.removeprefix(f"{inner}/"): each for name, each in files.items() if name.startswith(f"{inner}/")
                } or None
        sources: dict[str, Source] = {}
        for name, entry in self.entries(path).items():
            if not name.endswith(UNFINISHED):
                for file, source in entry.sources(basename(name)).items():
                    sources[below(name, file).removeprefix(f"{path}/")] = source
        for name, segments in grown_files(listed.name for listed in self.at_and_below(path)).items():
            whole = File.holding(b"".join(self.bucket.get(each) or b"" for each in segments))
            source = Source(whole.sha256, basename(name), 0, whole, ())
            sources[name.removeprefix(path).lstrip("/")] = source
        return sources or None


def grown_files(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the growing files by key, with the names of their segments in order."""
    segments: dict[str, list[str]] = {}
    for listed in names:
        folder, _, name = listed.rpartition("/")
        if name.startswith(SEGMENT):
            segments.setdefault(folder.removeprefix(KEYS), []).append(listed)
    return segments


def below(key: str, name: str) -> str:
    """Join a key and a name; either may be empty."""
    return f"{key}/{name}" if key and name else key or name


@contextmanager
def alone(bucket: Bucket, key: str, exists: Callable[[], bool]) -> Iterator[bool]:
    """Yield True while only this process may write the first entry of a key; False if the entry `exists`.

    Not every S3 server supports conditional writes (OpenStack Swift does not). So a writer writes a claim for the key
    and lists all claims. If it sees another claim, it deletes its own and retries. If lists show all earlier writes, at
    least one of two writers sees the other's claim, so they never both proceed. The claim of a crashed process expires
    after the longest possible request of that process.

    Raise StorageUnavailable if other processes hold claims for too long.
    """
    request_seconds, claim_seconds = bucket.patience.request_seconds, bucket.patience.claim_seconds
    until, pause = time.monotonic() + 2 * claim_seconds, _PAUSE_SECONDS
    while not exists():
        beside = f"{_CLAIMS}{key}/"
        own = beside + new_id()
        began = time.monotonic()
        bucket.put(own, b"")
        claims = [listed for listed in bucket.list(_CLAIMS) if listed.name != own]
        expired = {listed.name for listed in claims if listed.seconds > claim_seconds}
        for name in expired:  # for any key: nothing else removes them
            bucket.delete(name)
        others = {listed.name for listed in claims if listed.name.startswith(beside)} - expired
        # Check `exists` again, now that the claim is visible. A process that was suspended for long starts over.
        if not others and not exists() and time.monotonic() - began < claim_seconds - request_seconds:
            yield True
            bucket.delete(own)  # not after an error: the request may still arrive
            return
        bucket.delete(own)
        if time.monotonic() > until:
            message = "Other processes have been publishing under the same identifier for too long. Try again later."
            raise StorageUnavailable(message, why="busy")
        time.sleep(random.uniform(0, pause))
        pause = min(2 * pause, _PAUSE_SECONDS_MAX)
    yield False
