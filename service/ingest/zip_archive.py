"""Validate a zip file's central directory before anything is extracted; then read its members within bounds.

Exactly as many bytes of a member are read as the directory declares.

`zipfile` is not used, because it tolerates invalid files: it repairs offsets, truncates names at NUL, ignores local
headers, and allocates as many entries as the file claims. Format: PKWARE APPNOTE.TXT 6.3.10, sections 4.3 and 4.5.3.
"""

from __future__ import annotations

import stat
import struct
import unicodedata
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

from obscura.wire.uploads import Fault, Refused, is_junk, is_junk_path
from service.ingest.request import IngestLimits

STORED, DEFLATED = 0, 8

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END_64_LOCATOR = struct.Struct("<4sIQI")
_END_64 = struct.Struct("<4sQ2H2I4Q")
_COMMENT_BYTES_MAX = 2**16 - 1
_U16, _U32 = 2**16 - 1, 2**32 - 1
_ENCRYPTED_FLAGS = 1 << 0 | 1 << 6 | 1 << 13
_DOS_VOLUME, _WINDOWS_REPARSE = 0x08, 0x400
_CHUNK_BYTES = 2**20
_PIECE_BYTES = 4 * 2**20
GZIP_WINDOW, _RAW_WINDOW = 31, -15


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """A file or folder of the archive. Checking its local header sets `data_offset` and empties `raw_name`."""

    raw_name: bytes
    private_name: str
    method: int
    checksum: int
    packed_bytes: int
    expanded_bytes: int
    header_offset: int
    data_offset: int = 0


def read_directory(file: BinaryIO, limits: IngestLimits, *, slack_bytes: int) -> list[ZipEntry]:
    """Return the archive's files except junk, in directory order; raise Refused with the first broken rule.

    Nothing is decompressed. Sizes are the declared sizes, which `Member` enforces. The ratio is not checked for
    files that expand to at most `slack_bytes`.
    """
    file_bytes = file.seek(0, 2)
    file.seek(0)
    if file.read(4) not in (b"PK\x03\x04", b"PK\x05\x06"):
        raise Refused(Fault.ARCHIVE_BROKEN)
    count, size, offset = _find_directory(file, file_bytes)
    if count > limits.entries_max:
        raise Refused(Fault.ARCHIVE_ENTRIES)
    if size > count * (_CENTRAL.size + 3 * _U16) or offset + size > file_bytes:
        raise Refused(Fault.ARCHIVE_BROKEN)
    entries = _read_entries(file, count, size, offset, limits)

    pairs = [(entry.expanded_bytes, entry.packed_bytes) for entry in entries]
    expanded_total, packed_total = sum(expanded for expanded, _ in pairs), sum(packed for _, packed in pairs)
    if expanded_total > limits.decoded_bytes_max:
        raise Refused(Fault.ARCHIVE_SIZE)
    pairs.append((expanded_total, packed_total))
    if any(expanded > max(slack_bytes, limits.ratio_max * packed) for expanded, packed in pairs):
        raise Refused(Fault.ARCHIVE_RATIO)

    # Reject names that some file system would treat as equal.
    keys = {unicodedata.normalize("NFKC", entry.private_name).casefold().removesuffix("/") for entry in entries}
    if len(keys) != len(entries):
        raise Refused(Fault.ARCHIVE_DUPLICATE)

    located = [_locate_data(file, entry, offset) for entry in entries]
    spans = sorted((entry.header_offset, entry.data_offset + entry.packed_bytes) for entry in located)
    ends = [0, *(end for _, end in spans)]
    if any(begin < end for end, (begin, _) in zip(ends, spans, strict=False)) or ends[-1] > offset:
        raise Refused(Fault.ARCHIVE_OVERLAP)
    return [entry for entry in located if not entry.private_name.endswith("/") and not is_junk_path(entry.private_name)]


def _find_directory(file: BinaryIO, file_bytes: int) -> tuple[int, int, int]:
    """Return (entries, bytes, offset) of the central directory. The end record's comment must reach the file's end."""
    tail_bytes = min(file_bytes, _END.size + _COMMENT_BYTES_MAX)
    file.seek(file_bytes - tail_bytes)
    tail = file.read(tail_bytes)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < _END.size:
        raise Refused(Fault.ARCHIVE_BROKEN)
    _, disk, first_disk, disk_count, count, size, offset, comment = _END.unpack_from(tail, at)
    end_offset = file_bytes - tail_bytes + at
    if end_offset + _END.size + comment != file_bytes:
        raise Refused(Fault.ARCHIVE_BROKEN)
    if _U16 in (disk, first_disk, disk_count, count) or _U32 in (size, offset):
        return _find_directory_64(file, end_offset)
    if disk or first_disk or disk_count != count or offset + size != end_offset:
        raise Refused(Fault.ARCHIVE_BROKEN)
    return count, size, offset


def _find_directory_64(file: BinaryIO, end_offset: int) -> tuple[int, int, int]:
    locator_offset = end_offset - _END_64_LOCATOR.size
    if locator_offset < 0:
        raise Refused(Fault.ARCHIVE_BROKEN)
    file.seek(locator_offset)
    magic, disk, record_offset, disks = _END_64_LOCATOR.unpack(take(file, _END_64_LOCATOR.size))
    if magic != b"PK\x06\x07" or disk or disks > 1 or record_offset + _END_64.size > locator_offset:
        raise Refused(Fault.ARCHIVE_BROKEN)
    file.seek(record_offset)
    magic, _, _, _, disk, first_disk, disk_count, count, size, offset = _END_64.unpack(take(file, _END_64.size))
    if magic != b"PK\x06\x06" or disk or first_disk or disk_count != count or offset + size != record_offset:
        raise Refused(Fault.ARCHIVE_BROKEN)
    return count, size, offset


def _read_entries(file: BinaryIO, count: int, size: int, offset: int, limits: IngestLimits) -> list[ZipEntry]:
    """Read and check exactly `count` rows, which must fill exactly `size` bytes."""
    file.seek(offset)
    entries: list[ZipEntry] = []
    used = 0
    for _ in range(count):
        head = _CENTRAL.unpack(take(file, _CENTRAL.size))
        magic, _, _, flags, method, _, _, checksum, packed, expanded = head[:10]
        name_bytes, extra_bytes, comment_bytes, disk, _, attributes, header_offset = head[10:]
        used += _CENTRAL.size + name_bytes + extra_bytes + comment_bytes
        if magic != b"PK\x01\x02" or used > size or disk not in (0, _U16):
            raise Refused(Fault.ARCHIVE_BROKEN)
        raw_name = take(file, name_bytes)
        extra = take(file, extra_bytes)
        file.seek(comment_bytes, 1)
        if flags & _ENCRYPTED_FLAGS or method == 99:
            raise Refused(Fault.ARCHIVE_ENCRYPTED)
        if method not in (STORED, DEFLATED):
            raise Refused(Fault.ARCHIVE_METHOD)
        expanded, packed, header_offset = _widen(extra, expanded, packed, header_offset)
        name = _checked_name(raw_name, limits)
        folder = name.endswith("/")
        # Only regular files and folders. The Unix mode is checked whatever system the archive names as its origin.
        kind, dos = stat.S_IFMT(attributes >> 16), attributes & _U16
        if kind not in (0, stat.S_IFDIR if folder else stat.S_IFREG) or dos & (_DOS_VOLUME | _WINDOWS_REPARSE):
            raise Refused(Fault.ARCHIVE_SPECIAL)
        if (folder and expanded) or (method == STORED and packed != expanded):
            raise Refused(Fault.ARCHIVE_BROKEN)
        entries.append(ZipEntry(raw_name, name, method, checksum, packed, expanded, header_offset))
    if used != size:
        raise Refused(Fault.ARCHIVE_BROKEN)
    return entries


def _widen(extra: bytes, *values: int) -> tuple[int, ...]:
    """Replace saturated 32-bit fields with their 64-bit values from the zip64 extra field, in its fixed order."""
    if _U32 not in values:
        return values
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        body = extra[at + 4 : at + 4 + length]
        if kind == 1:
            wide = iter(struct.unpack(f"<{len(body) // 8}Q", body[: len(body) // 8 * 8]))
            try:
                return tuple(next(wide) if value == _U32 else value for value in values)
            except (StopIteration, RuntimeError):
                break
        at += 4 + length
    raise Refused(Fault.ARCHIVE_BROKEN)


def _checked_name(raw: bytes, limits: IngestLimits) -> str:
    """Decode a name (UTF-8, else code page 437) to NFC; raise Refused if it could escape its folder.

    Backslashes, which some Windows programs write, count as separators.
    """
    if not raw or len(raw) > limits.name_bytes_max:
        raise Refused(Fault.ARCHIVE_PATH)
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        name = raw.decode("cp437")
    name = unicodedata.normalize("NFC", name).replace("\\", "/")
    parts = name.removesuffix("/").split("/")
    if (
        any(part in ("", ".", "..") for part in parts)
        or name[1:2] == ":"
        or any(unicodedata.category(character) == "Cc" for part in parts if not is_junk(part) for character in part)
    ):
        raise Refused(Fault.ARCHIVE_PATH)
    return name


def _locate_data(file: BinaryIO, entry: ZipEntry, directory_offset: int) -> ZipEntry:
    """Return the entry with the offset of its data; raise Refused unless its local header matches the directory."""
    if entry.header_offset + _LOCAL.size > directory_offset:
        raise Refused(Fault.ARCHIVE_BROKEN)
    file.seek(entry.header_offset)
    head = _LOCAL.unpack(take(file, _LOCAL.size))
    magic, _, flags, method, _, _, _, _, _, name_bytes, extra_bytes = head
    if magic != b"PK\x03\x04" or take(file, name_bytes) != entry.raw_name:
        raise Refused(Fault.ARCHIVE_BROKEN)
    if flags & _ENCRYPTED_FLAGS:
        raise Refused(Fault.ARCHIVE_ENCRYPTED)
    if method != entry.method:
        raise Refused(Fault.ARCHIVE_BROKEN)
    return replace(entry, raw_name=b"", data_offset=entry.header_offset + _LOCAL.size + name_bytes + extra_bytes)


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
        """Raise Refused unless all content was read and the stream ends here, without trailing data."""
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
        data = take(self._source, min(size, self._left))
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


def take(reader: Reader | BinaryIO, size: int, fault: Fault = Fault.ARCHIVE_BROKEN) -> bytes:
    """Return the next `size` bytes; raise Refused with `fault` if the stream ends earlier."""
    data = reader.read(size)
    if len(data) != size:
        raise Refused(fault)
    return data


def take_rest(reader: Reader, size: int, fault: Fault) -> bytes:
    """Return the last `size` bytes; raise Refused if there are fewer or more, or the stream has no proper end."""
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
