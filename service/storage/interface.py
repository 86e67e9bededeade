"""What a storage can do. A key such as `releases/rel_...` names a file or a folder of files, and the keys below it.

Keys are built from identifiers of ours, never from a name that somebody chose. Every storage must pass
`tests/service/storage/contract.py`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

from service.dependencies import guarded
from service.errors import InvalidInput, NotFound, ObscuraError
from service.storage.files import open_regular

# The name of a data set's content: the data set's id, and how often it was written anew.
CONTENT = re.compile(r"(ds_[a-z2-7]{20})(?:\.[1-9]\d{0,5})?")
_IDENTIFIER = re.compile(rf"(?:rel|smp)_[a-z2-7]{{20}}|{CONTENT.pattern}")
_SHELVES = {"ds": "datasets", "rel": "releases", "smp": "samples"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_GUARDED = {"send", "publish", "append", "open", "list", "holds", "idle_seconds", "move", "remove"}
_GUARDED |= {"read", "read_all", "write"}
UNFINISHED = ".tmp"  # ends the names of what is being staged, or was when its process died


class StorageUnavailable(ObscuraError, OSError):
    """A storage elsewhere does not answer, or refuses: nothing is known to be lost, and whatever needs it waits.

    `numbers["why"]` tells in one word what a person has to look at.
    """

    code: ClassVar[str] = "storage_unavailable"

    @property
    def dependency_failed(self) -> bool:
        """Whether the storage did not answer; otherwise it has refused."""
        return self.numbers.get("why") == "away"


class Storage(ABC):
    """Files that outlive processes and machines. All of a publication appears, durably, or nothing does.

    Several processes use one at the same time. A full or failing disk, or network, raises OSError: of a storage
    elsewhere StorageUnavailable, after a minute or two at most. Every method but `stage`, which uses this machine's
    disk alone, holds a place of the storage where it serves a web request (`service.dependencies`).
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Guard the methods that a backend defines."""
        super().__init_subclass__(**kwargs)
        for name in _GUARDED & vars(cls).keys():
            setattr(cls, name, guarded("storage")(vars(cls)[name]))

    @abstractmethod
    def stage(self, key: str, mark: str = "") -> AbstractContextManager[Path]:
        """Make an empty folder on this machine, for its owner alone, in which to prepare what is published under a key.

        It is removed when the block ends. What a crash leaves of it may be listed as `NAME.MARK.tmp` beside the key.

        Args:
            key: to be published.
            mark: tells this try from others; a random one by default.
        """

    def send(self, staged: Path, key: str) -> None:  # noqa: B027 - most have nothing to send
        """Bring a folder that was staged to where it is published from, so that publishing takes but a moment: for
        who publishes while others wait. Nobody sees it yet."""

    @abstractmethod
    def publish(self, staged: Path, key: str) -> None:
        """Make what was staged durable and visible: a folder, or a file in it, for its owner alone.

        A folder is published once: the same content again changes nothing. A file takes the place of the one before.
        The files of a folder are dated by the hour.

        Raises:
            Conflict: there is a folder of that name with other content.
            InvalidInput: the folder holds links or special files.
        """

    @abstractmethod
    def append(self, key: str, content: bytes) -> None:
        """Add to the end of a file, which is made if it is missing; durable when this returns.

        Raises:
            OSError: not all of it was written. A part of it may have been.
        """

    @abstractmethod
    def open(self, key: str, file: str = "") -> Path:
        """Return where this machine can read a folder, or a file in it. Nobody writes there.

        Raises:
            NotFound: there is no such folder, or no such plain file in it; links lead nowhere.
        """

    @abstractmethod
    def list(self, key: str) -> list[str]:
        """Return the names directly below a key, in order. There may be names in it that nobody here has given."""

    @guarded("storage")
    def holds(self, key: str) -> bool:
        """Tell whether there is anything under a key. Surer than a list, which may be behind in a storage elsewhere."""
        parent, _, name = key.rpartition("/")
        return name in self.list(parent)

    @abstractmethod
    def idle_seconds(self, key: str) -> float:
        """Return how long nobody has written to anything at or below a key; 0 where that cannot be told."""

    @abstractmethod
    def move(self, key: str, target: str) -> None:
        """Give a file or folder, and all that is below it, another key, durably.

        Nothing is lost where that is interrupted: what is not under the new key is under the old one.

        Raises:
            NotFound: there is nothing under the key; somebody else may just have moved it.
        """

    @abstractmethod
    def remove(self, key: str) -> None:
        """Remove a file or folder, if it is there, and all that is below it. It vanishes under its key at once."""

    @guarded("storage")
    def read(self, key: str, file: str, *, bytes_max: int = -1) -> bytes:
        """Return a small file of a folder.

        Args:
            bytes_max: of a longer file, this many bytes and one more are read; -1: all.

        Raises:
            NotFound: there is no such plain file.
        """
        with open_regular(self.open(key, file)) as opened:
            return opened.read(bytes_max + 1 if bytes_max >= 0 else -1)

    @guarded("storage")
    def read_all(self, key: str, begins: str = "", *, bytes_max: int = -1) -> dict[str, bytes | None]:
        """Return the small files directly below a key whose names begin so, by name.

        None stands for what cannot be read: it is gone, is no plain file, or the disk refuses it.

        Args:
            bytes_max: as `read` takes it, of each file.

        Raises:
            StorageUnavailable: the storage as a whole does not answer.
        """
        names = (name for name in self.list(key) if name.startswith(begins))
        return {name: self._read_if_possible(key, name, bytes_max) for name in names}

    def _read_if_possible(self, key: str, file: str, bytes_max: int) -> bytes | None:
        try:
            return self.read(key, file, bytes_max=bytes_max)
        except StorageUnavailable:
            raise
        except (NotFound, OSError):
            return None

    @guarded("storage")
    def write(self, key: str, content: bytes) -> None:
        """Publish a small file."""
        with self.stage(key) as staging:
            path = staging / "content"
            path.write_bytes(content)
            self.publish(path, key)


def key_of(identifier: str) -> str:
    """Return the key of a data set's content, a release or a sample.

    Raises:
        InvalidInput: the identifier does not have the form of one of ours.
    """
    if not _IDENTIFIER.fullmatch(identifier):
        raise InvalidInput("This is not an identifier of a dataset, release or sample.")
    return f"{_SHELVES[identifier.split('_', 1)[0]]}/{identifier}"


def work_key(job_id: str) -> str:
    """Return the key of what a job's attempts hand on to each other. It may be private and is never served."""
    return f"work/{job_id}"


def is_plain(name: str) -> bool:
    """Tell whether one step of a key, or the name of a file, has the only form that they may have."""
    return _NAME.fullmatch(name) is not None
