"""Synthetic images that are stored with a generator: a zip of PNG files, without compression.

`workers.train.publishing` writes it once, so the release's digest covers it. Images are numbered from 0. Classes take
turns: image `n` of `k` classes has the label `n % k`.
"""

from __future__ import annotations

import re
import struct
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from obscura.wire.formats import IMAGES_FILE
from service.errors import NotFound
from service.storage.interface import Storage, key_of, open_regular

_IMAGE = re.compile(r"[^/]+/(\d{7})\.png")
_LENGTHS = struct.Struct("<26x2H")  # the header of an entry ends with the lengths of its name and of further fields


class Gallery(NamedTuple):
    """A zip of images, with the offset of the header and the size of each image."""

    path: Path
    size: int
    images: tuple[tuple[int, int], ...]

    def read(self, number: int) -> bytes:
        """Return an image as PNG. Raise NotFound unless it exists."""
        if not 0 <= number < len(self.images):
            raise NotFound(f"This release has {len(self.images):,} stored images, numbered from 0.", number=number)
        offset, size = self.images[number]
        with open_regular(self.path) as file:
            file.seek(offset)
            file.seek(sum(_LENGTHS.unpack(file.read(_LENGTHS.size))), 1)
            return file.read(size)


def open_gallery(storage: Storage, release_id: str) -> Gallery:
    """Return the stored images of a release. Raise NotFound if it has none."""
    path = storage.open(key_of(release_id), IMAGES_FILE)
    return _read_index(path, path.stat().st_mtime_ns)


@lru_cache(32)  # because reading an index takes milliseconds, and a page shows a hundred images
def _read_index(path: Path, _modified: int) -> Gallery:
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        images = {
            int(name[1]): (entry.header_offset, entry.file_size)
            for entry in archive.infolist()
            if (name := _IMAGE.fullmatch(entry.filename))
        }
    return Gallery(path, path.stat().st_size, tuple(images[number] for number in range(len(images))))
