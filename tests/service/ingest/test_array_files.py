"""IDX and .npz uploads: honest ones come back unchanged, each broken one is refused by its rule."""

from __future__ import annotations

import gzip
import io
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from service.ingest.faults import Fault

_SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
IMAGES = np.arange(72, dtype=np.uint8).reshape(3, 4, 6)
LABELS = np.array([0, 1, 1], dtype=np.uint8)
IMAGES_FILE = struct.pack(">4I", 0x803, 3, 4, 6) + IMAGES.tobytes()
LABELS_FILE = struct.pack(">2I", 0x801, 3) + LABELS.tobytes()


@pytest.fixture
def idx(ingest, archive):
    """Return a function that ingests two IDX members."""

    def run(images: bytes = IMAGES_FILE, labels: bytes = LABELS_FILE, suffix: str = "", **changes) -> str:
        members = ((f"train-images-idx3-ubyte{suffix}", images), (f"train-labels-idx1-ubyte{suffix}", labels))
        return ingest(archive(*members), format="idx", **changes)

    return run


@pytest.fixture
def npz(ingest, archive):
    """Return a function that ingests named arrays, or the bytes of a member as they are."""

    def run(changes: dict | None = None, **members) -> str:
        files = []
        for name, value in ({"images": IMAGES, "labels": LABELS} | members).items():
            if value is not None:
                files.append((f"{name}.npy", value if isinstance(value, bytes) else npy(value)))
        return ingest(archive(*files), format="npz", **changes or {})

    return run


def npy(array: np.ndarray, **options) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, **options)
    return buffer.getvalue()


def npy_header(descr: str, shape: tuple[int, ...], *, order: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": order, "shape": shape})
    return buffer.getvalue()


def test_idx_files_become_arrays(idx, stored):
    for suffix, pack in (("", bytes), (".gz", gzip.compress)):
        assert idx(pack(IMAGES_FILE), pack(LABELS_FILE), suffix) == "ok"
        images, labels = stored()
        assert (images == IMAGES).all()
        assert labels.dtype == np.int64
        assert labels.tolist() == [0, 1, 1]


@pytest.mark.parametrize("cut", [1, 4, 8, 15, 16, 17, len(IMAGES_FILE) - 1])
def test_truncated_idx_images_are_refused(idx, cut):
    assert idx(images=IMAGES_FILE[:cut]) == Fault.IDX_LENGTH
    assert idx(gzip.compress(IMAGES_FILE[:cut]), gzip.compress(LABELS_FILE), ".gz") == Fault.IDX_LENGTH


@pytest.mark.parametrize("cut", [1, 9, 20, -9, -1])
def test_truncated_gzip_is_refused(idx, cut):
    assert idx(gzip.compress(IMAGES_FILE)[:cut], gzip.compress(LABELS_FILE), ".gz") == Fault.IDX_LENGTH


def test_bytes_behind_the_last_value_are_refused(idx):
    assert idx(images=IMAGES_FILE + b"x") == Fault.IDX_LENGTH
    assert idx(labels=LABELS_FILE + b"x") == Fault.IDX_LENGTH
    assert idx(gzip.compress(IMAGES_FILE + b"x"), gzip.compress(LABELS_FILE), ".gz") == Fault.IDX_LENGTH
    assert idx(gzip.compress(IMAGES_FILE) + b"x", gzip.compress(LABELS_FILE), ".gz") == Fault.IDX_LENGTH
    assert idx(gzip.compress(IMAGES_FILE) * 2, gzip.compress(LABELS_FILE), ".gz") == Fault.IDX_LENGTH


def test_a_gzip_bomb_is_read_no_further_than_its_header_promises(idx):
    bomb = gzip.compress(IMAGES_FILE + bytes(50 * 2**20))
    tracemalloc.start()
    try:
        assert idx(bomb, gzip.compress(LABELS_FILE), ".gz") == Fault.IDX_LENGTH
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("magic", [0, 0x801, 0x802, 0x0D03, 0x03080000])
def test_a_wrong_magic_is_refused(idx, magic):
    assert idx(images=struct.pack(">I", magic) + IMAGES_FILE[4:]) == Fault.IDX_MAGIC


def test_idx_images_of_another_shape_are_refused(idx):
    assert idx(width=4, height=6) == Fault.IDX_SHAPE
    assert idx(channels=3) == Fault.IDX_SHAPE


def test_idx_counts_must_agree_and_stay_within_the_declaration(idx):
    assert idx(labels=struct.pack(">2I", 0x801, 2) + b"\0\0") == Fault.COUNTS_DIFFER
    assert idx(records_declared=2) == Fault.RECORDS_TOO_MANY
    huge = struct.pack(">4I", 0x803, 2**32 - 1, 4, 6), struct.pack(">2I", 0x801, 2**32 - 1)
    assert idx(*huge) == Fault.RECORDS_TOO_MANY
    assert idx(struct.pack(">4I", 0x803, 0, 4, 6), struct.pack(">2I", 0x801, 0)) == Fault.EMPTY


def test_idx_labels_outside_the_declared_classes_are_refused(idx):
    assert idx(labels=LABELS_FILE[:-1] + b"\x02") == Fault.LABEL_RANGE


@pytest.mark.parametrize("names", [("a",), ("images-idx3-ubyte", "labels"), ("x-images-idx3-ubyte",) * 2])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_other_members_than_the_two_are_refused(ingest, archive, names):
    word = ingest(archive(*((f"{number}-{name}", IMAGES_FILE) for number, name in enumerate(names))), format="idx")
    assert word == Fault.IDX_MEMBERS


def test_npz_arrays_are_stored(npz, stored):
    assert npz(labels=LABELS.astype(">i4")) == "ok"
    images, labels = stored()
    assert (images == IMAGES).all()
    assert labels.tolist() == [0, 1, 1]
    assert npz(images=IMAGES[..., None]) == "ok"
    assert stored()[0].shape == (3, 4, 6)


def test_npz_of_numpy_itself_is_accepted(ingest, stored):
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, images=np.zeros((60, 4, 6, 3), np.uint8), labels=np.ones(60, np.int64))
        assert ingest(buffer.getvalue(), format="npz", channels=3) == "ok"
        assert stored()[0].shape == (60, 4, 6, 3)


def test_pickled_arrays_are_refused_unread(npz):
    class Explosive:
        def __reduce__(self):
            return (exec, ("raise SystemExit('pickle was loaded')",))

    array = np.empty(3, dtype=object)
    array[:] = [Explosive()] * 3
    assert npz(images=npy(array, allow_pickle=True)) == Fault.ARRAY_TYPE
    assert npz(labels=npy(array, allow_pickle=True)) == Fault.ARRAY_TYPE


@pytest.mark.parametrize("dtype", ["int8", "float32", "uint16", "bool"])
def test_images_of_another_type_are_refused(npz, dtype):
    assert npz(images=IMAGES.astype(dtype)) == Fault.ARRAY_TYPE


@pytest.mark.parametrize("dtype", ["float64", "bool", "U3", "complex64"])
def test_labels_of_another_type_are_refused(npz, dtype):
    assert npz(labels=LABELS.astype(dtype)) == Fault.ARRAY_TYPE


@pytest.mark.parametrize("shape", [(72,), (3, 24), (3, 6, 4), (3, 4, 6, 3), (0, 5, 6), (-3, 4, 6), ()])
def test_images_of_another_shape_are_refused_before_allocation(npz, shape):
    assert npz(images=npy_header("|u1", shape)) == Fault.ARRAY_SHAPE


def test_npz_counts_are_held_to_the_declaration(npz):
    assert npz({"records_declared": 2}) == Fault.RECORDS_TOO_MANY
    assert npz(images=npy_header("|u1", (2**60, 4, 6))) == Fault.RECORDS_TOO_MANY
    assert npz(labels=LABELS[:2]) == Fault.COUNTS_DIFFER
    assert npz(labels=npy_header("<i8", (2**60,))) == Fault.COUNTS_DIFFER
    assert npz(labels=LABELS[:, None]) == Fault.ARRAY_SHAPE
    assert npz(images=IMAGES[:0], labels=LABELS[:0]) == Fault.EMPTY


@pytest.mark.parametrize("values", [[0, 1, 2], [0, 1, -1], [0, 1, 2**62]])
def test_npz_labels_outside_the_declared_classes_are_refused(npz, values):
    assert npz(labels=np.array(values)) == Fault.LABEL_RANGE


def test_npz_members_must_be_the_two(npz):
    assert npz(labels=None) == Fault.ARRAY_MEMBERS
    assert npz(images=None) == Fault.ARRAY_MEMBERS
    assert npz(more=LABELS) == Fault.ARRAY_MEMBERS


def test_arrays_shorter_or_longer_than_their_header_are_refused(npz):
    for whole in (npy(IMAGES)[:-1], npy(IMAGES) + b"x"):
        assert npz(images=whole) == Fault.ARRAY_LENGTH
    for whole in (npy(LABELS)[:-1], npy(LABELS) + b"x"):
        assert npz(labels=whole) == Fault.ARRAY_LENGTH


@pytest.mark.parametrize(
    "member",
    [
        b"",
        b"\x93NUMPY",
        b"not an array at all",
        npy(IMAGES, version=(2, 0)),
        npy(np.asfortranarray(IMAGES)),
        npy_header("|u1", (3, 4, 6)).replace(b"shape", b"sharp"),
        b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535,
        b"\x93NUMPY\x01\x00\x20\x00" + b"__import__('os').getpid()".ljust(32),
    ],
)
def test_headers_that_are_not_plain_are_refused(npz, member):
    assert npz(images=member) == Fault.ARRAY_HEADER


@_SHARED
@given(
    images=npst.arrays(np.uint8, st.tuples(st.integers(1, 20), st.just(4), st.just(6))),
    label_type=st.sampled_from(["u1", "<i2", ">i4", "<u8", "<i8"]),
    packed=st.booleans(),
)
def test_arrays_come_back_as_they_were(ingest, npz, idx, stored, images, label_type, packed):
    labels = (images[:, 0, 0] % 2).astype(label_type)
    assert npz(images=images, labels=labels) == "ok"
    assert (stored()[0] == images).all()
    assert (stored()[1] == labels).all()
    files = (
        struct.pack(">4I", 0x803, *images.shape) + images.tobytes(),
        (struct.pack(">2I", 0x801, len(labels)) + labels.astype("u1").tobytes()),
    )
    assert idx(*(map(gzip.compress, files) if packed else files), ".gz" if packed else "") == "ok"
    assert (stored()[0] == images).all()
    assert (stored()[1] == labels).all()
