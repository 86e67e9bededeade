"""Reading exactly the bytes that a header announced: none fewer, none behind them."""

from __future__ import annotations

from service.ingest.array_files import ArrayFile
from service.ingest.faults import Fault, Refused
from service.ingest.zip_member import Reader

_CHUNK_BYTES = 4 * 2**20


def take(reader: Reader, size: int, fault: Fault) -> bytes:
    """Return the next `size` bytes; a stream that ends before them is refused with `fault`."""
    data = reader.read(size)
    if len(data) != size:
        raise Refused(fault)
    return data


def finish(reader: Reader, fault: Fault) -> None:
    """Refuse values behind the last one that the header announced, and a stream that does not end properly."""
    if reader.read(1):
        raise Refused(fault)
    reader.finish()


def copy_rest(reader: Reader, size: int, target: ArrayFile, fault: Fault) -> None:
    """Append exactly `size` bytes to a stored array, then finish the stream."""
    while size:
        data = take(reader, min(size, _CHUNK_BYTES), fault)
        target.append(data)
        size -= len(data)
    finish(reader, fault)
