"""Small files that would keep a decoder busy for long are refused before one sees them; real ones pass."""

import struct
import zlib

import numpy as np
import pytest

from obscura.image_types import CHUNKS_MAX, SCANS_MAX, SEGMENTS_MAX
from obscura.preparing.errors import Unreadable
from obscura.preparing.images import Target, look, prepare_image
from obscura.wire.faults import Fault
from service.ingest.faults import explain
from tests.pictures import picture, png, png_chunk, saved
from tests.service.ingest.test_pictures import verdict

ONE_CODE = b"\xff\xc4" + struct.pack(">HB", 20, 0x10) + bytes([1] + [0] * 15) + b"\xe0"
PROGRESSIVE = picture("JPEG", progressive=True)
HEAD, TAIL = PROGRESSIVE[: PROGRESSIVE.index(b"\xff\xda")], PROGRESSIVE[PROGRESSIVE.index(b"\xff\xda") : -2]
OWN_SCANS = TAIL.count(b"\xff\xda")
SCAN = b"\xff\xda" + struct.pack(">HB", 8, 1) + bytes([1, 0, 1, 63, 0]) + bytes(3)  # of no new coefficients
APPLICATION = b"\xff\xe5" + struct.pack(">H", 2)
PIXELS = png_chunk(b"IDAT", zlib.compress(bytes(7 * 4)))
PROFILE = png_chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(900_000)))


def jpeg_of(scans: int, before_each: bytes = b"") -> bytes:
    return HEAD + TAIL + ONE_CODE + (before_each + SCAN) * (scans - OWN_SCANS) + b"\xff\xd9"


def bmp_of_runs(side: int, runs: bytes) -> bytes:
    start = 14 + 40 + 1024
    sizes = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(runs), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", start + len(runs), 0, 0, start) + sizes + bytes(1024) + runs


LASTING = {
    "6,000 scans in 76 kB": (Fault.IMAGE_SCANS, jpeg_of(6_000)),
    "a scan too many": (Fault.IMAGE_SCANS, jpeg_of(SCANS_MAX + 1)),
    "scans behind segments": (Fault.IMAGE_SCANS, jpeg_of(SCANS_MAX + 1, APPLICATION)),
    "scans behind garbage": (Fault.IMAGE_SCANS, jpeg_of(SCANS_MAX + 1, b"\x00\x17\xff\xff\xff\x00\xff\xd3")),
    "segments": (Fault.IMAGE_PARTS, HEAD[:2] + APPLICATION * SEGMENTS_MAX + HEAD[2:] + TAIL + b"\xff\xd9"),
    "segments amid scans": (Fault.IMAGE_PARTS, HEAD + TAIL + APPLICATION * SEGMENTS_MAX + b"\xff\xd9"),
    "fill bytes": (Fault.IMAGE_PARTS, HEAD[:2] + b"\xff" * (2 * SEGMENTS_MAX) + HEAD[2:] + TAIL + b"\xff\xd9"),
    "colour profiles": (Fault.IMAGE_PARTS, png((6, 4), PROFILE * 2, PIXELS)),
    "chunks": (Fault.IMAGE_PARTS, png((6, 4), png_chunk(b"abCd", b"") * CHUNKS_MAX, PIXELS)),
    "empty pixels": (Fault.IMAGE_PARTS, png((6, 4), png_chunk(b"IDAT", b"") * CHUNKS_MAX, PIXELS)),
    "chunks behind the pixels": (Fault.IMAGE_PARTS, png((6, 4), PIXELS, png_chunk(b"tEXt", b"a\0b") * CHUNKS_MAX)),
    "runs of nothing": (Fault.IMAGE_PARTS, bmp_of_runs(6, bytes([0, 2, 0, 0]) * 8_000)),
}


@pytest.mark.parametrize(("fault", "data"), LASTING.values(), ids=LASTING)
def test_what_lasts_longer_than_its_size_explains_is_refused(declare, fault, data):
    side = 6 if data[:2] == b"BM" else 4
    request = declare(height=side)
    assert verdict(data, request) == fault
    assert explain(fault, request)


@pytest.mark.parametrize("data", LASTING.values(), ids=LASTING)
def test_their_owner_is_told_before_they_are_sent(data):
    reason = "scans" if data[0] == Fault.IMAGE_SCANS else "parts"
    for read in (look, lambda content: prepare_image(content, Target(6, 4, 3))):
        with pytest.raises(Unreadable, match=reason):
            read(data[1])


def test_as_many_scans_as_are_allowed_pass(declare):
    assert verdict(jpeg_of(SCANS_MAX), declare()) == "ok"


def test_pictures_as_they_are_made_pass(declare):
    """With a thumbnail in the metadata, large profiles, restarts, and runs of one pixel each."""
    stream = np.random.default_rng(0)
    pixels = stream.integers(0, 256, (96, 128, 3), dtype=np.uint8)
    thumbnail = b"Exif\x00\x00" + jpeg_of(SCANS_MAX + 1)[:60_000]
    files = [
        saved(pixels, "JPEG", exif=thumbnail),
        saved(pixels, "JPEG", icc_profile=stream.bytes(3_000_000)),
        saved(pixels, "JPEG", progressive=True, quality=100, subsampling=0),
        saved(pixels, "JPEG", restart_marker_blocks=1),
        saved(pixels, "PNG", icc_profile=stream.bytes(500_000)),
        saved(pixels, "PNG"),
        saved(pixels, "WEBP", lossless=True),
        saved(pixels, "BMP"),
    ]
    request = declare(channels=3, width=128, height=96)
    assert [verdict(data, request) for data in files] == ["ok"] * len(files)
    row = b"".join(bytes([1, value]) for value in range(96)) + b"\0\0"
    assert verdict(bmp_of_runs(96, row * 96 + b"\0\1"), declare(channels=3, width=96, height=96)) == "ok"
