"""Parse and validate a zip file's central directory before anything is extracted.

`zipfile` is not used because it tolerates what must be refused: it repairs offsets, cuts names at NUL, ignores local
headers, and allocates as many entries as the file claims. Format: PKWARE APPNOTE.TXT 6.3.10, sections 4.3 and 4.5.3.
"""

from __future__ import annotations

import stat
import struct
import unicodedata
from dataclasses import dataclass
from typing import BinaryIO

from obscura.wire.class_folders import is_junk, is_junk_path
from obscura.wire.faults import Fault, Refused
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


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """One file of the archive whose headers have been checked."""

    private_name: str
    method: int
    checksum: int
    packed_bytes: int
    expanded_bytes: int
    data_offset: int


@dataclass(frozen=True, slots=True)
class _Record:
    """One row of the central directory."""

    raw_name: bytes
    private_name: str
    folder: bool
    flags: int
    method: int
    checksum: int
    packed_bytes: int
    expanded_bytes: int
    header_offset: int


def read_directory(file: BinaryIO, limits: IngestLimits, *, slack_bytes: int) -> list[ZipEntry]:
    """Return the archive's files except junk, in directory order, if every rule holds for all entries.

    Nothing is decompressed. Sizes are the declared ones, which `zip_member` enforces.

    Args:
        slack_bytes: expanded size of a file below which its ratio is not checked.

    Raises:
        Refused: with the fault of the first broken rule.
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
    records = _read_records(file, count, size, offset, limits)
    _check_sizes(records, limits, slack_bytes)
    _check_names(records)
    starts = _locate_data(file, records, offset)
    return [
        ZipEntry(r.private_name, r.method, r.checksum, r.packed_bytes, r.expanded_bytes, start)
        for r, start in zip(records, starts, strict=True)
        if not r.folder and not is_junk_path(r.private_name)
    ]


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
    magic, disk, record_offset, disks = _END_64_LOCATOR.unpack(_exactly(file, _END_64_LOCATOR.size))
    if magic != b"PK\x06\x07" or disk or disks > 1 or record_offset + _END_64.size > locator_offset:
        raise Refused(Fault.ARCHIVE_BROKEN)
    file.seek(record_offset)
    magic, _, _, _, disk, first_disk, disk_count, count, size, offset = _END_64.unpack(_exactly(file, _END_64.size))
    if magic != b"PK\x06\x06" or disk or first_disk or disk_count != count or offset + size != record_offset:
        raise Refused(Fault.ARCHIVE_BROKEN)
    return count, size, offset


def _read_records(file: BinaryIO, count: int, size: int, offset: int, limits: IngestLimits) -> list[_Record]:
    """Read exactly `count` rows that fill exactly `size` bytes, checking what each one says about itself."""
    file.seek(offset)
    records: list[_Record] = []
    used = 0
    for _ in range(count):
        head = _CENTRAL.unpack(_exactly(file, _CENTRAL.size))
        magic, _, _, flags, method, _, _, checksum, packed, expanded = head[:10]
        name_bytes, extra_bytes, comment_bytes, disk, _, attributes, header_offset = head[10:]
        used += _CENTRAL.size + name_bytes + extra_bytes + comment_bytes
        if magic != b"PK\x01\x02" or used > size or disk not in (0, _U16):
            raise Refused(Fault.ARCHIVE_BROKEN)
        raw_name = _exactly(file, name_bytes)
        extra = _exactly(file, extra_bytes)
        file.seek(comment_bytes, 1)
        if flags & _ENCRYPTED_FLAGS or method == 99:
            raise Refused(Fault.ARCHIVE_ENCRYPTED)
        if method not in (STORED, DEFLATED):
            raise Refused(Fault.ARCHIVE_METHOD)
        expanded, packed, header_offset = _widen(extra, expanded, packed, header_offset)
        name = _checked_name(raw_name, limits)
        folder = name.endswith("/")
        _check_kind(attributes, folder=folder)
        if (folder and expanded) or (method == STORED and packed != expanded):
            raise Refused(Fault.ARCHIVE_BROKEN)
        records.append(_Record(raw_name, name, folder, flags, method, checksum, packed, expanded, header_offset))
    if used != size:
        raise Refused(Fault.ARCHIVE_BROKEN)
    return records


def _widen(extra: bytes, *values: int) -> tuple[int, ...]:
    """Replace saturated 32-bit fields by their 64-bit values from the zip64 extra field, in its fixed order."""
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
    """Decode a name (UTF-8, else code page 437) in NFC; refuse one that could leave its folder.

    Backslashes, which some Windows programs write, separate folders.
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


def _check_kind(attributes: int, *, folder: bool) -> None:
    """Allow regular files and folders only. The Unix mode is checked whatever system the archive claims."""
    kind = stat.S_IFMT(attributes >> 16)
    dos = attributes & _U16
    if kind not in (0, stat.S_IFDIR if folder else stat.S_IFREG) or dos & (_DOS_VOLUME | _WINDOWS_REPARSE):
        raise Refused(Fault.ARCHIVE_SPECIAL)


def _check_sizes(records: list[_Record], limits: IngestLimits, slack_bytes: int) -> None:
    expanded_total = sum(record.expanded_bytes for record in records)
    packed_total = sum(record.packed_bytes for record in records)
    if expanded_total > limits.expanded_bytes_max:
        raise Refused(Fault.ARCHIVE_SIZE)
    pairs = [(record.expanded_bytes, record.packed_bytes) for record in records]
    pairs.append((expanded_total, packed_total))
    if any(expanded > max(slack_bytes, limits.ratio_max * packed) for expanded, packed in pairs):
        raise Refused(Fault.ARCHIVE_RATIO)


def _check_names(records: list[_Record]) -> None:
    """Refuse names that some file system would treat as equal."""
    keys = {unicodedata.normalize("NFKC", r.private_name).casefold().removesuffix("/") for r in records}
    if len(keys) != len(records):
        raise Refused(Fault.ARCHIVE_DUPLICATE)


def _locate_data(file: BinaryIO, records: list[_Record], directory_offset: int) -> list[int]:
    """Return where each entry's data begins, once local headers agree with the directory and no bytes are shared."""
    starts: list[int] = []
    spans: list[tuple[int, int]] = []
    for record in records:
        if record.header_offset + _LOCAL.size > directory_offset:
            raise Refused(Fault.ARCHIVE_BROKEN)
        file.seek(record.header_offset)
        head = _LOCAL.unpack(_exactly(file, _LOCAL.size))
        magic, _, flags, method, _, _, _, _, _, name_bytes, extra_bytes = head
        if magic != b"PK\x03\x04" or _exactly(file, name_bytes) != record.raw_name:
            raise Refused(Fault.ARCHIVE_BROKEN)
        if flags & _ENCRYPTED_FLAGS:
            raise Refused(Fault.ARCHIVE_ENCRYPTED)
        if method != record.method:
            raise Refused(Fault.ARCHIVE_BROKEN)
        start = record.header_offset + _LOCAL.size + name_bytes + extra_bytes
        starts.append(start)
        spans.append((record.header_offset, start + record.packed_bytes))
    spans.sort()
    ends = [0, *(end for _, end in spans)]
    if any(begin < end for end, (begin, _) in zip(ends, spans, strict=False)) or ends[-1] > directory_offset:
        raise Refused(Fault.ARCHIVE_OVERLAP)
    return starts


def _exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise Refused(Fault.ARCHIVE_BROKEN)
    return data
