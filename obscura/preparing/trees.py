"""Folders, ZIP and tar archives as trees of folders and files, without system files.

Paths use "/", and the root is ""; names are sorted. `read` raises Unreadable for a file that is missing or larger than
FILE_BYTES_MAX. `open` is for files of any size, with random access; a missing file raises OSError or KeyError.

Nothing is unpacked to disk. Member names are checked as in the service. Names that lead out of the archive are
rejected, and so are duplicate names, because one of two images would be lost.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from obscura.errors import ChoiceNeeded, PackingError, Unreadable, some
from obscura.image_types import image_suffixes, is_image
from obscura.preparing.images import FILE_BYTES_MAX
from obscura.preparing.sources import Tally
from obscura.wire.uploads import is_junk

_LINKS_DEPTH = 2


def folders(tree: Tree, at: str, tally: Tally | None = None) -> list[str]:
    return _kept(tree.folders(at), tally)


def images_in(tree: Tree, at: str, tally: Tally | None = None) -> list[str]:
    """Return the images in a folder and tally other files."""
    found = []
    for name in _kept(tree.files(at), tally):
        suffix = suffix_of(name)
        unnamed = not suffix[1:] or suffix[1:].isdecimal()  # scan.001
        if suffix in image_suffixes() or (unnamed and is_image(begin(tree, below(at, name), 16))):
            found.append(name)
        elif tally is not None:
            tally.leave_out(name)
    return found


def all_images(tree: Tree, at: str, tally: Tally) -> Iterator[str]:
    """Yield the paths of all images below a folder and tally other files."""
    yield from (below(at, name) for name in images_in(tree, at, tally))
    for name in folders(tree, at, tally):
        yield from all_images(tree, below(at, name), tally)


def all_files(tree: Tree, at: str = "", tally: Tally | None = None) -> Iterator[str]:
    """Yield the paths of all files below a folder and tally hidden and system files."""
    yield from (below(at, name) for name in _kept(tree.files(at), tally))
    for name in folders(tree, at, tally):
        yield from all_files(tree, below(at, name), tally)


def begin(tree: Tree, path: str, count: int) -> bytes:
    """Return the first bytes of a file, or b"" if it cannot be read."""
    try:
        with tree.open(path) as file:
            return file.read(count)
    except Exception:  # a damaged or encrypted member fails in many ways
        return b""


def suffix_of(name: str) -> str:
    return Path(name).suffix.lower()


def below(*parts: str) -> str:
    return "/".join(filter(None, parts))


def bounded(file: IO[bytes], size_bytes: int) -> bytes:
    """Read a file; raise Unreadable if its stated or actual size exceeds the limit for images."""
    data = file.read(FILE_BYTES_MAX + 1) if size_bytes <= FILE_BYTES_MAX else b""
    if max(size_bytes, len(data)) > FILE_BYTES_MAX:
        raise Unreadable(f"it is larger than {FILE_BYTES_MAX // 2**20} MiB")
    return data


class FolderTree:
    def __init__(self, root: Path) -> None:
        self.name, self._root = root.name, root

    def folders(self, at: str) -> list[str]:
        follow = at.count("/") < _LINKS_DEPTH  # deeper links to folders may form cycles
        found = []
        for entry in self._entries(at):
            if entry.is_symlink():
                link = Path(entry.path)
                if follow and link.is_dir() and not link.parent.resolve().is_relative_to(link.resolve()):
                    found.append(entry.name)
            elif entry.is_dir(follow_symlinks=False):
                found.append(entry.name)
        return sorted(found)

    def files(self, at: str) -> list[str]:
        return sorted(
            entry.name
            for entry in self._entries(at)
            if entry.is_file(follow_symlinks=False) or (entry.is_symlink() and not Path(entry.path).is_dir())
        )

    def read(self, path: str) -> bytes:
        try:
            with (self._root / path).open("rb") as file:
                return bounded(file, os.fstat(file.fileno()).st_size)
        except OSError as error:
            if (self._root / path).is_symlink():
                raise Unreadable("it is a link to a file that does not exist") from None
            raise Unreadable(f"it cannot be opened ({error.strerror or type(error).__name__})") from None

    def open(self, path: str) -> IO[bytes]:
        return (self._root / path).open("rb")

    def _entries(self, at: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._root / at) as entries:
                return list(entries)
        except OSError as error:
            raise PackingError(f"The folder {at or self.name} cannot be opened: {error.strerror}.") from error


def _kept(names: list[str], tally: Tally | None) -> list[str]:
    kept = [name for name in names if not is_junk(name)]
    if tally is not None:
        tally.left_out["hidden or system file"] += len(names) - len(kept)
    return kept


TAR = re.compile(r"\.(tar|tgz|tbz2|txz)$|\.tar\.(gz|bz2|xz)$", re.IGNORECASE)
_OTHERS = {
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"Rar!": "a RAR archive",
    b"\x28\xb5\x2f\xfd": "packed with Zstandard",
}
_PACKED: Mapping[str, Callable[[Path], Any]] = {  # by the suffix of the file
    "gz": gzip.open, "bz2": bz2.open, "xz": lzma.open
}  # fmt: skip
_UTF8_FLAG, _ENCRYPTED_FLAG = 1 << 11, 1
_ENCODINGS = ("cp437", "cp850", "cp852", "cp866", "cp936", "cp932")


def open_archive(path: Path, encoding: str | None = None) -> Tree | None:
    """Open a ZIP or tar; return None for other files. `encoding` is for a ZIP that does not state its own."""
    with path.open("rb") as file:
        head = file.read(8)
    other = next((name for magic, name in _OTHERS.items() if head.startswith(magic)), None)
    if other is not None:
        raise PackingError(f"{path.name} is {other}, which is not supported: unpack it, and give the folder.")
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")) or path.suffix.lower() == ".zip":
        return ZipTree(path, encoding)
    return TarTree(path) if TAR.search(path.name) else None


class _Members:
    _kind = "zip"

    def __init__(
        self, path: Path, members: list[str], infos: Sequence[Any], opener: Callable[[Any], IO[bytes] | None]
    ) -> None:
        counts = Counter(member for member in members if not member.endswith("/"))
        twice = sorted(member for member, count in counts.items() if count > 1)
        if twice:
            raise PackingError(
                f"{path.name} contains several files called {some(twice)}, so images would be lost. Pack "
                "the folder again."
            )
        self.name = path.name
        self._infos, self._opener = dict(zip(members, infos, strict=True)), opener
        self._content: dict[str, tuple[set[str], set[str]]] = {"": (set(), set())}
        self._wrapper = ""
        for member in members:
            at, parts = "", [part for part in member.split("/") if part]
            for depth, part in enumerate(parts):
                is_file = depth == len(parts) - 1 and not member.endswith("/")
                self._content[at][is_file].add(part)
                at = below(at, part)
                if not is_file:
                    self._content.setdefault(at, (set(), set()))
        # Skip an outer folder with the archive's own name, which many programs add.
        top, loose = [name for name in self._content[""][0] if not is_junk(name)], self._content[""][1]
        stem = path.name[: -len(path.suffix)].removesuffix(".tar").casefold()
        if len(top) == 1 and not any(not is_junk(name) for name in loose) and top[0].casefold() == stem:
            self._wrapper = top[0]

    def folders(self, at: str) -> list[str]:
        return sorted(self._content[below(self._wrapper, at)][0])

    def files(self, at: str) -> list[str]:
        return sorted(self._content[below(self._wrapper, at)][1])

    def read(self, path: str) -> bytes:
        try:
            info = self._infos[below(self._wrapper, path)]
            with self.open(path) as file:
                return bounded(file, info.file_size if self._kind == "zip" else info.size)
        except Unreadable:
            raise
        except KeyError:
            raise Unreadable(f"it is a file, or a link to a file, that is not in the {self._kind}") from None
        except Exception as error:  # a damaged archive fails in many ways
            raise Unreadable(f"it cannot be extracted from the {self._kind} ({type(error).__name__})") from None

    def open(self, path: str) -> IO[bytes]:
        file = self._opener(self._infos[below(self._wrapper, path)])
        if file is None:
            raise OSError("it is not a file")
        return file


class ZipTree(_Members):
    def __init__(self, path: Path, encoding: str | None = None) -> None:
        try:
            archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
            raise PackingError(f"{path.name} cannot be read as a zip: {error}.") from error
        infos = archive.infolist()
        if any(info.flag_bits & _ENCRYPTED_FLAG for info in infos):
            raise PackingError(
                f"{path.name} is encrypted. Unpack it with its password, and give the folder. The service encrypts the "
                "images when it stores them."
            )
        super().__init__(path, _names(path.name, infos, encoding), infos, archive.open)


class TarTree(_Members):
    """A tar archive. A compressed one is held in memory, because it can only be read sequentially."""

    _kind = "tar"

    def __init__(self, path: Path, unpacked_bytes_max: int = 2**30) -> None:
        try:
            opened = next((opener for suffix, opener in _PACKED.items() if path.name.lower().endswith(suffix)), None)
            if opened is None:
                self._file: IO[bytes] = path.open("rb")  # stays open as long as the tree exists
            else:
                with opened(path) as file:
                    data: bytes = file.read(unpacked_bytes_max + 1)
                if len(data) > unpacked_bytes_max:
                    raise PackingError(
                        f"{path.name} is compressed, so it is read into memory, but it has more than "
                        f"{unpacked_bytes_max >> 20} MiB: decompress it, and give the folder or the .tar."
                    )
                self._file = io.BytesIO(data)
            archive = tarfile.TarFile(fileobj=self._file)
            infos = [info for info in archive if info.isfile() or info.islnk() or info.issym()]
        except (tarfile.TarError, lzma.LZMAError, zlib.error, OSError, EOFError) as error:
            raise PackingError(f"{path.name} cannot be read as a tar: {error}.") from error
        super().__init__(path, [_safe(path.name, info.name) for info in infos], infos, archive.extractfile)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()


Tree = FolderTree | ZipTree | TarTree


def _names(archive: str, infos: list[zipfile.ZipInfo], encoding: str | None) -> list[str]:
    names = []
    for info in infos:
        text, raw = info.orig_filename, info.orig_filename.encode("cp437", "replace")
        if not info.flag_bits & _UTF8_FLAG:  # read as cp437, though several programs write UTF-8 without the flag
            try:
                text = raw.decode("ascii" if encoding else "utf-8")
            except UnicodeDecodeError:
                if encoding is None:
                    shown = "; ".join(f"{raw.decode(known, 'replace')} in {known}" for known in _ENCODINGS)
                    raise ChoiceNeeded(
                        f"{archive} does not state the encoding of its names, and wrongly decoded folder names would "
                        f"become public. One name is {shown}. State the right encoding.",
                        ["--zip-encoding cp850"],
                    ) from None
                try:
                    text = raw.decode(encoding)
                except LookupError:
                    raise PackingError(f"--zip-encoding is a name such as cp850 or cp936, not {encoding!r}.") from None
                except UnicodeDecodeError:
                    raise PackingError(f"The names in the zip are not in {encoding}: try another.") from None
        names.append(_safe(archive, text.replace("\\", "/")))
    return names


def _safe(archive: str, name: str) -> str:
    if name.startswith("/") or ".." in name.split("/") or name[1:2] == ":":
        raise PackingError(f"{archive} contains a path that leads out of it: {name}. Pack the folder again.")
    return "/".join(part for part in name.split("/") if part not in ("", ".")) + "/" * name.endswith("/")
