"""Synthetic images that are stored with a generator: a zip of PNG files, without compression.

`workers.train.publishing` writes it once, so the release's digest covers it. Its images have numbers from 0; classes
take turns, so image `n` of `k` classes has the label `n % k`.
"""

from __future__ import annotations

import re
import struct
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from obscura.wire.formats import IMAGES_FILE
from service.errors import NotFound
from service.storage.interface import Storage, key_of, open_regular

_NUMBERED = re.compile(r"[^/]+/(\d{7})\.png")
_HEADER = struct.Struct("<26x2H")  # of an entry: it ends with the lengths of the name and of the extra field
_INDEXES_KEPT = 32  # up to 10,000 images each


@dataclass(frozen=True)
class Gallery:
    """The index of a zip of images: offset and size of each entry, by number."""

    path: Path
    size: int
    entries: tuple[tuple[int, int], ...]

    def read(self, number: int) -> bytes:
        """Return a PNG file. Raise NotFound unless it exists."""
        if not 0 <= number < len(self.entries):
            raise NotFound(f"This release has {len(self.entries):,} stored images, numbered from 0.", number=number)
        offset, size = self.entries[number]
        with open_regular(self.path) as file:
            file.seek(offset)
            lengths = _HEADER.unpack(file.read(_HEADER.size))
            file.seek(sum(lengths), 1)
            return file.read(size)


def open_gallery(storage: Storage, release_id: str) -> Gallery:
    """Return the stored images of a release. Raise NotFound if it has none, like releases before December 2026."""
    path = storage.open(key_of(release_id), IMAGES_FILE)
    return _index(path, path.stat().st_mtime_ns)


@lru_cache(_INDEXES_KEPT)
def _index(path: Path, _modified: int) -> Gallery:
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        numbered = {
            int(name[1]): (entry.header_offset, entry.file_size)
            for entry in archive.infolist()
            if (name := _NUMBERED.fullmatch(entry.filename)) and entry.compress_type == zipfile.ZIP_STORED
        }
    return Gallery(path, path.stat().st_size, tuple(numbered[number] for number in range(len(numbered))))
