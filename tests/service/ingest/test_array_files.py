"""IDX and .npz uploads: honest ones come back unchanged, each broken one is refused by its rule."""

import gzip
import io
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from obscura.wire.uploads import Fault
from tests.pictures import archive, idx_file
from tests.service.ingest.conftest import (
    IMAGES,
    IMAGES_FILE,
    LABELS,
    LABELS_FILE,
    SHARED,
    each_case,
    npy,
    npy_header,
    packed,
    pickled,
)


def counted(count: int) -> dict[str, bytes]:
    """Two files that claim so many records, and hold none."""
    return {"images": struct.pack(">4I", 0x803, count, 4, 6), "labels": struct.pack(">2I", 0x801, count)}


SHORTENED = [IMAGES_FILE[:cut] for cut in (1, 4, 8, 15, 16, 17, -1)]
SHORTENED_GZIP = [gzip.compress(IMAGES_FILE)[:cut] for cut in (1, 9, 20, -9, -1)]
MAGICS = [struct.pack(">I", magic) for magic in (0, 0x801, 0x802, 0x0D03, 0x03080000)]
# What is wrong with a pair of IDX files -> the rule that refuses it, and pairs of which nothing else is wrong.
REFUSED_IDX = {
    "truncated images": (Fault.IDX_LENGTH, [{"images": images} for images in SHORTENED]),
    "truncated images, compressed": (Fault.IDX_LENGTH, [packed(images) for images in SHORTENED]),
    "a truncated compression": (Fault.IDX_LENGTH, [packed() | {"images": images} for images in SHORTENED_GZIP]),
    "bytes behind the last value": (
        Fault.IDX_LENGTH,
        [
            {"images": IMAGES_FILE + b"x"},
            {"labels": LABELS_FILE + b"x"},
            packed(IMAGES_FILE + b"x"),
            packed() | {"images": gzip.compress(IMAGES_FILE) + b"x"},
            packed() | {"images": gzip.compress(IMAGES_FILE) * 2},
        ],
    ),
    "a wrong magic": (Fault.IDX_MAGIC, [{"images": magic + IMAGES_FILE[4:]} for magic in MAGICS]),
    "images of another shape": (Fault.IDX_SHAPE, [{"width": 4, "height": 6}, {"channels": 3}]),
    "counts that differ": (Fault.COUNTS_DIFFER, [{"labels": struct.pack(">2I", 0x801, 2) + b"\0\0"}]),
    "more records than declared": (Fault.RECORDS_TOO_MANY, [{"records_declared": 2}, counted(2**32 - 1)]),
    "no record": (Fault.EMPTY, [counted(0)]),
    "a label that was not declared": (Fault.LABEL_RANGE, [{"labels": LABELS_FILE[:-1] + b"\x02"}]),
}


@each_case(REFUSED_IDX)
def test_idx_files_that_break_a_rule_are_refused_by_that_rule(idx, fault, case):
    assert idx(**case) == fault


def test_a_gzip_bomb_is_read_no_further_than_its_header_promises(idx):
    bomb = packed(IMAGES_FILE + bytes(50 * 2**20))
    tracemalloc.start()
    try:
        assert idx(**bomb) == Fault.IDX_LENGTH
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("names", [("a",), ("images-idx3-ubyte", "labels"), ("x-images-idx3-ubyte",) * 2])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_other_members_than_the_two_are_refused(ingest, names):
    word = ingest(archive(*((f"{number}-{name}", IMAGES_FILE) for number, name in enumerate(names))), format="idx")
    assert word == Fault.IDX_MEMBERS


def test_gray_arrays_may_have_an_axis_of_one_channel(npz, stored):
    assert npz(images=IMAGES[..., None]) == "ok"
    assert (stored()[0] == IMAGES).all()


def test_npz_of_numpy_itself_is_accepted(ingest, stored):
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, images=np.zeros((60, 4, 6, 3), np.uint8), labels=np.ones(60, np.int64))
        assert ingest(buffer.getvalue(), format="npz", channels=3) == "ok"
        assert stored()[0].shape == (60, 4, 6, 3)


WHOLE = {"images": npy(IMAGES), "labels": npy(LABELS)}
SHAPES = [(72,), (3, 24), (3, 6, 4), (3, 4, 6, 3), (0, 5, 6), (-3, 4, 6), ()]
STRANGE_LABELS = [LABELS.astype(dtype) for dtype in ("float64", "bool", "U3", "complex64")]
HEADERS = [
    b"",
    b"\x93NUMPY",
    b"not an array at all",
    npy(IMAGES, version=(2, 0)),
    npy(np.asfortranarray(IMAGES)),
    npy_header("|u1", (3, 4, 6)).replace(b"shape", b"sharp"),
    b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535,
    b"\x93NUMPY\x01\x00\x20\x00" + b"__import__('os').getpid()".ljust(32),
]
# What is wrong with the arrays of an .npz -> the rule that refuses it, and arrays of which nothing else is wrong.
REFUSED_NPZ = {
    "pickled arrays, unread": (Fault.ARRAY_TYPE, [{"images": pickled(3)}, {"labels": pickled(3)}]),
    "images of another type": (
        Fault.ARRAY_TYPE,
        [{"images": IMAGES.astype(dtype)} for dtype in ("int8", "float32", "uint16", "bool")],
    ),
    "labels of another type": (Fault.ARRAY_TYPE, [{"labels": labels} for labels in STRANGE_LABELS]),
    "images of another shape, before allocation": (
        Fault.ARRAY_SHAPE,
        [{"images": npy_header("|u1", shape)} for shape in SHAPES],
    ),
    "labels of another shape": (Fault.ARRAY_SHAPE, [{"labels": LABELS[:, None]}]),
    "more records than declared": (
        Fault.RECORDS_TOO_MANY,
        [{"facts": {"records_declared": 2}}, {"images": npy_header("|u1", (2**60, 4, 6))}],
    ),
    "counts that differ": (Fault.COUNTS_DIFFER, [{"labels": LABELS[:2]}, {"labels": npy_header("<i8", (2**60,))}]),
    "no record": (Fault.EMPTY, [{"images": IMAGES[:0], "labels": LABELS[:0]}]),
    "labels that were not declared": (
        Fault.LABEL_RANGE,
        [{"labels": [0, 1, 1, 0, 0, label]} for label in (2, -1, 2**62)],
    ),
    "other members than the two": (Fault.ARRAY_MEMBERS, [{"labels": None}, {"images": None}, {"more": LABELS}]),
    "arrays shorter or longer than their header": (
        Fault.ARRAY_LENGTH,
        [{name: file} for name, whole in WHOLE.items() for file in (whole[:-1], whole + b"x")],
    ),
    "headers that are not plain": (Fault.ARRAY_HEADER, [{"images": member} for member in HEADERS]),
}


@each_case(REFUSED_NPZ)
def test_arrays_that_break_a_rule_are_refused_by_that_rule(npz, fault, case):
    assert npz(**case) == fault


@SHARED
@given(
    images=npst.arrays(np.uint8, st.tuples(st.integers(1, 20), st.just(4), st.just(6))),
    label_type=st.sampled_from(["u1", "<i2", ">i4", "<u8", "<i8"]),
    compressed=st.booleans(),
)
def test_arrays_come_back_as_they_were(npz, idx, stored, images, label_type, compressed):
    labels = (images[:, 0, 0] % 2).astype(label_type)
    files = {"images": idx_file(images, 0x803), "labels": idx_file(labels.astype("u1"), 0x801)}
    idx_files = packed(**files) if compressed else files
    for read, sent in ((npz, {"images": images, "labels": labels}), (idx, idx_files)):
        assert read(**sent) == "ok"
        kept, numbers = stored()
        assert (kept == images).all()
        assert (numbers.dtype, numbers.tolist()) == (np.int64, labels.tolist())
