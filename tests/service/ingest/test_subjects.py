"""Subject ids in every format: who owns what survives, the ids themselves do not, and broken ones are refused."""

import gzip
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from obscura.wire.uploads import Fault, Refused, SubjectId, canonical
from privacy.mechanisms.partition import shard_of, subject_units
from service.ingest.array_files import SUBJECTS_NAME, store
from service.ingest.subjects import random_numbers, subject_numbers
from tests.pictures import archive, idx_file, picture
from tests.service.ingest.conftest import IMAGES, LABELS, SHARED, each_case, npy, npy_header, packed, pickled, pictures

CANARY = "CANARY7f3a"
NAMES = ["anna", "bert", "anna", "carl", "bert", "anna"]
OF_TEN = {"subjects_declared": 10}

Numbers = npt.NDArray[np.int64]


@pytest.fixture
def numbers(stored_array: Callable[[str], Numbers]) -> Callable[[], Numbers]:
    return lambda: stored_array(SUBJECTS_NAME)


def idx_subjects(*values: int) -> bytes:
    return idx_file(np.array(values, ">i4"), 0xC01)


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


ONE = [1] * 6
FEWER, UNDECLARED = {"subjects_declared": 2}, {"subjects_declared": None}
NAMES_FILE = npy(np.array(NAMES))
# The rule that refuses six records -> declarations and subjects of which nothing else is wrong.
REFUSED_NPZ = {
    "pickled and empty types, unread": (Fault.SUBJECT_TYPE, [(OF_TEN, pickled(6)), (OF_TEN, npy_header("<U0", (6,)))]),
    "another length than the header": (Fault.ARRAY_LENGTH, [(OF_TEN, NAMES_FILE[:-1]), (OF_TEN, NAMES_FILE + b"x")]),
    "counts that differ": (Fault.COUNTS_DIFFER, [(OF_TEN, NAMES[:5]), (OF_TEN, [*NAMES, "anna"])]),
    "more than declared": (Fault.SUBJECTS_TOO_MANY, [(FEWER, NAMES)]),
    "none": (Fault.SUBJECTS_ABSENT, [(OF_TEN, None)]),
    "not declared": (Fault.SUBJECTS_UNEXPECTED, [(UNDECLARED, NAMES)]),
}
REFUSED_IDX = {
    "another length than the header": (
        Fault.IDX_LENGTH,
        [(OF_TEN, idx_subjects(*ONE)[:-4]), (OF_TEN, idx_subjects(*ONE) + bytes(4)), (OF_TEN, idx_subjects(*ONE)[:-1])],
    ),
    "counts that differ": (Fault.COUNTS_DIFFER, [(OF_TEN, idx_subjects(*ONE[:5]))]),
    "another magic number": (Fault.IDX_MAGIC, [(OF_TEN, idx_file(np.zeros(6, ">i4"), 0x801))]),
    "no subject": (Fault.SUBJECT_BLANK, [(OF_TEN, idx_subjects(*ONE[:5], -1))]),
    "more than declared": (Fault.SUBJECTS_TOO_MANY, [(FEWER, idx_subjects(1, 2, 3, 1, 2, 3))]),
    "none": (Fault.SUBJECTS_ABSENT, [(OF_TEN, None)]),
    "not declared": (Fault.SUBJECTS_UNEXPECTED, [(UNDECLARED, idx_subjects(*ONE))]),
}


@each_case(REFUSED_NPZ)
def test_subjects_of_an_npz_that_break_a_rule_are_refused_by_it(npz, fault, case):
    assert npz(case[0], subjects=case[1]) == fault


@each_case(REFUSED_IDX)
def test_subjects_of_an_idx_bundle_that_break_a_rule_are_refused_by_it(idx, fault, case):
    assert idx(**case[0], subjects=case[1]) == fault


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
