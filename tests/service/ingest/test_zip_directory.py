"""Zip files that break one rule each, and the honest ones that must pass."""

from __future__ import annotations

import io
import stat
import struct
import tarfile
import unicodedata
import zipfile
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from service.ingest.faults import Fault

_SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)


def local_header(name: bytes, data: bytes, *, flags: int = 0, method: int = 0, packed: bytes | None = None) -> bytes:
    packed = data if packed is None else packed
    sizes = (zlib.crc32(data), len(packed), len(data))
    return struct.pack("<4s5H3I2H", b"PK\x03\x04", 20, flags, method, 0, 0, *sizes, len(name), 0) + name


def central_row(
    name: bytes,
    data: bytes,
    offset: int,
    *,
    flags: int = 0,
    method: int = 0,
    packed: bytes | None = None,
    expanded: int | None = None,
    attributes: int = 0,
) -> bytes:
    packed = data if packed is None else packed
    sizes = (zlib.crc32(data), len(packed), len(data) if expanded is None else expanded)
    head = (b"PK\x01\x02", 20, 20, flags, method, 0, 0, *sizes, len(name), 0, 0, 0, 0, attributes, offset)
    return struct.pack("<4s6H3I5H2I", *head) + name


def end_record(count: int, size: int, offset: int) -> bytes:
    return struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, count, count, size, offset, 0)


def single(name: bytes, data: bytes, *, local_name: bytes | None = None, **facts: int) -> bytes:
    """One stored entry whose directory row may say anything."""
    body = local_header(name if local_name is None else local_name, data, flags=facts.get("flags", 0)) + data
    row = central_row(name, data, 0, **facts)
    return body + row + end_record(1, len(row), len(body))


def test_class_folders_become_arrays_in_directory_order(ingest, archive, picture, stored):
    data = archive(("dog/1.png", picture(value=9)), ("cat/1.png", picture(value=3)), method=zipfile.ZIP_DEFLATED)
    assert ingest(data) == "ok"
    images, labels = stored()
    assert images.shape == (2, 4, 6)
    assert images.dtype == np.uint8
    assert images[:, 0, 0].tolist() == [9, 3]
    assert labels.dtype == np.int64
    assert labels.tolist() == [1, 0]


def test_folder_entries_and_one_folder_around_all_are_accepted(ingest, archive, picture):
    around = archive(("data/", b""), ("data/cat/", b""), ("data/cat/1.png", picture()), ("data/dog/1.png", picture()))
    assert ingest(around) == "ok"


def test_zip64_fields_are_understood(ingest, picture):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file, file.open("cat/1.png", "w", force_zip64=True) as member:
        member.write(picture())
    assert ingest(buffer.getvalue()) == "ok"


def test_entries_with_data_descriptors_are_understood(ingest, picture):
    class Unseekable(io.BytesIO):
        def seekable(self) -> bool:
            return False

    buffer = Unseekable()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("cat/1.png", picture())
    assert ingest(buffer.getvalue()) == "ok"


def test_class_names_match_in_either_unicode_spelling(ingest, archive, picture):
    name = "Bär"
    data = archive((unicodedata.normalize("NFD", name) + "/1.png", picture()))
    assert ingest(data, classes=(name,)) == "ok"


@pytest.mark.parametrize(
    "name",
    [
        b"../cat/1.png",
        b"cat/../../1.png",
        b"cat/..",
        b"/cat/1.png",
        b"cat\\1.png",
        b"C:/1.png",
        b"./1.png",
        b"cat//1.png",
        b"cat/1\x00.png",
        b"cat/1\n.png",
        b"",
        b"cat/" + b"x" * 600,
    ],
)
def test_names_that_leave_the_archive_are_refused(ingest, picture, name):
    assert ingest(single(name, picture())) == Fault.ARCHIVE_PATH


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK, stat.S_IFDIR])
def test_links_and_special_files_are_refused(ingest, picture, kind):
    assert ingest(single(b"cat/1.png", picture(), attributes=(kind | 0o777) << 16)) == Fault.ARCHIVE_SPECIAL


@pytest.mark.parametrize("attribute", [0x08, 0x400])
def test_dos_volumes_and_windows_links_are_refused(ingest, picture, attribute):
    assert ingest(single(b"cat/1.png", picture(), attributes=attribute)) == Fault.ARCHIVE_SPECIAL


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("cat/a.png", "cat/a.png"),
        ("cat/a.png", "cat/A.PNG"),
        ("cat/stra\u00dfe.png", "cat/STRASSE.png"),
        ("cat/\u00e9.png", "cat/e\u0301.png"),
        ("cat/fi.png", "cat/\ufb01.png"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_are_the_same_to_some_file_system_are_refused(ingest, archive, picture, first, second):
    assert ingest(archive((first, picture()), (second, picture()))) == Fault.ARCHIVE_DUPLICATE


def test_an_entry_inside_another_is_refused(ingest, picture):
    inner = local_header(b"cat/2.png", picture()) + picture()
    outer = local_header(b"cat/1.png", inner)
    rows = central_row(b"cat/1.png", inner, 0) + central_row(b"cat/2.png", picture(), len(outer))
    data = outer + inner + rows + end_record(2, len(rows), len(outer + inner))
    assert ingest(data) == Fault.ARCHIVE_OVERLAP


def test_data_that_reaches_into_the_directory_is_refused(ingest, picture):
    body = local_header(b"cat/1.png", picture()) + picture()
    row = central_row(b"cat/1.png", b"x" * (len(picture()) + 10), 0)
    assert ingest(body + row + end_record(1, len(row), len(body))) == Fault.ARCHIVE_OVERLAP


def test_a_bomb_is_refused_by_its_declared_size(ingest):
    packed = zlib.compress(bytes(20 * 2**20), 9)[2:-4]
    body = local_header(b"cat/1.png", b"", method=8) + packed
    for expanded, fault in ((20 * 2**20, Fault.ARCHIVE_RATIO), (2**31, Fault.ARCHIVE_RATIO)):
        row = central_row(b"cat/1.png", b"", 0, method=8, packed=packed, expanded=expanded)
        assert ingest(body + row + end_record(1, len(row), len(body))) == fault


def test_a_bomb_that_understates_its_size_is_cut_off(ingest):
    packed = zlib.compress(bytes(20 * 2**20), 9)[2:-4]
    body = local_header(b"cat/1.png", b"", method=8) + packed
    row = central_row(b"cat/1.png", b"", 0, method=8, packed=packed, expanded=1000)
    assert ingest(body + row + end_record(1, len(row), len(body))) == Fault.ARCHIVE_BROKEN


def test_many_small_bombs_are_refused_by_their_sum(ingest, archive):
    members = [(f"cat/{number}.bmp", bytes(200_000)) for number in range(90)]
    assert ingest(archive(*members, method=zipfile.ZIP_DEFLATED)) == Fault.ARCHIVE_RATIO


def test_sizes_are_bounded_in_all_and_for_each_file(ingest, archive, picture):
    data = archive(("cat/1.png", picture()), ("cat/2.png", picture()))
    assert ingest(data, limits={"expanded_bytes_max": len(picture())}) == Fault.ARCHIVE_SIZE
    assert ingest(data, limits={"entry_bytes_max": len(picture()) - 1}) == Fault.ARCHIVE_SIZE


def test_the_number_of_entries_is_bounded_before_they_are_read(ingest, archive, picture):
    data = archive(*((f"cat/{number}.png", picture()) for number in range(5)))
    assert ingest(data, limits={"entries_max": 4}) == Fault.ARCHIVE_ENTRIES


@pytest.mark.parametrize("flags", [0x0001, 0x0040, 0x2000])
def test_encryption_is_refused(ingest, picture, flags):
    assert ingest(single(b"cat/1.png", picture(), flags=flags)) == Fault.ARCHIVE_ENCRYPTED


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compression_is_refused(ingest, archive, picture, method):
    assert ingest(archive(("cat/1.png", picture()), method=method)) == Fault.ARCHIVE_METHOD


def test_nested_archives_are_refused(ingest, archive, picture):
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as file:
        file.addfile(tarfile.TarInfo("x"))
    for inner in (
        archive(("cat/1.png", picture())),
        b"\x1f\x8b\x08" + bytes(20),
        tar.getvalue(),
        b"7z\xbc\xaf\x27\x1c",
    ):
        assert ingest(archive(("cat/1.png", inner))) == Fault.ARCHIVE_NESTED


def test_disagreeing_headers_are_refused(ingest, picture):
    assert ingest(single(b"cat/1.png", picture(), local_name=b"cat/2.png")) == Fault.ARCHIVE_BROKEN
    assert ingest(single(b"cat/1.png", picture(), method=8)) == Fault.ARCHIVE_BROKEN
    assert ingest(single(b"cat/1.png", picture(), expanded=5)) == Fault.ARCHIVE_BROKEN


def test_a_wrong_checksum_is_refused(ingest, archive, picture):
    data = archive(("cat/1.png", picture()))
    assert ingest(data.replace(picture(), picture(value=8)[: len(picture())])) == Fault.ARCHIVE_BROKEN


def test_bytes_before_and_after_the_archive_are_refused(ingest, archive, picture):
    data = archive(("cat/1.png", picture()))
    for broken in (
        b"GIF89a" + data,
        data + b"x",
        data[:-1],
        data[: len(data) // 2],
        data[10:],
        b"PK\x03\x04",
        b"hello",
    ):
        assert ingest(broken) == Fault.ARCHIVE_BROKEN


@pytest.mark.parametrize("name", ["1.png", "cat/more/1.png", "cat/.DS_Store/x/y"])
def test_files_outside_class_folders_are_refused(ingest, archive, picture, name):
    assert ingest(archive(("dog/1.png", picture()), (name, picture()))) == Fault.LAYOUT


@pytest.mark.parametrize("folder", ["bird", "Cat", "cat "])
def test_folders_outside_the_declared_classes_are_refused(ingest, archive, picture, folder):
    assert ingest(archive(("cat/1.png", picture()), (f"{folder}/2.png", picture()))) == Fault.CLASS_UNDECLARED


def test_the_declared_number_is_an_upper_bound(ingest, archive, picture):
    data = archive(*((f"cat/{number}.png", picture()) for number in range(3)))
    assert ingest(data, records_declared=3) == "ok"
    assert ingest(data, records_declared=4) == "ok"
    assert ingest(data, records_declared=2) == Fault.RECORDS_TOO_MANY


def test_an_archive_without_pictures_is_refused(ingest, archive):
    assert ingest(archive()) == Fault.EMPTY
    assert ingest(archive(("cat/", b""))) == Fault.EMPTY


@_SHARED
@given(st.data())
def test_pictures_come_back_as_they_were(ingest, archive, stored, data):
    channels = data.draw(st.sampled_from([1, 3]))
    count = data.draw(st.integers(1, 6))
    shape = (count, 4, 6) if channels == 1 else (count, 4, 6, 3)
    raw = data.draw(st.binary(min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    images = np.frombuffer(raw, np.uint8).reshape(shape)
    labels = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    members = []
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        buffer = io.BytesIO()
        kind = data.draw(st.sampled_from(["PNG", "BMP"]))
        Image.fromarray(image).save(buffer, kind)
        members.append((f"{('cat', 'dog')[label]}/{number}", buffer.getvalue()))
    assert ingest(archive(*members, method=zipfile.ZIP_DEFLATED), channels=channels) == "ok"
    back, back_labels = stored()
    assert (back == images).all()
    assert back_labels.tolist() == labels


@_SHARED
@given(st.data())
def test_damage_anywhere_is_a_fault_or_harmless(ingest, archive, picture, data):
    whole = bytearray(archive(("cat/1.png", picture()), ("dog/2.png", picture()), method=zipfile.ZIP_DEFLATED))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    word = ingest(bytes(whole))
    assert word == "ok" or Fault(word) not in (Fault.INTERNAL, Fault.STORAGE)
