"""A new type of images is a row of the table: prepared, sent and received like any other."""

import io
import struct
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from obscura import image_types as types
from obscura.preparing.choices import Choices
from obscura.preparing.images import Target, prepare_image
from obscura.preparing.preparation import prepare
from obscura.wire.faults import Fault, Refused
from service.ingest.pictures import decode_picture
from tests.service.ingest.conftest import request_of

PIXELS = np.arange(64, dtype=np.uint8).reshape(8, 8)
SGI = types.ImageType(
    "SGI", (".sgi",), lambda data: data.startswith(b"\x01\xda"), lambda data: struct.unpack_from(">2H", data, 6)
)
REQUEST = request_of(height=8, width=8)
GREY = Target(8, 8, 1)
with io.BytesIO() as _file:
    Image.fromarray(PIXELS).save(_file, "SGI")
    FILE = _file.getvalue()


@pytest.fixture
def sgi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(types, "TYPES", (*types.TYPES, SGI))


@pytest.mark.usefixtures("sgi")
def test_a_new_type_is_sent_as_it_is_and_read_by_the_service():
    suffix, content = prepare_image(FILE, GREY)
    assert (suffix, content) == (".sgi", FILE)
    np.testing.assert_array_equal(decode_picture(content, REQUEST), PIXELS)
    assert types.names_of(taken=True, last="and") == "PNG, JPEG, WEBP, BMP and SGI"


@pytest.mark.usefixtures("sgi")
def test_a_new_type_is_made_to_fit_and_found_in_folders(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "one.sgi").write_bytes(FILE)
    package = prepare(tmp_path, Choices(size=16, grey=True, classes=["cat"]))
    assert (package.private_records, package.width, package.channels) == (1, 16, 1)
    suffix, content = prepare_image(FILE, replace(GREY, width=16, height=16))
    assert (suffix, types.image_header(content)[1:]) == (".png", (16, 16))


def test_a_type_that_only_clients_read_becomes_a_png(monkeypatch):
    monkeypatch.setattr(types, "TYPES", (*types.TYPES, replace(SGI, size=None)))
    suffix, content = prepare_image(FILE, GREY)
    assert suffix == ".png"
    np.testing.assert_array_equal(decode_picture(content, REQUEST), PIXELS)
    with pytest.raises(Refused) as refused:
        decode_picture(FILE, REQUEST)
    assert refused.value.fault is Fault.IMAGE_FORMAT


def test_without_its_row_it_is_no_image():
    assert SGI not in types.TYPES
    assert ".sgi" not in types.image_suffixes()
    with pytest.raises(Refused) as refused:
        decode_picture(FILE, REQUEST)
    assert refused.value.fault is Fault.IMAGE_FORMAT


def test_pillow_reads_every_readable_type():
    Image.init()
    assert {kind.name for kind in types.TYPES if kind.readable} <= set(Image.OPEN)
