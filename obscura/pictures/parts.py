"""How many parts a picture may be made of: what takes longer to decode than its pixels and its bytes account for.

A decoder reads all of a picture's pixels again for each scan of a JPEG, unpacks every colour profile of a PNG, and
looks at each segment, chunk or run by itself. So a small file can keep it busy for minutes. Counted before any decoder
sees the file, from its bytes alone.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from obscura.wire.faults import Fault, Refused

SCANS_MAX = 100  # of a JPEG; cameras and programs make one, or about ten
SEGMENTS_MAX = 2_000  # of a JPEG; a profile of 32 MB takes 512
CHUNKS_MAX = 20_000  # of a PNG; 32 MB of pixels take 4,096 where they are written by 8 kB
PROFILES_MAX = 1  # of a PNG, by its standard (section 11.3.2.3)
_RUN_BYTES_MAX = 4  # of a BMP in runs, for each pixel: two where every run is one pixel
_RUN_SLACK_BYTES = 2**14  # for headers and palette
_RUNS = frozenset({1, 2})  # BI_RLE8 and BI_RLE4
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_JPEG_BARE = frozenset(range(0xD0, 0xD9)) | {0x01}  # markers without a length
_START_OF_SCAN, _END = 0xDA, 0xD9
_NEXT_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")  # neither a stuffed byte, nor a restart, nor a fill byte


def count_scans(data: bytes) -> None:
    """Let a JPEG pass that is made of as many parts as pictures are.

    Raises:
        Refused: IMAGE_SCANS for many scans, IMAGE_PARTS for many segments.
    """
    scans = 0
    for marker, _ in jpeg_segments(data):
        scans += marker == _START_OF_SCAN
        if scans > SCANS_MAX:
            raise Refused(Fault.IMAGE_SCANS)


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (marker, where it stands) of a JPEG's segments until its end, and of nothing within them.

    Raises:
        Refused: IMAGE_PARTS when there are too many, fill bytes between them included.
    """
    at, parts = 2, 0
    while (found := _NEXT_MARKER.search(data, at)) is not None:
        parts += 1 + (found.start() - at) * (data[at : at + 2] == b"\xff\xff")  # decoders look at each fill byte
        if parts > SEGMENTS_MAX:
            raise Refused(Fault.IMAGE_PARTS)
        at = found.start()
        marker = data[at + 1]
        yield marker, at
        if marker == _END:
            return
        at += 2
        if marker not in _JPEG_BARE and len(data) >= at + 2:
            at += max(2, struct.unpack_from(">H", data, at)[0])


def count_chunks(data: bytes) -> None:
    """Let a PNG pass of few chunks, and one colour profile."""
    at, chunks, profiles = len(PNG_MAGIC), 0, 0
    while len(data) >= at + 8:
        length, kind = struct.unpack_from(">I4s", data, at)
        chunks, profiles = chunks + 1, profiles + (kind == b"iCCP")
        if chunks > CHUNKS_MAX or profiles > PROFILES_MAX:
            raise Refused(Fault.IMAGE_PARTS)
        at += length + 12


def count_runs(data: bytes) -> None:
    """Let a BMP pass whose runs are not more than its pixels explain."""
    if len(data) < 34 or struct.unpack_from("<I", data, 14)[0] == 12:  # the old header knows no runs
        return
    width, height, compression = struct.unpack_from("<2i4xI", data, 18)
    if compression in _RUNS and len(data) > _RUN_BYTES_MAX * abs(width * height) + _RUN_SLACK_BYTES:
        raise Refused(Fault.IMAGE_PARTS)
