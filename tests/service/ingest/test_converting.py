"""Images of any size: the service stores what the owner's machine would send, within the same limits."""

import io
import zlib
from itertools import product

import numpy as np
import pytest
from PIL import Image

from obscura.image_types import PIXELS_MAX, SCANS_MAX
from obscura.preparing.images import Target, prepare_image
from obscura.wire.uploads import Fault, Refused
from service.ingest.faults import explain
from service.ingest.pictures import decode_picture
from tests.pictures import archive, picture, png, png_chunk, saved
from tests.service.ingest.test_pictures import jpeg_of

NOISE = np.random.default_rng(3).integers(0, 256, (90, 70, 4), np.uint8)
MODES = {mode: Image.fromarray(NOISE, "RGBA").convert("RGB").convert(mode) for mode in ("1", "L", "P", "RGB", "CMYK")}
MODES |= {"RGBA": Image.fromarray(NOISE, "RGBA"), "LA": Image.fromarray(NOISE[:, :, :2], "LA")}
KINDS = {"PNG": ("1", "L", "P", "RGB", "RGBA", "LA"), "JPEG": ("L", "RGB", "CMYK"), "BMP": ("1", "L", "P", "RGB")}
KINDS |= {"WEBP": ("RGB", "RGBA")}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("kind", "mode"), [(kind, mode) for kind, modes in KINDS.items() for mode in modes])
def test_an_image_is_converted_as_on_the_owners_machine(declare, kind, mode, channels):
    exif = Image.Exif()
    for turn, size in product((1, 3, 6, 7), ((32, 32), (20, 40), (70, 90))):
        exif[0x0112] = turn
        data = saved(MODES[mode], kind, **{} if kind == "BMP" else {"exif": exif})
        _, sent = prepare_image(data, Target(*size, channels))
        expected = Image.open(io.BytesIO(sent)).convert("L" if channels == 1 else "RGB")
        found = decode_picture(data, declare(width=size[0], height=size[1], channels=channels, fit="crop"))
        assert (found.dtype, found.shape[:2]) == (np.uint8, size[::-1])
        np.testing.assert_array_equal(found, np.asarray(expected))


def test_padding_shows_the_whole_image_on_white(declare):
    wide = np.zeros((10, 40), np.uint8)
    found = decode_picture(saved(wide), declare(width=20, height=20, fit="pad"))
    assert (found[:7] == 255).all()
    assert (found[-7:] == 255).all()
    assert (found[8:12] == 0).all()
    assert (decode_picture(saved(wide), declare(width=20, height=20, fit="crop")) == 0).all()


def test_the_first_frame_of_an_animation_and_of_a_phones_photograph_is_used(declare):
    for kind in ("PNG", "WEBP", "MPO"):
        data = picture(kind, size=(12, 8), value=1, save_all=True, append_images=[Image.new("L", (12, 8), 200)])
        assert decode_picture(data, declare(fit="crop")).max() < 10


SIDE = 20_100
BOMB = png((SIDE, SIDE), png_chunk(b"IDAT", zlib.compress(bytes(((SIDE + 7) // 8 + 1) * SIDE), 9)), bits=1)
REFUSED = {
    "too many pixels": (Fault.IMAGE_PIXELS, BOMB),
    "sixteen bits": (Fault.IMAGE_MODE, picture("PNG", "I;16", value=700)),
    "too many scans": (Fault.IMAGE_SCANS, jpeg_of(SCANS_MAX + 1)),
    "half an image": (Fault.IMAGE_BROKEN, saved(MODES["RGB"])[:4000]),
    "no image": (Fault.IMAGE_FORMAT, b"MZ"),
    "a GIF": (Fault.IMAGE_FORMAT, picture("GIF", "P", value=1)),
    "an archive": (Fault.ARCHIVE_NESTED, archive(("a", b"x"))),
}


@pytest.mark.parametrize("wrong", REFUSED)
@pytest.mark.parametrize("fit", ["crop", "pad"])
def test_what_cannot_be_converted_is_refused(declare, wrong, fit):
    fault, data = REFUSED[wrong]
    with pytest.raises(Refused) as refused:
        decode_picture(data, declare(fit=fit, limits={"pixels_max": PIXELS_MAX}))
    assert refused.value.fault == fault


def test_the_advice_on_colour_modes_depends_on_the_conversion(declare):
    assert "asks which value is white" in explain(Fault.IMAGE_MODE, declare(fit="crop"))
    assert "must be gray" in explain(Fault.IMAGE_MODE, declare())
    assert "fit=crop" in explain(Fault.IMAGE_SIZE, declare())


def test_a_zip_of_mixed_images_is_stored_at_the_declared_size(ingest, stored):
    files = [("cat/1.png", picture(size=(50, 30), value=9)), ("dog/2.jpg", picture("JPEG", "RGB", (9, 90), "white"))]
    assert ingest(archive(*files)) == Fault.IMAGE_SIZE
    assert ingest(archive(*files), fit="crop") == "ok"
    images, labels = stored()
    assert (images.shape, list(labels)) == ((2, 4, 6), [0, 1])
    assert [set(image.ravel()) for image in images] == [{9}, {255}]
