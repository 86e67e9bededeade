"""Storage in a bucket: an entry under each key, written last, and parts that it names.

What a process that dies has brought there is named by an unfinished entry beside the key, which was written first.
Several machines use one bucket; they share nothing else.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import copy_context
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from service.errors import Conflict, InvalidInput, NotFound
from service.storage.files import open_regular, regular_files
from service.storage.interface import UNFINISHED, Storage, is_plain
from service.storage.s3.bucket import Bucket, Damaged, sha256_of
from service.storage.s3.claims import alone
from service.storage.s3.copies import Copies
from service.storage.s3.entries import (
    KEYS,
    PART_BYTES,
    PARTS,
    SEGMENT,
    SMALL_BYTES,
    Entry,
    File,
    Part,
    new_id,
    part_name,
    read_entry,
    write_entry,
)
from service.storage.s3.lookup import LOST, Lookup, below, grown_files, last_of
from service.times import to_the_hour

SEGMENT_BYTES = 64 * 2**10  # after which a process that appends begins another object
_TRIES = 3  # at reading what is replaced meanwhile
_AT_ONCE = 16  # requests, where many files are read


class S3Storage(Storage):
    """Keeps everything in a bucket, and copies of what was read lately in a folder of this machine.

    Args:
        url: `s3://BUCKET` or `s3://BUCKET/PREFIX`.
        folder: of this machine.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self._folder = url, folder
        self._bucket, self._copies = Bucket(url), Copies(folder)
        self._lookup = Lookup(self._bucket)
        self._segments: dict[tuple[int, str], tuple[str, bytes]] = {}  # of a process and key: name and content

    def __reduce__(self) -> tuple[type[S3Storage], tuple[str, Path]]:
        return type(self), (self.url, self._folder)  # another process appends to segments of its own

    def stage(self, key: str, mark: str = "") -> AbstractContextManager[Path]:
        """Make the folder on this machine; nothing is in the bucket before it is sent."""
        _check(key)
        return self._copies.stage(f"{last_of(key)}.{mark or secrets.token_hex(8)}{UNFINISHED}")

    def send(self, staged: Path, key: str) -> None:
        """Write the parts, and beside what was staged what they are."""
        _check(key)
        entry = self._sent(staged, key)
        _note_of(staged).write_bytes(write_entry(entry))

    def publish(self, staged: Path, key: str) -> None:
        """Write the entry, after its parts."""
        _check(key)
        note = _note_of(staged)
        entry = read_entry(note.read_bytes()) if note.is_file() else self._sent(staged, key)
        if entry.is_folder:
            there = self._publish_folder(entry, key)
        else:
            before = self._lookup.entry(key)
            self._bucket.put(KEYS + key, write_entry(entry))
            for name in () if before is None else before.parts():
                self._bucket.delete(name)
            there = entry
        if there.id == entry.id:
            if any(entry.parts()):
                self._bucket.delete(KEYS + _unfinished(staged, key))
            sources = self._lookup.sources(entry, last_of(key))
            self._copies.keep(staged, {staged / name if name else staged: each for name, each in sources.items()})
            return
        self.remove(_unfinished(staged, key))
        if there.digests() != entry.digests():
            raise Conflict("Another content has already been published under this identifier.")

    def append(self, key: str, content: bytes) -> None:
        """Write this process's segment anew, with the content at its end: an object is there whole or not at all."""
        _check(key)
        mine = (os.getpid(), key)
        name, before = self._segments.pop(mine, ("", b""))
        if not name or len(before) >= SEGMENT_BYTES:
            name, before = f"{KEYS}{key}/{SEGMENT}{new_id()}", b""
        # After an error this segment is left alone for ever: a request that was given up may still arrive.
        self._bucket.put(name, before + content)
        self._segments[mine] = (name, before + content)

    def open(self, key: str, file: str = "") -> Path:
        """Copy it to this machine, unless that was done lately, and compare digests."""
        _check(key)
        if file and not is_plain(file):
            raise NotFound("This file does not exist.")
        whole = below(key, file)
        for _ in range(_TRIES):
            found = self._lookup.found(whole)
            if found is None or ("" in found) is not bool(file):
                raise NotFound("There are no files under this identifier." if not file else "This file does not exist.")
            try:
                return self._copies.open(found)
            except FileNotFoundError:  # replaced since its entry was read, or lost
                continue
            except Damaged:
                break
        raise NotFound(LOST)

    def holds(self, key: str) -> bool:
        """Ask for the object itself; a list may be behind."""
        _check(key)
        return self._lookup.found(key) is not None

    def list(self, key: str) -> list[str]:
        """List names in the bucket, or in a publication."""
        _check(key)
        prefix = f"{KEYS}{key}/" if key else KEYS
        found = {each.name[len(prefix) :].rstrip("/") for each in self._bucket.list(prefix, deep=False)}
        if not found and key:
            found = {path.split("/", 1)[0] for path in self._lookup.found(key) or {}}
        return sorted(name for name in found if name and not name.startswith(SEGMENT))

    def read_all(self, key: str, begins: str = "", *, bytes_max: int = -1) -> dict[str, bytes | None]:
        """List once and ask for all of it side by side: a start reads every journal, and each answer is a journey."""
        _check(key)
        prefix = f"{KEYS}{key}/"
        listed = [each.name for each in self._bucket.list(prefix + begins)]
        names, grown = sorted({name.removeprefix(prefix).split("/", 1)[0] for name in listed}), grown_files(listed)
        published = set(listed)

        def read(name: str) -> bytes | None:
            segments = grown.get(below(key, name), [])
            if segments and prefix + name not in published:
                return b"".join(self._bucket.get(each) or b"" for each in segments)
            return self._read_if_possible(key, name, bytes_max)

        pool = ThreadPoolExecutor(_AT_ONCE)
        try:
            contexts = [copy_context() for _ in names]  # of the web request, if this is one
            contents = pool.map(lambda context, name: context.run(read, name), contexts, names)
            return dict(zip(names, contents, strict=True))
        finally:
            pool.shutdown(cancel_futures=True)

    def idle_seconds(self, key: str) -> float:
        """Ask when the newest of its objects was written, by the clock of the storage."""
        _check(key)
        ages = [listed.seconds for listed in self._lookup.at_and_below(key)]
        for entry in self._lookup.entries(key).values():
            ages += [listed.seconds for listed in self._bucket.list(f"{PARTS}{entry.origin}/{entry.id}/")]
        return max(min(ages, default=0.0), 0.0)

    def move(self, key: str, target: str) -> None:
        """Write every entry under its new key, then remove the old ones; parts stay where they are.

        Interrupted in between, everything lies under the new key, and what was not removed under the old one as well.
        """
        _check(key)
        _check(target)
        names = [listed.name for listed in self._lookup.at_and_below(key)]
        if KEYS + key not in names:
            names.insert(0, KEYS + key)  # a list may be behind
        moved = []
        for name in names:
            content = self._bucket.get(name)
            if content is not None:
                self._bucket.put(KEYS + target + name.removeprefix(KEYS + key), content)
                moved.append(name)
        if not moved:
            raise NotFound("There is nothing under this key.")
        for name in moved:
            self._bucket.delete(name)

    def remove(self, key: str) -> None:
        """Give its entries another name first, by which the rest is found if this is interrupted."""
        _check(key)
        entries = self._lookup.entries(key)
        doomed: dict[str, Entry] = {}
        for name, entry in entries.items():
            beside = name
            if not name.endswith(UNFINISHED) and any(entry.parts()):
                beside = f"{name}.{secrets.token_hex(8)}{UNFINISHED}"
                self._bucket.put(KEYS + beside, write_entry(entry))
            doomed[beside] = entry
        others = {listed.name.removeprefix(KEYS) for listed in self._lookup.at_and_below(key)}
        for name in {*entries, *others} - set(doomed):
            self._bucket.delete(KEYS + name)
        for name, entry in doomed.items():
            self._remove_parts(entry)
            self._bucket.delete(KEYS + name)

    def _sent(self, staged: Path, key: str) -> Entry:
        """Bring what was staged to the bucket, but for its entry."""
        if staged.is_dir():
            paths = {path.relative_to(staged).as_posix(): path for path in regular_files(staged)}
        else:
            paths = {"": staged}
        files = {name: File(path.stat().st_size) for name, path in paths.items()}
        hour = int(to_the_hour(datetime.now(UTC)).timestamp())
        entry = Entry(new_id(), key, staged.is_dir(), hour, files)
        if sum(file.size for file in files.values()) <= SMALL_BYTES:
            contents = {name: _content(path) for name, path in paths.items()}
            small = {name: File(len(each), sha256_of(each), (), each) for name, each in contents.items()}
            return replace(entry, files=small)
        on_their_way = {name: replace(file, parts=_parts(file.size)) for name, file in files.items()}
        self._bucket.put(KEYS + _unfinished(staged, key), write_entry(replace(entry, files=on_their_way)))
        sent = {name: self._send(entry, number, path) for number, (name, path) in enumerate(paths.items())}
        return replace(entry, files=sent)

    def _send(self, entry: Entry, number: int, path: Path) -> File:
        digest, parts = hashlib.sha256(), tuple[Part, ...]()
        with open_regular(path) as file:
            while content := file.read(PART_BYTES):
                digest.update(content)
                self._bucket.put(part_name(entry.origin, entry.id, number, len(parts)), content)
                parts = (*parts, Part(len(content), sha256_of(content)))
        return File(sum(part.size for part in parts), digest.hexdigest(), parts)

    def _publish_folder(self, entry: Entry, key: str) -> Entry:
        """Write the entry of a folder if there is none; returns the one that is there."""
        with alone(self._bucket, key, lambda: self._lookup.entry(key) is not None) as free:
            if free:
                self._bucket.put(KEYS + key, write_entry(entry))
        there = self._lookup.entry(key)
        if there is None:
            raise Conflict("What was published under this identifier has been removed at the same moment.")
        return there

    def _remove_parts(self, entry: Entry) -> None:
        """Remove the parts of a publication, and older ones of its key that nobody names: a crash, or two that wrote
        the same file at once, have left them."""
        current = self._lookup.entry(entry.origin)
        kept = f"{PARTS}{entry.origin}/{current.id if current else ''}/"
        last = f"{PARTS}{entry.origin}/{entry.id}/~"
        names = set(entry.parts()) | {listed.name for listed in self._bucket.list(f"{PARTS}{entry.origin}/")}
        for name in sorted(names):
            if name <= last and not name.startswith(kept):
                self._bucket.delete(name)


def _check(key: str) -> None:
    if key and not all(is_plain(step) for step in key.split("/")):
        raise InvalidInput("This is not a key of ours.")


def _unfinished(staged: Path, key: str) -> str:
    """Return under which key stands what is on its way from a folder that was staged."""
    folder = staged if staged.is_dir() else staged.parent
    return below(key.rpartition("/")[0], folder.name)


def _note_of(staged: Path) -> Path:
    return staged.with_name(f"{staged.name}.sent")


def _parts(size: int) -> tuple[Part, ...]:
    return tuple(Part(min(PART_BYTES, size - start)) for start in range(0, size, PART_BYTES))


def _content(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()
