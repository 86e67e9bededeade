"""What stands in the bucket.

    keys/KEY                    an entry: what was published under a key, or is about to be (`NAME.MARK.tmp`)
    keys/KEY/~ID                a segment of a file that grows, such as a journal: what one process has appended
    parts/ORIGIN/ID/FILE.PART   a part of a file that is too large for its entry

An entry is one object, so it is there whole or not at all, and so is what it names: it is written last. ORIGIN is the
key that the content was first published under, ID tells it from every other, and is greater than those of before.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from service.storage.s3.bucket import Damaged

PART_BYTES = 16 * 2**20  # of which one at a time is in memory
SMALL_BYTES = 32 * 2**10  # publications of so little stand in their entries
KEYS, PARTS, SEGMENT = "keys/", "parts/", "~"


@dataclass(frozen=True)
class Part:
    """A piece of a file. While it is on its way its digest is empty."""

    size: int
    sha256: str = ""


@dataclass(frozen=True)
class File:
    """A published file. Its parts are objects, unless the content is here."""

    size: int
    sha256: str = ""
    parts: tuple[Part, ...] = ()
    content: bytes | None = None


@dataclass(frozen=True)
class Entry:
    """A publication.

    Attributes:
        id: of it.
        origin: the key that it was first published under.
        is_folder: else it is one file, whose name in `files` is empty.
        hour: since 1970, in seconds, by which its files are dated.
        files: by their path in the folder.
    """

    id: str
    origin: str
    is_folder: bool
    hour: int
    files: Mapping[str, File]

    def parts(self) -> Iterator[str]:
        """Yield the names of the objects that hold its files."""
        for number, file in enumerate(self.files.values()):
            yield from (part_name(self.origin, self.id, number, each) for each in range(len(file.parts)))

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of each file."""
        return {name: file.sha256 for name, file in self.files.items()}


def new_id() -> str:
    """Return an id that is greater than those that were made before, as far as clocks agree."""
    return f"{time.time_ns():016x}{secrets.token_hex(6)}"


def part_name(origin: str, identifier: str, file: int, part: int) -> str:
    """Return the name of the object that holds a part of a publication's file."""
    return f"{PARTS}{origin}/{identifier}/{file}.{part}"


def write_entry(entry: Entry) -> bytes:
    """Return an entry as JSON."""
    files = {
        name: {"size": file.size, "sha256": file.sha256, "parts": [[part.size, part.sha256] for part in file.parts]}
        | ({} if file.content is None else {"content": base64.b64encode(file.content).decode()})
        for name, file in entry.files.items()
    }
    said = {"id": entry.id, "origin": entry.origin, "folder": entry.is_folder, "hour": entry.hour, "files": files}
    return json.dumps(said, separators=(",", ":")).encode()


def read_entry(content: bytes) -> Entry:
    """Read an entry.

    Raises:
        Damaged: it cannot be read.
    """
    try:
        said = json.loads(content)
        files = {
            name: File(
                int(file["size"]),
                str(file["sha256"]),
                tuple(Part(int(size), str(sha256)) for size, sha256 in file["parts"]),
                base64.b64decode(file["content"], validate=True) if "content" in file else None,
            )
            for name, file in said["files"].items()
        }
        return Entry(str(said["id"]), str(said["origin"]), bool(said["folder"]), int(said["hour"]), files)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Damaged from None
