"""IDX and .npz uploads: honest ones come back unchanged, each broken one is refused by its rule.

Subject ids in every format: who owns what survives, the ids themselves do not, and broken ones are refused.
"""

import gzip
import io
import struct
import tracemalloc
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import stats

from obscura.wire.uploads import Fault, Refused, SubjectId, canonical
from privacy.mechanisms.partition import shard_of, subject_units
from service.ingest.array_files import SUBJECTS_NAME, random_numbers, store, subject_numbers
from tests.pictures import archive, idx_file, picture
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
    pictures,
)

CANARY = "CANARY7f3a"
NAMES = ["anna", "bert", "anna", "carl", "bert", "anna"]
OF_TEN, FEWER, UNDECLARED = ({"subjects_declared": declared} for declared in (10, 2, None))
Numbers = npt.NDArray[np.int64]


def idx_subjects(*values: int) -> bytes:
    return idx_file(np.array(values, ">i4"), 0xC01)


def npz_of(subjects: Any, declared: dict[str, Any] = OF_TEN) -> dict[str, Any]:
    return {"facts": declared, "subjects": subjects}


def idx_of(subjects: bytes | None, declared: dict[str, Any] = OF_TEN) -> dict[str, Any]:
    return {**declared, "subjects": subjects}


def counted(count: int) -> dict[str, bytes]:
    """Two files that claim so many records, and hold none."""
    return {"images": struct.pack(">4I", 0x803, count, 4, 6), "labels": struct.pack(">2I", 0x801, count)}


SHORTENED = [IMAGES_FILE[:cut] for cut in (1, 4, 8, 15, 16, 17, -1)]
SHORTENED_GZIP = [gzip.compress(IMAGES_FILE)[:cut] for cut in (1, 9, 20, -9, -1)]
SIX = idx_subjects(*[1] * 6)
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
    "subjects cut short or too long": (Fault.IDX_LENGTH, [idx_of(SIX[:-4]), idx_of(SIX + bytes(4)), idx_of(SIX[:-1])]),
    "another count of subjects": (Fault.COUNTS_DIFFER, [idx_of(idx_subjects(*[1] * 5))]),
    "another magic number of subjects": (Fault.IDX_MAGIC, [idx_of(idx_file(np.zeros(6, ">i4"), 0x801))]),
    "no subject": (Fault.SUBJECT_BLANK, [idx_of(idx_subjects(*[1] * 5, -1))]),
    "more subjects than declared": (Fault.SUBJECTS_TOO_MANY, [idx_of(idx_subjects(1, 2, 3, 1, 2, 3), FEWER)]),
    "no subjects": (Fault.SUBJECTS_ABSENT, [idx_of(None)]),
    "subjects that were not declared": (Fault.SUBJECTS_UNEXPECTED, [idx_of(SIX, UNDECLARED)]),
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
NAMES_FILE = npy(np.array(NAMES))
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
    "subjects pickled or empty, unread": (Fault.SUBJECT_TYPE, [npz_of(pickled(6)), npz_of(npy_header("<U0", (6,)))]),
    "subjects cut short or too long": (Fault.ARRAY_LENGTH, [npz_of(NAMES_FILE[:-1]), npz_of(NAMES_FILE + b"x")]),
    "another count of subjects": (Fault.COUNTS_DIFFER, [npz_of(NAMES[:5]), npz_of([*NAMES, "anna"])]),
    "more subjects than declared": (Fault.SUBJECTS_TOO_MANY, [npz_of(NAMES, FEWER)]),
    "no subjects": (Fault.SUBJECTS_ABSENT, [npz_of(None)]),
    "subjects that were not declared": (Fault.SUBJECTS_UNEXPECTED, [npz_of(NAMES, UNDECLARED)]),
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


# --- subjects -------------------------------------------------------------------------------------------------------


@pytest.fixture
def numbers(stored_array: Callable[[str], Numbers]) -> Callable[[], Numbers]:
    return lambda: stored_array(SUBJECTS_NAME)


def groups(values: Any) -> list[list[int]]:
    """Which records belong together, whatever the subjects are called."""
    found: dict[Any, list[int]] = {}
    for record, value in enumerate(values):
        found.setdefault(value, []).append(record)
    return list(found.values())


def assert_owned_as(numbers: Numbers, ids: Any) -> None:
    assert numbers.dtype == np.int64
    assert numbers.min() >= 0
    assert groups(numbers.tolist()) == groups(ids)


TYPES = [np.array(NAMES), np.array(NAMES).astype(">U7"), np.array(NAMES, dtype="S8")]
TYPES += [np.array([7, 1, 7, 0, 1, 7], dtype=dtype) for dtype in (np.uint8, ">i4")]
TYPES += [np.array([2**64 - 1, 1, 2**64 - 1, 0, 1, 2**64 - 1], dtype=np.uint64)]


@pytest.mark.parametrize("ids", TYPES, ids=lambda ids: str(ids.dtype))
def test_an_npz_with_subjects_keeps_who_owns_what(npz, numbers, ids):
    assert npz(OF_TEN, subjects=ids) == "ok"
    assert_owned_as(numbers(), NAMES)


def test_folders_inside_the_class_folders_are_subjects(ingest, numbers, stored):
    """A person has one folder in each class; a folder around everything is accepted, as without subjects."""
    members = [("dog/anna/1.png", 9), ("cat/bert/1.png", 8), ("cat/anna/1.png", 7), ("cat/anna/2.png", 6)]
    for around in ("", "upload/"):
        data = archive(*((around + name, picture(value=value)) for name, value in members))
        assert ingest(data, **OF_TEN) == "ok"
        assert_owned_as(numbers(), ["anna", "bert", "anna", "anna"])
        assert stored()[1].tolist() == [1, 0, 0, 0]
        assert stored()[0][:, 0, 0].tolist() == [9, 8, 7, 6]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_third_idx_file_holds_subjects(idx, numbers, pack):
    subjects = pack(idx_subjects(5, 2**31 - 1, 5, 0, 2**31 - 1, 5))
    assert idx(**OF_TEN, **(packed() if pack is gzip.compress else {}), subjects=subjects) == "ok"
    assert_owned_as(numbers(), NAMES)


@SHARED
@given(ids=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8), min_size=1, max_size=6))
def test_any_texts_are_told_apart_or_refused(npz, numbers, ids):
    array = np.array(ids)
    kept = [unicodedata.normalize("NFC", text.strip()) for text in array.tolist()]  # numpy cuts NULs at the end
    blank = [text for text in kept if is_blank(text)]
    assert {text for text in kept if not any(map(str.isalnum, text))} <= {*blank}
    word = npz(OF_TEN, images=IMAGES[: len(ids)], labels=LABELS[: len(ids)], subjects=array)
    assert word == (Fault.SUBJECT_BLANK if blank else "ok")
    if not blank:
        assert_owned_as(numbers(), kept)


def is_blank(text: str) -> bool:
    try:
        canonical(text)
    except Refused:
        return True
    return False


def test_one_person_written_in_two_ways_is_one_subject(npz, numbers):
    assert npz(OF_TEN, subjects=["Zoë", "Zoe\u0308", " Zoë ", "Zoe", "zoë", "Zoë\n"]) == "ok"
    assert groups(numbers().tolist()) == [[0, 1, 2, 5], [3], [4]]


BLANK = ["", "  ", "nan", "NaN", "None", "NULL", "<NA>", "NA", "n/a", "-", "?", "Unknown"]


@pytest.mark.parametrize("blank", [*BLANK, b"", b" ", b"nan", b"N/A", -1, -(2**40)])
def test_a_missing_id_is_refused(npz, blank):
    others: list[Any] = {str: ["anna"], bytes: [b"anna"], int: [1]}[type(blank)] * 5
    for subjects in ([*others, blank], [blank, *others]):
        assert npz(OF_TEN, subjects=subjects) == Fault.SUBJECT_BLANK


DTYPES: list[Any] = [bool, complex, "M8[s]", "V4", [("a", "i4")]]
STRANGE = [np.arange(6.0), *(np.zeros(6, dtype) for dtype in DTYPES), np.array(NAMES)[:, None], np.array(5)]
STRANGE += [np.array(["x" * 65] * 6), np.array([b"x" * 65] * 6)]
STRANGE += [np.array([0x7FFFFFFF] * 6, "<u4").view("<U1"), np.array([0x110000] * 6, ">u4").view(">U1")]


@pytest.mark.parametrize("ids", STRANGE, ids=lambda ids: f"{ids.dtype}{ids.shape}")
def test_subjects_of_another_type_are_refused(npz, ids):
    assert npz(OF_TEN, subjects=ids) == Fault.SUBJECT_TYPE


def test_as_many_subjects_as_are_declared_pass(npz):
    assert npz({"subjects_declared": 3}, subjects=NAMES) == "ok"


def test_a_folder_whose_name_is_a_placeholder_is_no_subject(ingest):
    """How deep folders of subjects lie: tests/service/dashboard/test_class_folders.py."""
    assert ingest(pictures("cat/anna/1.png", "cat/nan/1.png"), **OF_TEN) == Fault.SUBJECT_BLANK


def test_the_ids_themselves_are_stored_nowhere(npz, tmp_path):
    assert npz(OF_TEN, subjects=[f"{CANARY}{n}" for n in (1, 2, 1, 3, 2, 1)]) == "ok"
    assert npz(OF_TEN, subjects=[1_234_567_890] * 6) == "ok"
    for path in tmp_path.iterdir():
        assert CANARY not in path.name
        assert CANARY.encode() not in path.read_bytes()
        assert np.int64(1_234_567_890).tobytes() not in path.read_bytes()


def test_numbers_are_fresh_for_every_upload_and_in_no_order(npz, numbers):
    drawn = []
    for _ in range(20):
        assert npz(OF_TEN, subjects=list("abcdef")) == "ok"
        drawn.append(numbers())
    assert len(np.unique(drawn)) == 20 * 6
    assert len({tuple(np.argsort(row).tolist()) for row in drawn}) > 10  # of 720 orders
    assert not any(np.array_equal(np.sort(row), np.arange(6)) for row in drawn)


def test_numbers_are_distinct_and_fill_their_range():
    drawn = random_numbers(20_000)
    assert len(np.unique(drawn)) == 20_000
    assert stats.kstest(drawn / 2.0**63, "uniform").pvalue > 1e-6


def shards_of_two(
    ids: list[SubjectId], runs: int, number: Callable[[Numbers], Numbers] = lambda numbers: numbers
) -> Counter[tuple[int, int]]:
    """How often anna and bert lie in which of three shards, over many uploads, under one fixed key."""
    key, counted = bytes(range(32)), Counter[tuple[int, int]]()
    for _ in range(runs):
        shards = shard_of(subject_units(number(subject_numbers(ids, 1000))), key, 3).tolist()
        counted[shards[ids.index("anna")], shards[ids.index("bert")]] += 1
    return counted


def test_the_presence_of_a_subject_does_not_change_how_the_others_shards_are_distributed():
    """Under one fixed key, so nothing rests on the hash: all nine places of two others are equally likely, with and
    without a third subject that stands before, between and after their records.
    """
    for ids in (["anna", "bert"], ["carl", "anna", "carl", "bert", "carl"]):
        counted = shards_of_two(ids, 4500)
        assert stats.chisquare([counted[place] for place in np.ndindex(3, 3)]).pvalue > 1e-6


def test_numbers_that_count_the_subjects_would_fail_that_test():
    """Control: with numbers in order of appearance, and a key that someone learns, carl's presence moves the others."""

    def in_order(numbers: Numbers) -> Numbers:
        return np.array([numbers.tolist().index(number) for number in numbers])  # the first record of each

    alone = shards_of_two(["anna", "bert"], 5, in_order)
    joined = shards_of_two(["carl", "anna", "bert"], 5, in_order)
    assert set(alone) != set(joined)


def test_a_refusal_carries_no_id(declare):
    request = declare(records_declared=9, subjects_declared=1)
    with pytest.raises(Refused) as refused:
        store(request, np.zeros(2, np.int64), [CANARY, CANARY + "2"], [])
    assert CANARY not in repr(refused.value) + str(refused.value.args)
