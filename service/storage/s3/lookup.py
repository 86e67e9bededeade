"""What is found in the bucket under a key: entries, files that grow, and where the content of each is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from service.errors import NotFound
from service.storage.interface import UNFINISHED
from service.storage.s3.bucket import Bucket, Damaged, Listed, sha256_of
from service.storage.s3.copies import Source
from service.storage.s3.entries import KEYS, SEGMENT, Entry, File, Part, part_name, read_entry

LOST = "What lies under this identifier is damaged: the storage does not hold what was put there."


class Lookup:
    """Reads the entries of a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def entry(self, key: str) -> Entry | None:
        """Return what was published under a key, or is on its way there; None where nothing is.

        Raises:
            NotFound: it is damaged.
        """
        content = self._bucket.get(KEYS + key)
        try:
            return None if content is None else read_entry(content)
        except Damaged:
            raise NotFound(LOST) from None

    def at_and_below(self, key: str) -> Iterator[Listed]:
        """Yield the objects of a key and of the keys below it."""
        name = KEYS + key
        for listed in self._bucket.list(name):
            if listed.name == name or listed.name.startswith(f"{name}/"):
                yield listed

    def entries(self, key: str) -> dict[str, Entry]:
        """Return the entries at and below a key, by their keys."""
        names = {listed.name.removeprefix(KEYS) for listed in self.at_and_below(key)} | {key}
        found = {name: self.entry(name) for name in names if not last_of(name).startswith(SEGMENT)}
        return {name: entry for name, entry in found.items() if entry is not None}

    def found(self, path: str) -> dict[str, Source] | None:
        """Return the files at a path and below it, by where they are from there: "" is a file itself. None: nothing."""
        entry = self.entry(path)
        if entry is not None:
            return self.sources(entry, last_of(path))
        steps = path.split("/")
        for cut in range(len(steps) - 1, 0, -1):
            entry = self.entry("/".join(steps[:cut]))
            if entry is not None and entry.is_folder:
                inner, files = "/".join(steps[cut:]), self.sources(entry, "")
                if inner in files:
                    return {"": files[inner]}
                return {
                    name.removeprefix(f"{inner}/"): each for name, each in files.items() if name.startswith(f"{inner}/")
                } or None
        found: dict[str, Source] = {}
        for name, entry in self.entries(path).items():
            if not name.endswith(UNFINISHED):
                for file, source in self.sources(entry, last_of(name)).items():
                    found[below(name, file).removeprefix(f"{path}/")] = source
        for name, segments in grown_files(listed.name for listed in self.at_and_below(path)).items():
            content = b"".join(self._bucket.get(each) or b"" for each in segments)
            whole = File(len(content), sha256_of(content), (), content)
            grown = Entry(whole.sha256, name, False, 0, {"": whole})
            found[name.removeprefix(path).lstrip("/")] = self.sources(grown, last_of(name))[""]
        return found or None

    def sources(self, entry: Entry, name: str) -> dict[str, Source]:
        """Return the files of a publication; name: of the file, where it is one."""
        found = {}
        for number, (path, file) in enumerate(entry.files.items()):
            parts = [(part_name(entry.origin, entry.id, number, at), part) for at, part in enumerate(file.parts)]
            write, is_there = partial(self._fetch, file, parts), partial(self._is_there, parts)
            found[path] = Source(entry.id, path or name, file.size, entry.hour, write, is_there)
        return found

    def _fetch(self, file: File, parts: list[tuple[str, Part]], path: Path) -> None:
        with path.open("xb") as copy:
            if file.content is not None:
                if sha256_of(file.content) != file.sha256:
                    raise Damaged
                copy.write(file.content)
            for name, part in parts:
                content = self._bucket.get_checked(name, part.size, part.sha256)
                if content is None:
                    raise FileNotFoundError(name)
                copy.write(content)

    def _is_there(self, parts: list[tuple[str, Part]]) -> bool:
        return all(self._bucket.is_there(name) for name, _ in parts)


def grown_files(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the files that were appended to, by their keys, with the objects that are their segments in order."""
    found: dict[str, list[str]] = {}
    for listed in names:
        folder, _, name = listed.rpartition("/")
        if name.startswith(SEGMENT):
            found.setdefault(folder.removeprefix(KEYS), []).append(listed)
    return found


def last_of(key: str) -> str:
    """Return the last step of a key."""
    return key.rpartition("/")[2]


def below(key: str, name: str) -> str:
    """Return the key of a name below a key; either may be empty."""
    return f"{key}/{name}" if key and name else key or name
