"""Zip files that break one rule each, and the honest ones that must pass."""

import io
import stat
import struct
import tarfile
import zipfile
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from obscura.wire.uploads import Fault
from tests.pictures import archive, picture, saved
from tests.service.ingest.conftest import PICTURE, SHARED, each_case, pictures


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


def listing(body: bytes, *rows: bytes) -> bytes:
    """The body of an archive, followed by its directory."""
    counts = (len(rows), len(rows), len(b"".join(rows)), len(body))
    return body + b"".join(rows) + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, *counts, 0)


def single(name: bytes, data: bytes, *, local_name: bytes | None = None, **facts: int) -> bytes:
    """One stored entry whose directory row may say anything."""
    header = local_header(name if local_name is None else local_name, data, flags=facts.get("flags", 0))
    return listing(header + data, central_row(name, data, 0, **facts))


def test_zip64_fields_are_understood(ingest):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file, file.open("cat/1.png", "w", force_zip64=True) as member:
        member.write(PICTURE)
    assert ingest(buffer.getvalue()) == "ok"


def test_entries_with_data_descriptors_are_understood(ingest):
    class Unseekable(io.BytesIO):
        def seekable(self) -> bool:
            return False

    buffer = Unseekable()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("cat/1.png", PICTURE)
    assert ingest(buffer.getvalue()) == "ok"


WHOLE = pictures("cat/1.png")
FILE_KINDS = (stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK, stat.S_IFDIR)
LEAVING = [b"../cat/1.png", b"cat/../../1.png", b"cat/..", b"/cat/1.png", b"\\cat\\1.png", b"C:/1.png", b"./1.png"]
LEAVING += [b"..\\cat\\1.png", b"cat\\..\\..\\1.png", b"C:\\cat\\1.png", b"cat\\\\1.png", b"__MACOSX/../../1.png"]
LEAVING += [b"cat//1.png", b"cat/1\x00.png", b"cat/1\n.png", b"", b"cat/" + b"x" * 600]
ONE = local_header(b"cat/1.png", PICTURE) + PICTURE
INNER = local_header(b"cat/2.png", PICTURE) + PICTURE
OUTER = local_header(b"cat/1.png", INNER)
ARCHIVES = [WHOLE, b"\x1f\x8b\x08" + bytes(20), tarfile.TarInfo("x").tobuf(), b"7z\xbc\xaf\x27\x1c"]
ZEROS = zlib.compress(bytes(20 * 2**20), 9)[2:-4]


def bomb(expanded: int) -> bytes:
    """Twenty megabytes of zeros that are said to be so many bytes."""
    row = central_row(b"cat/1.png", b"", 0, method=8, packed=ZEROS, expanded=expanded)
    return listing(local_header(b"cat/1.png", b"", method=8) + ZEROS, row)


# What is wrong -> the rule that refuses it, and archives of which nothing else is wrong.
REFUSED = {
    "names that leave the archive": (Fault.ARCHIVE_PATH, [single(name, PICTURE) for name in LEAVING]),
    "links and special files": (
        Fault.ARCHIVE_SPECIAL,
        [single(b"cat/1.png", PICTURE, attributes=(kind | 0o777) << 16) for kind in FILE_KINDS],
    ),
    "DOS volumes and Windows links": (
        Fault.ARCHIVE_SPECIAL,
        [single(b"cat/1.png", PICTURE, attributes=attribute) for attribute in (0x08, 0x400)],
    ),
    "an entry inside another": (
        Fault.ARCHIVE_OVERLAP,
        [listing(OUTER + INNER, central_row(b"cat/1.png", INNER, 0), central_row(b"cat/2.png", PICTURE, len(OUTER)))],
    ),
    "data that reaches into the directory": (
        Fault.ARCHIVE_OVERLAP,
        [listing(ONE, central_row(b"cat/1.png", b"x" * (len(PICTURE) + 10), 0))],
    ),
    "a bomb by its declared size": (Fault.ARCHIVE_RATIO, [bomb(20 * 2**20), bomb(2**31)]),
    "a bomb that understates its size": (Fault.ARCHIVE_BROKEN, [bomb(1000)]),
    "many small bombs by their sum": (
        Fault.ARCHIVE_RATIO,
        [archive(*((f"cat/{n}.bmp", bytes(200_000)) for n in range(90)), method=zipfile.ZIP_DEFLATED)],
    ),
    "encryption": (
        Fault.ARCHIVE_ENCRYPTED,
        [single(b"cat/1.png", PICTURE, flags=flags) for flags in (0x0001, 0x0040, 0x2000)],
    ),
    "another compression": (
        Fault.ARCHIVE_METHOD,
        [archive(("cat/1.png", PICTURE), method=method) for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)],
    ),
    "nested archives": (Fault.ARCHIVE_NESTED, [archive(("cat/1.png", inner)) for inner in ARCHIVES]),
    "headers that disagree": (
        Fault.ARCHIVE_BROKEN,
        [
            single(b"cat/1.png", PICTURE, **facts)
            for facts in ({"local_name": b"cat/2.png"}, {"method": 8}, {"expanded": 5})
        ],
    ),
    "a wrong checksum": (Fault.ARCHIVE_BROKEN, [WHOLE.replace(PICTURE, picture(value=8)[: len(PICTURE)])]),
    "bytes before and after, or less than all": (
        Fault.ARCHIVE_BROKEN,
        [b"GIF89a" + WHOLE, WHOLE + b"x", WHOLE[:-1], WHOLE[: len(WHOLE) // 2], WHOLE[10:], b"PK\x03\x04", b"hello"],
    ),
    "files outside class folders": (
        Fault.LAYOUT,
        [pictures("dog/1.png", name) for name in ("1.png", "cat/more/1.png", "cat/more/x/y")],
    ),
    "folders outside the declared classes": (
        Fault.CLASS_UNDECLARED,
        [pictures("cat/1.png", f"{folder}/2.png") for folder in ("bird", "Cat", "cat ")],
    ),
    "no picture": (Fault.EMPTY, [archive(), archive(("cat/", b"")), pictures("__MACOSX/cat/._1.png", ".DS_Store")]),
    "a link among system files": (
        Fault.ARCHIVE_SPECIAL,
        [single(b"__MACOSX/cat/._1.png", PICTURE, attributes=(stat.S_IFLNK | 0o777) << 16)],
    ),
    "a bomb among system files": (
        Fault.ARCHIVE_RATIO,
        [archive(("cat/.DS_Store", bytes(2**21)), method=zipfile.ZIP_DEFLATED)],
    ),
    "system files of one name": (Fault.ARCHIVE_DUPLICATE, [pictures("cat/1.png", "cat/.DS_Store", "cat\\.ds_store")]),
}


@each_case(REFUSED)
def test_what_breaks_a_rule_is_refused_by_that_rule(ingest, fault, case):
    assert ingest(case) == fault


SAME_NAMES = [("a.png", "a.png"), ("a.png", "A.PNG"), ("stra\u00dfe.png", "STRASSE.png")]
SAME_NAMES += [("\u00e9.png", "e\u0301.png"), ("fi.png", "\ufb01.png")]


@pytest.mark.parametrize(("first", "second"), SAME_NAMES)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_are_the_same_to_some_file_system_are_refused(ingest, first, second):
    assert ingest(pictures(f"cat/{first}", f"cat/{second}")) == Fault.ARCHIVE_DUPLICATE


def test_sizes_and_numbers_are_bounded_in_all_and_for_each_file(ingest):
    data = pictures("cat/1.png", "cat/2.png")
    assert ingest(data, limits={"decoded_bytes_max": len(PICTURE)}) == Fault.ARCHIVE_SIZE
    assert ingest(data, limits={"entry_bytes_max": len(PICTURE) - 1}) == Fault.ARCHIVE_SIZE
    assert ingest(data, limits={"entries_max": 1}) == Fault.ARCHIVE_ENTRIES


def test_the_declared_number_is_an_upper_bound(ingest):
    data = pictures(*(f"cat/{number}.png" for number in range(3)))
    found = [ingest(data, records_declared=declared) for declared in (3, 4, 2)]
    assert found == ["ok", "ok", Fault.RECORDS_TOO_MANY]


@SHARED
@given(st.data())
def test_pictures_come_back_as_they_were_in_directory_order(ingest, stored, data):
    channels = data.draw(st.sampled_from([1, 3]))
    count = data.draw(st.integers(1, 6))
    shape = (count, 4, 6) if channels == 1 else (count, 4, 6, 3)
    raw = data.draw(st.binary(min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    images = np.frombuffer(raw, np.uint8).reshape(shape)
    labels = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    members = []
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        kind = data.draw(st.sampled_from(["PNG", "BMP"]))
        members.append((f"{('cat', 'dog')[label]}/{number}", saved(image, kind)))
    assert ingest(archive(*members, method=zipfile.ZIP_DEFLATED), channels=channels) == "ok"
    back, back_labels = stored()
    assert (back == images).all()
    assert (back.dtype, back_labels.dtype, back_labels.tolist()) == (np.uint8, np.int64, labels)


@SHARED
@given(st.data())
def test_damage_anywhere_is_a_fault_or_harmless(ingest, data):
    whole = bytearray(archive(("cat/1.png", PICTURE), ("dog/2.png", PICTURE), method=zipfile.ZIP_DEFLATED))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    word = ingest(bytes(whole))
    assert word == "ok" or Fault(word) not in (Fault.INTERNAL, Fault.STORAGE)
