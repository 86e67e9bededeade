"""A new image type is a row of the table: prepared, sent and received like any other."""

import struct
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from obscura import image_types as types
from obscura.preparing.choices import Choices
from obscura.preparing.images import Target, prepare_image
from obscura.preparing.preparation import prepare
from obscura.wire.uploads import Fault, Refused
from service.ingest.pictures import decode_picture
from tests.pictures import saved, write_files
from tests.service.ingest.conftest import request_of

PIXELS = np.arange(64, dtype=np.uint8).reshape(8, 8)
FILE = saved(PIXELS, "PCX")
REQUEST = request_of(height=8, width=8)
GREY = Target(8, 8, 1)


def size(data: bytes) -> tuple[int, int]:
    left, top, right, bottom = struct.unpack_from("<4H", data, 4)
    return right - left + 1, bottom - top + 1


PCX = types.ImageType("PCX", (".pcx",), lambda data: data.startswith(b"\x0a"), size)


@pytest.fixture(autouse=True, params=[PCX])
def known(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(types, "TYPES", (*types.TYPES, request.param))


def test_a_new_type_is_sent_as_it_is_and_read_by_the_service():
    suffix, content = prepare_image(FILE, GREY)
    assert (suffix, content) == (".pcx", FILE)
    np.testing.assert_array_equal(decode_picture(content, REQUEST), PIXELS)
    assert types.names_of(taken=True, last="and") == "PNG, JPEG, WEBP, BMP and PCX"


def test_a_new_type_is_made_to_fit_and_found_in_folders(tmp_path):
    package = prepare(write_files(tmp_path, {"cat/one.pcx": FILE}), Choices(size=16, grey=True, classes=["cat"]))
    assert (package.private_records, package.width, package.channels) == (1, 16, 1)
    suffix, content = prepare_image(FILE, replace(GREY, width=16, height=16))
    assert (suffix, types.image_header(content)[1:]) == (".png", (16, 16))


@pytest.mark.parametrize("known", [replace(PCX, size=None)], indirect=True)
def test_a_type_that_only_clients_read_becomes_a_png():
    suffix, content = prepare_image(FILE, GREY)
    assert suffix == ".png"
    np.testing.assert_array_equal(decode_picture(content, REQUEST), PIXELS)
    with pytest.raises(Refused) as refused:
        decode_picture(FILE, REQUEST)
    assert refused.value.fault is Fault.IMAGE_FORMAT


def test_pillow_knows_every_readable_type():
    Image.init()
    assert {kind.name for kind in types.TYPES if kind.readable} <= set(Image.OPEN)
