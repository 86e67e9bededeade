"""A folder or an archive as one thing: folders and files below a root, without what systems leave behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol

from obscura.pictures.types import is_picture, picture_suffixes
from obscura.preparing.errors import PackingError, Unreadable
from obscura.preparing.pictures import FILE_BYTES_MAX
from obscura.preparing.sources import Tally
from obscura.wire.class_folders import is_junk

_HEAD_BYTES = 16  # enough to tell a picture
_LINKS_DEPTH = 2
HIDDEN = "hidden or system file"
OTHER = "other file"


class Tree(Protocol):
    """Folders and files below a root. Paths are written with "/", and the root is ""."""

    name: str

    def folders(self, at: str) -> list[str]:
        """Names of the folders in a folder, sorted."""
        ...

    def files(self, at: str) -> list[str]:
        """Names of the files in a folder, sorted."""
        ...

    def read(self, path: str) -> bytes:
        """Return a file's content.

        Raises:
            Unreadable: It is not there, or larger than any picture.
        """
        ...

    def open(self, path: str) -> IO[bytes]:
        """Open a file that is larger than pictures are, to be read from anywhere.

        Raises:
            OSError, KeyError: It is not there.
        """
        ...


def folders(tree: Tree, at: str, tally: Tally | None = None) -> list[str]:
    """Names of the folders that people made."""
    return _kept(tree.folders(at), tally)


def pictures(tree: Tree, at: str, tally: Tally | None = None) -> list[str]:
    """Names of the pictures in a folder; everything else is counted."""
    found = []
    for name in _kept(tree.files(at), tally):
        suffix = suffix_of(name)
        unnamed = not suffix[1:] or suffix[1:].isdecimal()  # scan.001
        if suffix in picture_suffixes() or (unnamed and is_picture(begin(tree, below(at, name), _HEAD_BYTES))):
            found.append(name)
        elif tally is not None:
            tally.left_out[OTHER] += 1
            tally.suffixes.add(suffix or name)
    return found


def all_pictures(tree: Tree, at: str, tally: Tally) -> Iterator[str]:
    """Paths of all pictures below a folder; everything else is counted."""
    yield from (below(at, name) for name in pictures(tree, at, tally))
    for name in folders(tree, at, tally):
        yield from all_pictures(tree, below(at, name), tally)


def all_files(tree: Tree, at: str = "", tally: Tally | None = None) -> Iterator[str]:
    """Paths of all files below a folder but those that systems leave behind, which are counted."""
    yield from (below(at, name) for name in _kept(tree.files(at), tally))
    for name in folders(tree, at, tally):
        yield from all_files(tree, below(at, name), tally)


def begin(tree: Tree, path: str, count: int) -> bytes:
    """Return a file's first bytes; none of one that cannot be read."""
    try:
        with tree.open(path) as file:
            return file.read(count)
    except Exception:  # a damaged or encrypted member fails in many ways
        return b""


def suffix_of(name: str) -> str:
    """The ending of a name, in small letters."""
    return Path(name).suffix.lower()


def below(at: str, name: str) -> str:
    """The path of a name in a folder."""
    return f"{at}/{name}" if at else name


def bounded(file: IO[bytes], size_bytes: int) -> bytes:
    """Return the content of a file that says how long it is, unless it is, or turns out to be, longer than any picture.

    Raises:
        Unreadable: It is.
    """
    data = file.read(FILE_BYTES_MAX + 1) if size_bytes <= FILE_BYTES_MAX else b""
    if max(size_bytes, len(data)) > FILE_BYTES_MAX:
        raise Unreadable(f"it is larger than {FILE_BYTES_MAX // 2**20} MiB")
    return data


class FolderTree:
    """A folder of the disk.

    Raises:
        PackingError: When it, or a folder in it, cannot be opened.
    """

    def __init__(self, root: Path) -> None:
        self.name = root.name
        self._root = root

    def folders(self, at: str) -> list[str]:
        """As `Tree.folders`."""
        follow = (
            at.count("/") < _LINKS_DEPTH
        )  # links to folders are followed near the top only: they may lead in circles
        return sorted(
            entry.name
            for entry in self._entries(at)
            if (follow and _leads_in(Path(entry.path)) if entry.is_symlink() else entry.is_dir(follow_symlinks=False))
        )

    def files(self, at: str) -> list[str]:
        """As `Tree.files`."""
        return sorted(
            entry.name
            for entry in self._entries(at)
            if entry.is_file(follow_symlinks=False) or (entry.is_symlink() and not Path(entry.path).is_dir())
        )

    def read(self, path: str) -> bytes:
        """As `Tree.read`."""
        try:
            with (self._root / path).open("rb") as file:
                return bounded(file, os.fstat(file.fileno()).st_size)
        except OSError as error:
            if (self._root / path).is_symlink():
                raise Unreadable("it is a link to a file that is not there") from None
            raise Unreadable(f"it cannot be opened ({error.strerror or type(error).__name__})") from None

    def open(self, path: str) -> IO[bytes]:
        """As `Tree.open`."""
        return (self._root / path).open("rb")

    def _entries(self, at: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._root / at) as entries:
                return list(entries)
        except OSError as error:
            raise PackingError(f"The folder {at or self.name} cannot be opened: {error.strerror}.") from error


def _leads_in(link: Path) -> bool:
    """Whether a link leads to a folder, and not to one that it lies in, which would be a circle."""
    return link.is_dir() and not link.parent.resolve().is_relative_to(link.resolve())


class SubTree:
    """A folder of a tree as a tree of its own."""

    def __init__(self, tree: Tree, at: str) -> None:
        self.name = f"{tree.name}/{at}"
        self._tree, self._at = tree, at

    def folders(self, at: str) -> list[str]:
        """As `Tree.folders`."""
        return self._tree.folders(self._inside(at))

    def files(self, at: str) -> list[str]:
        """As `Tree.files`."""
        return self._tree.files(self._inside(at))

    def read(self, path: str) -> bytes:
        """As `Tree.read`."""
        return self._tree.read(self._inside(path))

    def open(self, path: str) -> IO[bytes]:
        """As `Tree.open`."""
        return self._tree.open(self._inside(path))

    def _inside(self, path: str) -> str:
        return below(self._at, path) if path else self._at


def _kept(names: list[str], tally: Tally | None) -> list[str]:
    kept = [name for name in names if not is_junk(name)]
    if tally is not None:
        tally.left_out[HIDDEN] += len(names) - len(kept)
    return kept
