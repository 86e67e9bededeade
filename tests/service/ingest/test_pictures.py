"""Pictures: what is decoded, what is refused before decoding, also if small but slow, and what never survives."""

import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from obscura.errors import Unreadable
from obscura.image_types import CHUNKS_MAX, SCANS_MAX, SEGMENTS_MAX
from obscura.preparing.images import Target, look, prepare_image
from obscura.wire.uploads import Fault, Refused
from service.ingest.faults import explain
from service.ingest.pictures import decode_picture
from tests.pictures import picture, png, png_chunk, saved

CANARY = b"CANARY-7f3a"


def verdict(data: bytes, request) -> str:
    try:
        decode_picture(data, request)
    except Refused as refused:
        return refused.fault.value
    return "ok"


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP", "JPEG"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_the_four_formats_are_decoded(declare, kind, mode):
    options = {"lossless": True} if kind == "WEBP" else {}
    data = picture(kind, mode, value=7 if mode == "L" else (7, 7, 7), **options)
    for channels, shape in ((1, (4, 6)), (3, (4, 6, 3))):
        found = decode_picture(data, declare(channels=channels))
        assert (found.shape, found.dtype) == (shape, np.uint8)
        assert (found == 7).all()


@pytest.mark.parametrize("lossless", [True, False])
@pytest.mark.parametrize("exif", [b"", b"Exif\x00\x00" + CANARY])
def test_each_kind_of_webp_header_is_read(declare, lossless, exif):
    data = picture("WEBP", "RGB", value=(10, 20, 30), lossless=lossless, exif=exif)
    assert verdict(data, declare(channels=3)) == "ok"
    assert verdict(data, declare(channels=3, width=7)) == Fault.IMAGE_SIZE


GREY = (9, 9, 9)
# What a picture is -> the verdict on it, where three channels were declared, or one.
VERDICTS = {
    "colour is not silently turned into gray": (Fault.IMAGE_MODE, 1, picture("PNG", "RGB", value=(1, 2, 3))),
    "bilevel pictures are expanded": ("ok", 3, picture("PNG", "1", value=1)),
    "palettes are expanded": ("ok", 3, picture("PNG", "P", value=1)),
    "sixteen bits of gray are refused": (Fault.IMAGE_MODE, 3, picture("PNG", "I;16", value=700)),
    "inks are refused": (Fault.IMAGE_MODE, 3, picture("JPEG", "CMYK", value=(1, 2, 3, 4))),
    "opaque alpha is dropped": ("ok", 1, picture("PNG", "RGBA", value=(*GREY, 255))),
    "transparency is refused": (Fault.IMAGE_TRANSPARENT, 1, picture("PNG", "RGBA", value=(*GREY, 254))),
    "transparency of gray": (Fault.IMAGE_TRANSPARENT, 1, picture("PNG", "LA", value=(9, 0))),
    "a transparent place of a palette": (Fault.IMAGE_TRANSPARENT, 3, picture("PNG", "P", value=0, transparency=0)),
    "a transparent shade of gray": (Fault.IMAGE_TRANSPARENT, 1, picture("PNG", "L", value=7, transparency=7)),
}


@pytest.mark.parametrize(("expected", "channels", "data"), VERDICTS.values(), ids=VERDICTS)
def test_modes_are_expanded_or_refused(declare, expected, channels, data):
    assert verdict(data, declare(channels=channels)) == expected


@pytest.mark.parametrize(("colour_type", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_sixteen_bits_a_channel_are_refused_and_not_cut_to_eight(declare, colour_type, channels):
    """Pillow opens colour with sixteen bits as colour with eight."""
    for bits, expected in ((8, "ok"), (16, Fault.IMAGE_MODE)):
        row = b"\0" + b"\xff" * (6 * channels * bits // 8)
        pixels = png_chunk(b"IDAT", zlib.compress(row * 4))
        data = png((6, 4), pixels, bits=bits, colour_type=colour_type)
        assert verdict(data, declare(channels=3)) == expected


def test_twelve_bits_a_channel_of_a_jpeg_are_refused(declare):
    data = bytearray(picture("JPEG", "RGB", value=(5, 5, 5)))
    frame = data.index(b"\xff\xc0")
    data[frame + 4] = 12
    assert verdict(bytes(data), declare(channels=3)) == Fault.IMAGE_MODE


@pytest.mark.parametrize("size", [(4, 6), (6, 5), (1, 1), (28, 28)])
@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP", "JPEG"])
def test_a_picture_of_another_size_is_refused(declare, kind, size):
    assert verdict(picture(kind, "RGB", size, value=(5, 5, 5)), declare(channels=3)) == Fault.IMAGE_SIZE


def test_a_small_file_that_decodes_to_400_megabytes_is_refused_unread(declare):
    side = 20_100
    rows = zlib.compress(bytes(((side + 7) // 8 + 1) * side), 9)
    bomb = png((side, side), png_chunk(b"IDAT", rows), bits=1)
    assert len(bomb) < 60_000
    tracemalloc.start()
    try:
        assert verdict(bomb, declare(height=side, width=side)) == Fault.IMAGE_PIXELS
        assert verdict(bomb, declare()) == Fault.IMAGE_PIXELS
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("offset", "kind"), [(24, b"VP8X"), (21, b"VP8L")])
def test_a_giant_webp_canvas_is_refused_before_its_decoder_allocates(declare, offset, kind):
    body = b"RIFF" + struct.pack("<I", 40) + b"WEBP" + kind + struct.pack("<I", 10) + b"\xff" * 20
    assert verdict(body, declare()) == Fault.IMAGE_PIXELS


def test_animations_are_refused(declare):
    for kind in ("PNG", "WEBP", "MPO"):
        data = picture(kind, value=1, save_all=True, append_images=[Image.new("L", (6, 4), 200)])
        assert verdict(data, declare()) == Fault.IMAGE_FRAMES


NO_PICTURES = [b"", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe-3.0 EPSF-3.0", b"MZ"]


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "ICO", "PPM", "JPEG2000", "TGA", "PDF", *NO_PICTURES])
def test_other_formats_are_refused_whatever_they_are_called(declare, kind):
    assert verdict(picture(kind, "L") if isinstance(kind, str) else kind, declare()) == Fault.IMAGE_FORMAT


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP", "JPEG"])
def test_every_truncation_is_refused_as_broken(declare, kind):
    pixels = np.random.default_rng(5).integers(0, 256, (4, 6), dtype=np.uint8)
    data = saved(Image.fromarray(pixels).convert("RGB"), kind)
    for cut in range(16, len(data) // 2, 7):
        assert verdict(data[:cut], declare(channels=3)) == Fault.IMAGE_BROKEN


def test_a_polyglot_is_stored_as_pixels_only(declare):
    data = picture(value=7) + b"PK\x03\x04" + CANARY + b"<script>"
    assert CANARY not in decode_picture(data, declare()).tobytes()


def test_metadata_is_dropped(declare):
    exif = Image.Exif()
    exif[0x010E] = CANARY.decode()
    exif[0x0112] = 6  # orientation: shown turned, stored as it lies
    for kind in ("JPEG", "PNG", "WEBP"):
        data = picture(kind, "RGB", value=GREY, exif=exif)
        assert CANARY in data
        pixels = decode_picture(data, declare(channels=3))
        assert pixels.shape == (4, 6, 3)
        assert CANARY not in pixels.tobytes()


# --- parts that keep a decoder busy -----------------------------------------------------------------------------------


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
