"""Storage in a bucket: an entry under each key, which is written last, and the parts that it names.

An unfinished entry beside the key, which is written first, names what a process that dies has sent. Several machines
use one bucket; they share nothing else. Each keeps the folders in which it prepares publications, and copies of what it
has read.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from obscura.private_files import make_private_folder
from service.errors import Conflict, NotFound
from service.storage.files import open_regular, regular_files
from service.storage.interface import UNFINISHED, Storage, is_plain, require_key
from service.storage.s3.bucket import Bucket, sha256_of
from service.storage.s3.entries import (
    DAMAGED,
    KEYS,
    PARTS,
    SEGMENT,
    Entries,
    Entry,
    File,
    Part,
    Source,
    alone,
    below,
    grown_files,
    last_of,
    new_id,
)
from service.times import to_the_hour

SEGMENT_BYTES = 64 * 2**10  # after which a process that appends begins another object
KEPT_SECONDS = 3600.0  # since a copy was last asked for
_SWEEP_SECONDS = 60.0  # between two sweeps; a younger staging folder may not be locked yet
_READ_TRIES = 3  # of content that is replaced meanwhile
_PARALLEL_READS = 16


@dataclass(frozen=True)
class Sizes:
    """How content is divided.

    Attributes:
        part_bytes: of one part; one at a time is in memory.
        small_bytes: of a publication that is stored in its entry.
    """

    part_bytes: int = 16 * 2**20
    small_bytes: int = 32 * 2**10


class S3Storage(Storage):
    """Keeps everything in a bucket, and copies of recently read content in a folder of this machine.

    Args:
        url: `s3://BUCKET` or `s3://BUCKET/PREFIX`.
        folder: of this machine.
        sizes: of objects.
        bucket: the requests to use; made from the URL by default.
    """

    def __init__(self, url: str, folder: Path, *, sizes: Sizes = Sizes(), bucket: Bucket | None = None) -> None:
        self.url, self._folder, self._sizes = url, folder, sizes
        self.bucket = Bucket(url) if bucket is None else bucket
        self._copies, self._entries = Copies(folder, self.bucket), Entries(self.bucket)
        self._segments: dict[tuple[int, str], tuple[str, bytes]] = {}  # by process and key: name and content

    def __reduce__(self) -> tuple[type[S3Storage], tuple[str, Path]]:
        return type(self), (self.url, self._folder)  # another process appends to segments of its own

    def stage(self, key: str, mark: str = "") -> AbstractContextManager[Path]:
        """Make the folder on this machine; the bucket has nothing of it until it is sent."""
        require_key(key)
        return self._copies.stage(f"{last_of(key)}.{mark or secrets.token_hex(8)}{UNFINISHED}")

    def send(self, staged: Path, key: str) -> None:
        """Write the parts, and the entry into a file beside what was staged."""
        require_key(key)
        entry = self._sent(staged, key)
        _note_of(staged).write_text(entry.model_dump_json())

    def publish(self, staged: Path, key: str) -> None:
        """Write the entry, after its parts."""
        require_key(key)
        note = _note_of(staged)
        entry = Entry.model_validate_json(note.read_bytes()) if note.is_file() else self._sent(staged, key)
        published = self._publish_folder(entry, key) if entry.is_folder else self._replace_file(entry, key)
        if published.id == entry.id:
            if entry.parts():
                self.bucket.delete(KEYS + _unfinished(staged, key))
            sources = entry.sources(last_of(key))
            self._copies.keep(staged, {staged / name if name else staged: each for name, each in sources.items()})
            return
        self.remove(_unfinished(staged, key))
        if published.digests() != entry.digests():
            raise Conflict("Another content has already been published under this identifier.")

    def append(self, key: str, content: bytes) -> None:
        """Rewrite this process's segment with the content at its end: an object is written atomically."""
        require_key(key)
        own = (os.getpid(), key)
        name, before = self._segments.pop(own, ("", b""))
        if not name or len(before) >= SEGMENT_BYTES:
            name, before = f"{KEYS}{key}/{SEGMENT}{new_id()}", b""
        # After an error this segment is never written again: a request that was given up may still arrive.
        self.bucket.put(name, before + content)
        self._segments[own] = (name, before + content)

    def open(self, key: str, file: str = "") -> Path:
        """Copy it to this machine, unless there is a recent copy, and compare digests."""
        require_key(key)
        if file and not is_plain(file):
            raise NotFound("This file does not exist.")
        for _ in range(_READ_TRIES):
            sources = self._entries.find(below(key, file))
            if sources is None or ("" in sources) is not bool(file):
                raise NotFound("There are no files under this identifier." if not file else "This file does not exist.")
            try:
                return self._copies.open(sources)
            except FileNotFoundError:  # replaced since its entry was read, or lost
                continue
        raise NotFound(DAMAGED)

    def holds(self, key: str) -> bool:
        """Ask for the object itself; a list may be stale."""
        require_key(key)
        return self._entries.find(key) is not None

    def list(self, key: str) -> list[str]:
        """List names in the bucket, or in a publication."""
        require_key(key)
        prefix = f"{KEYS}{key}/" if key else KEYS
        names = {each.name[len(prefix) :].rstrip("/") for each in self.bucket.list(prefix, deep=False)}
        if not names and key:
            names = {path.split("/", 1)[0] for path in self._entries.find(key) or {}}
        return sorted(name for name in names if name and not name.startswith(SEGMENT))

    def read_all(self, key: str, begins: str = "", *, bytes_max: int = -1) -> dict[str, bytes | None]:
        """List once and read all files in parallel: a start reads every journal."""
        require_key(key)
        prefix = f"{KEYS}{key}/"
        listed = [each.name for each in self.bucket.list(prefix + begins)]
        names, grown = sorted({name.removeprefix(prefix).split("/", 1)[0] for name in listed}), grown_files(listed)
        published = set(listed)

        def read(name: str) -> bytes | None:
            segments = grown.get(below(key, name), [])
            if segments and prefix + name not in published:
                return b"".join(self.bucket.get(each) or b"" for each in segments)
            return self._read_if_possible(key, name, bytes_max)

        pool = ThreadPoolExecutor(_PARALLEL_READS)
        try:
            contexts = [copy_context() for _ in names]  # of the web request, if this is one
            contents = pool.map(lambda context, name: context.run(read, name), contexts, names)
            return dict(zip(names, contents, strict=True))
        finally:
            pool.shutdown(cancel_futures=True)

    def idle_seconds(self, key: str) -> float:
        """Return the age of the newest of its objects, by the storage's clock."""
        require_key(key)
        ages = [listed.seconds for listed in self._entries.at_and_below(key)]
        for entry in self._entries.entries(key).values():
            ages += [listed.seconds for listed in self.bucket.list(f"{PARTS}{entry.origin}/{entry.id}/")]
        return max(min(ages, default=0.0), 0.0)

    def move(self, key: str, target: str) -> None:
        """Write every entry under its new key, then remove the old ones; parts stay where they are.

        After an interruption everything is under the new key, and what was not removed is under the old one as well.
        """
        require_key(key)
        require_key(target)
        names = [listed.name for listed in self._entries.at_and_below(key)]
        if KEYS + key not in names:
            names.insert(0, KEYS + key)  # a list may be stale
        moved = []
        for name in names:
            content = self.bucket.get(name)
            if content is not None:
                self.bucket.put(KEYS + target + name.removeprefix(KEYS + key), content)
                moved.append(name)
        if not moved:
            raise NotFound("There is nothing under this key.")
        for name in moved:
            self.bucket.delete(name)

    def remove(self, key: str) -> None:
        """Rename its entries first: after an interruption the rest is found by the new names."""
        require_key(key)
        entries = self._entries.entries(key)
        doomed: dict[str, Entry] = {}
        for name, entry in entries.items():
            renamed = name
            if not name.endswith(UNFINISHED) and entry.parts():
                renamed = f"{name}.{secrets.token_hex(8)}{UNFINISHED}"
                self._write(renamed, entry)
            doomed[renamed] = entry
        others = {listed.name.removeprefix(KEYS) for listed in self._entries.at_and_below(key)}
        for name in {*entries, *others} - set(doomed):
            self.bucket.delete(KEYS + name)
        for name, entry in doomed.items():
            self._remove_parts(entry)
            self.bucket.delete(KEYS + name)

    def _write(self, key: str, entry: Entry) -> None:
        self.bucket.put(KEYS + key, entry.model_dump_json().encode())

    def _sent(self, staged: Path, key: str) -> Entry:
        """Send everything that was staged, except its entry."""
        paths = {"": staged}
        if staged.is_dir():
            paths = {path.relative_to(staged).as_posix(): path for path in regular_files(staged)}
        sizes = {name: path.stat().st_size for name, path in paths.items()}
        hour = int(to_the_hour(datetime.now(UTC)).timestamp())
        entry = Entry(id=new_id(), origin=key, is_folder=staged.is_dir(), hour=hour, files={})
        if sum(sizes.values()) <= self._sizes.small_bytes:
            return entry.model_copy(update={"files": {name: _small_file(path) for name, path in paths.items()}})
        planned = {name: File(size=size, parts=self._planned_parts(size)) for name, size in sizes.items()}
        self._write(_unfinished(staged, key), entry.model_copy(update={"files": planned}))
        sent = {name: self._send_file(entry, number, path) for number, (name, path) in enumerate(paths.items())}
        return entry.model_copy(update={"files": sent})

    def _planned_parts(self, size: int) -> tuple[Part, ...]:
        most = self._sizes.part_bytes
        return tuple(Part(size=min(most, size - start)) for start in range(0, size, most))

    def _send_file(self, entry: Entry, number: int, path: Path) -> File:
        digest, parts = hashlib.sha256(), list[Part]()
        with open_regular(path) as file:
            while content := file.read(self._sizes.part_bytes):
                digest.update(content)
                self.bucket.put(entry.part_name(number, len(parts)), content)
                parts.append(Part(size=len(content), sha256=sha256_of(content)))
        if not parts:
            return File.holding(b"")
        return File(size=sum(part.size for part in parts), sha256=digest.hexdigest(), parts=tuple(parts))

    def _replace_file(self, entry: Entry, key: str) -> Entry:
        before = self._entries.entry(key)
        self._write(key, entry)
        for name in () if before is None else before.parts():
            self.bucket.delete(name)
        return entry

    def _publish_folder(self, entry: Entry, key: str) -> Entry:
        """Write the entry of a folder if there is none, and return the one that exists."""
        with alone(self.bucket, key, lambda: self._entries.entry(key) is not None) as free:
            if free:
                self._write(key, entry)
        published = self._entries.entry(key)
        if published is None:
            raise Conflict("The publication under this identifier was removed at the same moment.")
        return published

    def _remove_parts(self, entry: Entry) -> None:
        """Remove the parts of a publication, and older ones of its key that no entry names.

        A crash, or two processes that wrote the same file at once, leave such parts.
        """
        current = self._entries.entry(entry.origin)
        kept = f"{PARTS}{entry.origin}/{current.id if current else ''}/"
        last = f"{PARTS}{entry.origin}/{entry.id}/~"
        names = {*entry.parts(), *(listed.name for listed in self.bucket.list(f"{PARTS}{entry.origin}/"))}
        for name in sorted(names):
            if name <= last and not name.startswith(kept):
                self.bucket.delete(name)


class Copies:
    """One machine's folder for one bucket, which several of its processes use at the same time.

    A copy is named by its publication's id, so it never becomes stale. It is removed when nothing has asked for it for
    an hour; a process that has it open reads on.
    """

    def __init__(self, folder: Path, bucket: Bucket) -> None:
        self._staging, self._copies, self._bucket = folder / "staging", folder / "copies", bucket
        self._swept = float("-inf")

    @contextmanager
    def stage(self, name: str) -> Iterator[Path]:
        """Make a folder of that name for the time of a block, and remove those of processes that have died."""
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
        """Turn the staged files of a publication into copies."""
        for path, source in copies.items():
            target = self._path(source)
            make_private_folder(target.parent)
            os.utime(path, (source.hour, source.hour))
            path.replace(target)
        if staged.is_dir():
            shutil.rmtree(staged)

    def open(self, files: Mapping[str, Source]) -> Path:
        """Copy the files that are not here yet, and return a folder with exactly these paths, or the one file.

        Raises:
            FileNotFoundError: the bucket no longer has one of them.
            NotFound: one is damaged.
        """
        make_private_folder(self._copies)
        for source in files.values():
            self._copy(source)
        ids = {source.id for source in files.values()}
        prefixes = {source.path[: len(source.path) - len(path)] for path, source in files.items()}
        if len(ids) == 1 and len(prefixes) == 1:
            return self._copies / ids.pop() / prefixes.pop()
        listing = repr(sorted((path, source.id, source.path) for path, source in files.items()))
        together = self._copies / hashlib.sha256(listing.encode()).hexdigest()[:32]
        make_private_folder(together)
        for path, source in files.items():
            make_private_folder((together / path).parent)
            with suppress(FileExistsError):
                os.link(self._path(source), together / path)
        return together

    def _copy(self, source: Source) -> None:
        path = self._path(source)
        is_copied = path.is_file() and path.stat().st_size == source.file.size
        if is_copied and all(self._bucket.is_there(name) for name, _ in source.parts):
            with suppress(FileNotFoundError):
                os.utime(self._copies / source.id)
                return
        make_private_folder(path.parent)
        with self.stage("copy") as staging:
            fresh = staging / "content"
            self._fetch(source, fresh)
            os.utime(fresh, (source.hour, source.hour))
            fresh.replace(path)

    def _fetch(self, source: Source, path: Path) -> None:
        pieces = [(name, part.sha256) for name, part in source.parts] or [("", source.file.sha256)]
        with path.open("xb") as copy:
            for name, sha256 in pieces:
                content = self._bucket.get(name) if name else source.file.content
                if content is None:
                    raise FileNotFoundError(name)
                if sha256_of(content) != sha256:
                    raise NotFound(DAMAGED)
                copy.write(content)

    def _path(self, source: Source) -> Path:
        return self._copies / source.id / source.path

    def _sweep(self) -> None:
        if time.monotonic() - self._swept < _SWEEP_SECONDS:
            return
        self._swept, now = time.monotonic(), time.time()
        for outer in self._staging.iterdir():
            with suppress(OSError):  # in use, or gone
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


def _unfinished(staged: Path, key: str) -> str:
    """Return the key of the entry of what is being sent from a staging folder."""
    folder = staged if staged.is_dir() else staged.parent
    return below(key.rpartition("/")[0], folder.name)


def _note_of(staged: Path) -> Path:
    return staged.with_name(f"{staged.name}.sent")


def _small_file(path: Path) -> File:
    with open_regular(path) as file:
        return File.holding(file.read())
