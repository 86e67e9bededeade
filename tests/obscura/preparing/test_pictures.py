"""One image: recognised for what it is, made to fit, and taken by the service exactly as it was made."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from benchmarks.intake.builders.images import tiff_of
from obscura.errors import Unreadable
from obscura.image_types import PIXELS_MAX
from obscura.preparing.depth import FORMAT_SCALE, Scale
from obscura.preparing.images import Target, look, prepare_image
from service.ingest.pictures import decode_picture
from tests.obscura.preparing.conftest import deep_png
from tests.pictures import png, png_chunk, saved
from tests.service.ingest.conftest import request_of

WHITE, BLACK = (255, 255, 255), (0, 0, 0)


def target(width: int, height: int, channels: int = 3, **changes: Any) -> Target:
    return Target(width, height, channels, **changes)


def prepared(content: bytes, wanted: Target) -> np.ndarray:
    request = request_of(height=wanted.height, width=wanted.width, channels=wanted.channels)
    return decode_picture(prepare_image(content, wanted)[1], request)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(48, 48), (64, 40), (8, 128)])
def test_the_service_takes_whatever_comes_out(motley, size, channels):
    wanted = target(*size, channels)
    files = [*(motley / "cat").glob("[!.]*"), *(motley / "dog").glob("*.[gjp]*")]
    assert len(files) == 13
    for file in files:
        assert prepared(file.read_bytes(), wanted).shape == (size[1], size[0], 3)[: 2 + (channels == 3)], file.name


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP"])
def test_what_fits_is_sent_as_it_is(colours, kind):
    content = saved(Image.fromarray(colours()), kind)
    assert prepare_image(content, target(48, 48))[1] == content
    assert prepare_image(content, target(40, 40))[1] != content


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientations_of_exif(colours, orientation, kind):
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = saved(Image.fromarray(colours(20, 30)), kind, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    seen = look(content)
    assert ((seen.width, seen.height), seen.turned) == (upright.size, orientation != 1)
    assert (prepared(content, target(*upright.size)) == np.asarray(upright)).all()


def test_sixteen_bits_are_scaled_and_not_cut_off(colours):
    grey = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype(np.uint16)
    content = saved(Image.fromarray(grey))
    assert look(content).depth is not None
    assert look(content).grey
    assert np.abs(prepared(content, target(32, 32, 1)) - grey / 257).max() <= 0.5
    values = colours(16, 16)
    content = deep_png(values.astype(np.uint16) * 257)
    assert (look(content).depth is None, look(content).grey) == (False, False)
    assert (prepared(content, target(16, 16)) == values).all()


def test_transparency_is_laid_on_white(colours):
    pixels = np.dstack([colours(16, 16), np.full((16, 16), 255, np.uint8)])
    pixels[0, 0] = (0, 0, 0, 0)
    pixels[0, 1] = (250, 100, 0, 51)
    content = saved(Image.fromarray(pixels))
    assert look(content).transparent
    kept = prepared(content, target(16, 16))
    assert tuple(kept[0, 0]) == WHITE
    assert tuple(kept[0, 1]) == (254, 224, 204)
    assert (kept[1:] == pixels[1:, :, :3]).all()


def test_a_palette_with_one_clear_colour():
    image = Image.new("P", (16, 16), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.putpixel((3, 0), 0)
    content = saved(image, transparency=0)
    assert look(content).transparent
    kept = prepared(content, target(16, 16))
    assert tuple(kept[0, 3]) == WHITE
    assert tuple(kept[0, 4]) == (10, 20, 30)
    assert not look(saved(image)).transparent


def test_palettes_of_greys_are_grey():
    image = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
    assert look(saved(image, "GIF")).grey
    assert not look(saved(image.convert("RGB"))).grey  # stored as colour: giving that up is its owner's choice


def test_opaque_alpha_is_no_transparency(colours):
    content = saved(Image.fromarray(np.dstack([colours(), np.full((48, 48), 255, np.uint8)])))
    assert not look(content).transparent
    assert prepare_image(content, target(48, 48))[1] == content


def test_printed_images_become_rgb():
    content = saved(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95)
    assert look(content).printed
    red, green, blue = prepared(content, target(16, 16))[8, 8]
    assert red > 240
    assert max(green, blue) < 15


def test_of_moving_images_the_first_frame_is_kept():
    first, second = Image.new("RGB", (16, 16), (200, 0, 0)), Image.new("RGB", (16, 16), (0, 200, 0))
    for kind in ("GIF", "PNG", "WEBP", "TIFF"):
        content = saved(first, kind, save_all=True, append_images=[second])
        assert look(content).animated, kind
        red, green, _ = prepared(content, target(16, 16))[8, 8]
        assert red > 150 > 50 > green, kind


def test_cropping_keeps_the_middle():
    stripes = np.zeros((20, 60, 3), np.uint8)
    stripes[:, :20], stripes[:, 20:40], stripes[:, 40:] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    assert (prepared(saved(Image.fromarray(stripes)), target(20, 20)) == (0, 255, 0)).all()


def test_a_large_photograph_is_read_at_a_part_of_its_size_and_looks_the_same():
    ramp = np.tile(np.linspace(0, 255, 1600), (1200, 1)).astype(np.uint8)
    image = Image.fromarray(ramp)
    fast, slow = (prepared(saved(image, kind), target(64, 48, 1)) for kind in ("JPEG", "PNG"))
    assert np.abs(fast.astype(int) - slow).max() <= 3


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF"])
def test_damaged_images_are_told_from_whole_ones(colours, kind):
    content = saved(Image.fromarray(colours()), kind)
    look(content)
    for damaged in (content[: len(content) * 2 // 3], b"", b"no image at all", content[:20]):
        with pytest.raises(Unreadable):
            look(damaged)


def test_a_stream_that_breaks_off_inside_a_whole_file_is_damage(colours):
    content = saved(Image.fromarray(colours()))
    at = content.index(b"IDAT")
    length = int.from_bytes(content[at - 4 : at], "big")
    stream = content[at + 4 : at + 4 + length // 2] + bytes(length - length // 2)
    broken = content[: at - 4] + png_chunk(b"IDAT", stream) + content[at + 8 + length :]
    with pytest.raises(Unreadable, match="damaged"):
        look(broken)


def test_bombs_are_judged_by_their_headers(colours):
    """The largest would take 3.6 gigabytes of pixels: a look that decoded it would not come back soon."""
    for side in (9_000, 60_000):
        assert side * side > PIXELS_MAX
        with pytest.raises(Unreadable, match="80,000,000"):
            look(png((side, side), png_chunk(b"IDAT", zlib.compress(bytes(100)))))
    webp = bytearray(saved(Image.fromarray(colours()), "WEBP", lossless=True))
    webp[21:25] = struct.pack("<I", 16_383 | 16_383 << 14)
    with pytest.raises(Unreadable, match="16,384"):
        look(bytes(webp))


def test_colours_that_are_not_converted():
    """Seen at the first look: what fails later would fail when the dataset is declared already."""
    with pytest.raises(Unreadable, match=r"an unsupported kind \(LAB\)"):
        look(saved(Image.new("LAB", (16, 16)), "TIFF"))


@pytest.mark.parametrize(
    ("bands", "kind", "photometric", "says"),
    [
        (13, "f4", 2, "it has 13 channels"),
        (2, "u2", 1, "it has 2 channels"),
        (5, "u1", 2, "it has 5 channels"),
        (6, "u2", 2, "it has 6 channels"),
        (4, "u1", 1, "4 channels, which it does not declare as colours"),
        (4, "f4", 2, "colour TIFF with floats of 32 bits"),
        (1, "f2", 1, "floats of 16 bits"),
        (1, "u8", 1, "numbers of 64 bits"),
        (1, "c8", 1, "complex numbers of 64 bits"),
        (1, "u2", 32803, "TIFF of an unsupported kind"),
    ],
)
def test_a_tiff_that_is_no_image_is_refused_with_its_reason(capfd, bands, kind, photometric, says):
    for apart in (False, True) if bands > 1 else (False,):
        values = np.ones((bands, 9, 9) if apart else (9, 9, bands), kind)
        sample = {"u": 1, "f": 3, "c": 6}[kind[0]]
        with pytest.raises(Unreadable, match=says):
            look(tiff_of(values, 8 * values.itemsize, sample, photometric, bands=bands, apart=apart))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "I;16", "I", "F"])
def test_every_mode_that_is_taken_at_the_first_look_can_be_prepared(mode):
    content = saved(Image.new(mode, (20, 16)), "TIFF")
    look(content)
    for channels in (1, 3):
        prepared(content, target(8, 8, channels, scale=Scale(window=(0, 1)) if mode in "IF" else FORMAT_SCALE))


def test_a_copy_has_the_digest_of_the_image_in_another_type_and_with_other_metadata():
    rng = np.random.default_rng()
    image, other = (Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)) for shape in ((40, 60), (60, 40)))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = saved(image.convert("RGB").transpose(Image.Transpose.ROTATE_90), exif=exif)
    plain, jpeg, noted = saved(image), saved(image, "JPEG"), saved(image, "JPEG", comment="by hand")
    assert len({look(content).digest for content in (plain, turned, saved(image, "TIFF"))}) == 1
    assert look(jpeg).digest == look(noted).digest != look(plain).digest
    assert look(saved(other)).digest != look(plain).digest
