"""Bounded reading of one archive member: exactly as many bytes as its header declares."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from obscura.wire.uploads import Fault, Refused
from service.ingest.zip_directory import DEFLATED, ZipEntry

_CHUNK_BYTES = 2**20
_PIECE_BYTES = 4 * 2**20
GZIP_WINDOW, _RAW_WINDOW = 31, -15


@dataclass
class _Slice:
    file: BinaryIO
    offset: int
    left_bytes: int

    def read(self, size: int, /) -> bytes:
        self.file.seek(self.offset)
        data = self.file.read(min(size, self.left_bytes))
        self.offset += len(data)
        self.left_bytes -= len(data)
        return data

    def finish(self) -> None:
        if self.left_bytes:
            raise Refused(Fault.ARCHIVE_BROKEN)


class Inflated:
    """A deflate or gzip stream, decompressed on demand."""

    def __init__(self, source: Reader, window: int, fault: Fault) -> None:
        self._source, self._fault = source, fault
        self._state = zlib.decompressobj(window)
        self._packed = b""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; memory is bounded by `size`."""
        parts: list[bytes] = []
        missing = size
        while missing > 0 and not self._state.eof:
            packed = self._packed or self._source.read(_CHUNK_BYTES)
            try:
                data = self._state.decompress(packed, missing)
            except zlib.error:
                raise Refused(self._fault) from None
            self._packed = self._state.unconsumed_tail
            if not packed and not data:
                break
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def finish(self) -> None:
        """Raise Refused if the stream is truncated, continues, or has trailing data."""
        if self.read(1) or not self._state.eof or self._state.unused_data or self._source.read(1):
            raise Refused(self._fault)
        self._source.finish()


class Member:
    """The content of one entry, validated against its declared size and checksum."""

    def __init__(self, file: BinaryIO, entry: ZipEntry) -> None:
        window = _Slice(file, entry.data_offset, entry.packed_bytes)
        self._source: Reader = window
        if entry.method == DEFLATED:
            self._source = Inflated(window, _RAW_WINDOW, Fault.ARCHIVE_BROKEN)
        self._left = entry.expanded_bytes
        self._declared_checksum = entry.checksum
        self._checksum = 0

    def read(self, size: int = _CHUNK_BYTES, /) -> bytes:
        """Return up to `size` bytes of the entry; raise ARCHIVE_BROKEN if it contains fewer than declared."""
        wanted = min(size, self._left)
        data = self._source.read(wanted)
        if len(data) != wanted:
            raise Refused(Fault.ARCHIVE_BROKEN)
        self._left -= len(data)
        self._checksum = zlib.crc32(data, self._checksum)
        return data

    def finish(self) -> None:
        """Raise Refused if the entry was not read to its end, contains more than declared, or fails its checksum."""
        if self._left:
            raise Refused(Fault.ARCHIVE_BROKEN)
        self._source.finish()
        if self._checksum != self._declared_checksum:
            raise Refused(Fault.ARCHIVE_BROKEN)


# Streams that return `size` bytes per call, and fewer only at their end. `finish` rejects a stream that was not read to
# its proper end.
Reader = _Slice | Inflated | Member


def take(reader: Reader, size: int, fault: Fault) -> bytes:
    """Return the next `size` bytes; raise Refused with `fault` if the stream ends earlier."""
    data = reader.read(size)
    if len(data) != size:
        raise Refused(fault)
    return data


def take_rest(reader: Reader, size: int, fault: Fault) -> bytes:
    """Return the last `size` bytes; raise Refused if there are fewer or more, or no proper end."""
    return b"".join(pieces(reader, size, fault, max(size, 1)))


def pieces(reader: Reader, size: int, fault: Fault, piece_bytes: int = _PIECE_BYTES) -> Iterator[bytes]:
    """Yield the last `size` bytes, `piece_bytes` at a time, with the checks of `take_rest`."""
    while size:
        data = take(reader, min(size, piece_bytes), fault)
        yield data
        size -= len(data)
    if reader.read(1):
        raise Refused(fault)
    reader.finish()
