"""Pictures: what is decoded, what is refused before decoding, and what never survives."""

import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from obscura.wire.faults import Fault, Refused
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
