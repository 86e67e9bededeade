"""Storage in a bucket: under each key an entry, which names the parts of the content and is written after them.

Before the parts, an unfinished entry is written beside the key. If the process dies, this entry names the sent parts.
Several machines can use one bucket, and share nothing else. Each machine has its own staging folders, and copies of
content that it has read.
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
from datetime import UTC, datetime
from pathlib import Path
from posixpath import basename

from obscura.private_files import make_private_folder
from service.errors import Conflict, NotFound
from service.storage.interface import UNFINISHED, Storage, is_plain, open_regular, regular_files, require_key
from service.storage.s3 import entries
from service.storage.s3.bucket import Bucket
from service.storage.s3.entries import KEYS, PARTS, SEGMENT, Entries, Entry, File, Source
from service.times import to_the_hour

SMALL_BYTES = 32 * 2**10
SEGMENT_BYTES = 64 * 2**10  # an appending process starts another object above this size
KEPT_SECONDS = 3600.0  # after the last use of a copy
_SWEEP_SECONDS = 60.0  # between sweeps; a younger staging folder may not be locked yet
_READ_TRIES = 3  # of content that is being replaced
_PARALLEL_READS = 16
_NOTE = ".sent"  # suffix of the file with the entry of sent content


class S3Storage(Storage):
    """Storage in a bucket, with copies of recently read content in a folder of this machine.

    Args:
        part_bytes: size of a part. One part at a time is in memory.
        small_bytes: largest publication that is stored in its entry, without parts.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        part_bytes: int = 16 * 2**20,
        small_bytes: int = SMALL_BYTES,
        bucket: Bucket | None = None,
    ) -> None:
        self.url, self._folder, self._part_bytes, self._small_bytes = url, folder, part_bytes, small_bytes
        self.bucket = Bucket(url) if bucket is None else bucket
        self._copies, self._entries = Copies(folder, self.bucket), Entries(self.bucket)
        self._segments: dict[tuple[int, str], tuple[str, bytes]] = {}  # by process and key: name and content

    def __reduce__(self) -> tuple[type[S3Storage], tuple[str, Path]]:
        return type(self), (self.url, self._folder)  # another process has its own segments

    def stage(self, key: str, mark: str = "") -> AbstractContextManager[Path]:
        require_key(key)
        return self._copies.stage(f"{basename(key)}.{mark or secrets.token_hex(8)}{UNFINISHED}")

    def send(self, staged: Path, key: str) -> None:
        require_key(key)
        staged.with_name(f"{staged.name}{_NOTE}").write_text(self._sent(staged, key).model_dump_json())

    def publish(self, staged: Path, key: str) -> None:
        require_key(key)
        note = staged.with_name(f"{staged.name}{_NOTE}")
        entry = Entry.model_validate_json(note.read_bytes()) if note.is_file() else self._sent(staged, key)
        if entry.is_folder:  # published once
            with entries.alone(self.bucket, key, lambda: self._entries.entry(key) is not None) as free:
                if free:
                    self._write(key, entry)
            published = self._entries.entry(key)
            if published is None:
                raise Conflict("The publication under this identifier was removed at the same moment. Try again.")
        else:
            published, before = entry, self._entries.entry(key)
            self._write(key, entry)
            for name in () if before is None else before.parts():
                self.bucket.delete(name)
        if published.id == entry.id:
            if entry.parts():
                self.bucket.delete(KEYS + _unfinished(staged, key))
            sources = entry.sources(basename(key))
            self._copies.keep(staged, {staged / name if name else staged: each for name, each in sources.items()})
            return
        self.remove(_unfinished(staged, key))
        digests = [{name: file.sha256 for name, file in each.files.items()} for each in (published, entry)]
        if digests[0] != digests[1]:
            raise Conflict("Different content has already been published under this identifier.")

    def append(self, key: str, content: bytes) -> None:
        require_key(key)
        own = (os.getpid(), key)
        # Objects are written as a whole, so the process's segment is rewritten with the content appended.
        name, before = self._segments.pop(own, ("", b""))
        if not name or len(before) >= SEGMENT_BYTES:
            name, before = f"{KEYS}{key}/{SEGMENT}{entries.new_id()}", b""
        # After an error, never write this segment again: a timed-out request may still arrive.
        self.bucket.put(name, before + content)
        self._segments[own] = (name, before + content)

    def open(self, key: str, file: str = "") -> Path:
        require_key(key)
        if file and not is_plain(file):
            raise NotFound("This file does not exist.")
        for _ in range(_READ_TRIES):
            sources = self._entries.find(entries.below(key, file))
            if sources is None or ("" in sources) is not bool(file):
                raise NotFound("There are no files under this identifier." if not file else "This file does not exist.")
            try:
                return self._copies.open(sources)
            except FileNotFoundError:  # replaced since the entry was read, or lost
                continue
        raise NotFound(entries.DAMAGED)

    def holds(self, key: str) -> bool:
        require_key(key)
        return self._entries.find(key) is not None

    def list(self, key: str) -> list[str]:
        require_key(key)
        prefix = f"{KEYS}{key}/" if key else KEYS
        names = {each.name[len(prefix) :].rstrip("/") for each in self.bucket.list(prefix, deep=False)}
        if not names and key:
            names = {path.split("/", 1)[0] for path in self._entries.find(key) or {}}
        return sorted(name for name in names if name and not name.startswith(SEGMENT))

    def read_all(self, key: str, begins: str = "", *, bytes_max: int = -1) -> dict[str, bytes | None]:
        # One list and parallel reads, because a start reads every journal.
        require_key(key)
        prefix = f"{KEYS}{key}/"
        listed = [each.name for each in self.bucket.list(prefix + begins)]
        names = sorted({name.removeprefix(prefix).split("/", 1)[0] for name in listed})
        grown, published = entries.grown_files(listed), set(listed)

        def read(name: str) -> bytes | None:
            segments = grown.get(entries.below(key, name), [])
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
        require_key(key)
        ages = [listed.seconds for listed in self._entries.at_and_below(key)]
        for entry in self._entries.entries(key).values():
            ages += [listed.seconds for listed in self.bucket.list(f"{PARTS}{entry.origin}/{entry.id}/")]
        return max(min(ages, default=0.0), 0.0)

    def move(self, key: str, target: str) -> None:
        require_key(key)
        require_key(target)
        # Write every entry under its new key before removing an old one. Parts are not moved.
        names = [listed.name for listed in self._entries.at_and_below(key)]
        if KEYS + key not in names:
            names.insert(0, KEYS + key)  # a list may be stale
        moved = []
        for name in names:
            content = self.bucket.get(name)
            if content is not None:
                self.bucket.put(KEYS + target + name.removeprefix(KEYS + key), content)
                moved.append(name)
        # After a crash, some servers list objects that are gone, until they are deleted once more.
        for name in moved or names:
            self.bucket.delete(name)
        if not moved:
            raise NotFound("There is nothing under this key.")

    def remove(self, key: str) -> None:
        require_key(key)
        # Rename entries first: after an interruption, the rest is found by the new names.
        found = self._entries.entries(key)
        doomed: dict[str, Entry] = {}
        for name, entry in found.items():
            renamed = name
            if not name.endswith(UNFINISHED) and entry.parts():
                renamed = f"{name}.{secrets.token_hex(8)}{UNFINISHED}"
                self._write(renamed, entry)
            doomed[renamed] = entry
        others = {listed.name.removeprefix(KEYS) for listed in self._entries.at_and_below(key)}
        for name in {*found, *others} - set(doomed):
            self.bucket.delete(KEYS + name)
        for name, entry in doomed.items():
            # Also remove older parts of the key that no entry names. They remain after a crash, or if two processes
            # write the same file at once.
            current = self._entries.entry(entry.origin)
            kept = f"{PARTS}{entry.origin}/{current.id if current else ''}/"
            last = f"{PARTS}{entry.origin}/{entry.id}/~"
            parts = {*entry.parts(), *(listed.name for listed in self.bucket.list(f"{PARTS}{entry.origin}/"))}
            for part in sorted(parts):
                if part <= last and not part.startswith(kept):
                    self.bucket.delete(part)
            self.bucket.delete(KEYS + name)

    def _write(self, key: str, entry: Entry) -> None:
        self.bucket.put(KEYS + key, entry.model_dump_json().encode())

    def _sent(self, staged: Path, key: str) -> Entry:
        """Send all staged content except its entry; return the entry."""
        paths = {"": staged}
        if staged.is_dir():
            paths = {path.relative_to(staged).as_posix(): path for path in regular_files(staged)}
        sizes = {name: path.stat().st_size for name, path in paths.items()}
        hour = int(to_the_hour(datetime.now(UTC)).timestamp())
        entry = Entry(id=entries.new_id(), origin=key, is_folder=staged.is_dir(), hour=hour, files={})
        if sum(sizes.values()) <= self._small_bytes:
            small = {name: File.holding(path.read_bytes()) for name, path in paths.items()}
            return entry.model_copy(update={"files": small})
        planned = {name: File(size=size, parts=("",) * -(-size // self._part_bytes)) for name, size in sizes.items()}
        self._write(_unfinished(staged, key), entry.model_copy(update={"files": planned}))
        sent = {}
        for number, (name, path) in enumerate(paths.items()):
            digest, size, parts = hashlib.sha256(), 0, list[str]()
            with open_regular(path) as file:
                while content := file.read(self._part_bytes):
                    digest.update(content)
                    self.bucket.put(entry.part_name(number, len(parts)), content)
                    parts.append(hashlib.sha256(content).hexdigest())
                    size += len(content)
            whole = File(size=size, sha256=digest.hexdigest(), parts=tuple(parts))
            sent[name] = whole if parts else File.holding(b"")
        return entry.model_copy(update={"files": sent})


class Copies:
    """A machine's local folder for one bucket, shared by several processes.

    A copy is named by its publication's id, so it never becomes stale. It is removed after an hour without use; a
    process that has it open can continue to read.
    """

    def __init__(self, folder: Path, bucket: Bucket) -> None:
        self._staging, self._copies, self._bucket = folder / "staging", folder / "copies", bucket
        self._swept = float("-inf")

    @contextmanager
    def stage(self, name: str) -> Iterator[Path]:
        """Create a folder with this name for the duration of a block, and remove folders of dead processes."""
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
        """Keep the staged files of a publication as copies."""
        for path, source in copies.items():
            target = self._path(source)
            make_private_folder(target.parent)
            os.utime(path, (source.hour, source.hour))
            path.replace(target)
        if staged.is_dir():
            shutil.rmtree(staged)

    def open(self, files: Mapping[str, Source]) -> Path:
        """Copy missing files to this machine; return a folder with exactly these paths, or the single file.

        Raise FileNotFoundError if the bucket no longer has one of the files, and NotFound if one is damaged.
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
            with fresh.open("xb") as copy:
                for name, sha256 in source.parts or (("", source.file.sha256),):
                    content = self._bucket.get(name) if name else source.file.content
                    if content is None:
                        raise FileNotFoundError(name)
                    if hashlib.sha256(content).hexdigest() != sha256:
                        raise NotFound(entries.DAMAGED)
                    copy.write(content)
            os.utime(fresh, (source.hour, source.hour))
            fresh.replace(path)

    def _path(self, source: Source) -> Path:
        return self._copies / source.id / source.path

    def _sweep(self) -> None:
        if time.monotonic() - self._swept < _SWEEP_SECONDS:
            return
        self._swept, now = time.monotonic(), time.time()
        for outer in self._staging.iterdir():
            with suppress(OSError):  # in use, or already removed
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
    folder = staged if staged.is_dir() else staged.parent
    return entries.below(key.rpartition("/")[0], folder.name)
