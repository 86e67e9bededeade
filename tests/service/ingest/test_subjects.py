"""Subject ids in every format: who owns what survives, the ids themselves do not, and broken ones are refused."""

import gzip
import io
import struct
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

from obscura.wire.faults import Fault, Refused
from obscura.wire.subjects import SubjectId, canonical
from privacy.mechanisms.partition import shard_of, subject_units
from service.ingest.array_files import SUBJECTS_NAME, store
from service.ingest.subjects import random_numbers, subject_numbers
from tests.service.ingest.conftest import SHARED, archive, npy, npy_header, pickled, picture, pictures

CANARY = "CANARY7f3a"
NAMES = ["anna", "bert", "anna", "carl", "bert", "anna"]
IMAGES = np.arange(6 * 24, dtype=np.uint8).reshape(6, 4, 6)
LABELS = np.array([0, 1, 1, 0, 0, 1])
SIX = {"records_declared": 100, "subjects_declared": 10}

Numbers = npt.NDArray[np.int64]
Ask = Callable[..., str]


@pytest.fixture
def numbers(stored_array: Callable[[str], Numbers]) -> Callable[[], Numbers]:
    return lambda: stored_array(SUBJECTS_NAME)


@pytest.fixture
def npz(ingest: Ask) -> Ask:
    """Ingest an .npz of six records with these subjects; None leaves the array out."""

    def run(subjects: Any, count: int = 6, **changes: Any) -> str:
        buffer = io.BytesIO()
        arrays = {} if subjects is None else {"subjects": np.asarray(subjects)}
        np.savez(buffer, images=IMAGES[:count], labels=LABELS[:count], **arrays)
        return ingest(buffer.getvalue(), **{"format": "npz", **SIX, **changes})

    return run


@pytest.fixture
def idx(ingest: Ask) -> Ask:
    """Ingest an IDX bundle of six records with these bytes as the third file; None leaves it out."""

    def run(subjects: bytes | None, pack: Callable[[bytes], bytes] = bytes, **changes: Any) -> str:
        members = {
            "train-images-idx3-ubyte": struct.pack(">4I", 0x803, 6, 4, 6) + IMAGES.tobytes(),
            "train-labels-idx1-ubyte": struct.pack(">2I", 0x801, 6) + LABELS.astype("u1").tobytes(),
        }
        if subjects is not None:
            members["train-subjects-idx1-int"] = subjects
        suffix = "" if pack is bytes else ".gz"
        files = [(name + suffix, pack(content)) for name, content in sorted(members.items(), reverse=True)]
        return ingest(archive(*files), **{"format": "idx", **SIX, **changes})

    return run


def idx_subjects(values: list[int], count: int | None = None) -> bytes:
    return struct.pack(">2I", 0xC01, len(values) if count is None else count) + np.array(values, ">i4").tobytes()


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
    assert npz(ids) == "ok"
    assert_owned_as(numbers(), NAMES)


def test_folders_inside_the_class_folders_are_subjects(ingest, numbers, stored):
    """A person has one folder in each class; a folder around everything is accepted, as without subjects."""
    members = [("dog/anna/1.png", 9), ("cat/bert/1.png", 8), ("cat/anna/1.png", 7), ("cat/anna/2.png", 6)]
    for around in ("", "upload/"):
        data = archive(*((around + name, picture(value=value)) for name, value in members))
        assert ingest(data, **SIX) == "ok"
        assert_owned_as(numbers(), ["anna", "bert", "anna", "anna"])
        assert stored()[1].tolist() == [1, 0, 0, 0]
        assert stored()[0][:, 0, 0].tolist() == [9, 8, 7, 6]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_third_idx_file_holds_subjects(idx, numbers, pack):
    assert idx(idx_subjects([5, 2**31 - 1, 5, 0, 2**31 - 1, 5]), pack) == "ok"
    assert_owned_as(numbers(), NAMES)


@SHARED
@given(ids=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8), min_size=1, max_size=6))
def test_any_texts_are_told_apart_or_refused(npz, numbers, ids):
    array = np.array(ids)
    kept = [unicodedata.normalize("NFC", text.strip()) for text in array.tolist()]  # numpy cuts NULs at the end
    blank = [text for text in kept if is_blank(text)]
    assert {text for text in kept if not any(map(str.isalnum, text))} <= {*blank}
    if blank:
        assert npz(array, count=len(ids)) == Fault.SUBJECT_BLANK
    else:
        assert npz(array, count=len(ids)) == "ok"
        assert_owned_as(numbers(), kept)


def is_blank(text: str) -> bool:
    """Return whether an id is a placeholder; the cases stand below."""
    try:
        canonical(text)
    except Refused:
        return True
    return False


def test_one_person_written_in_two_ways_is_one_subject(npz, numbers):
    assert npz(["Zoë", "Zoe\u0308", " Zoë ", "Zoe", "zoë", "Zoë\n"]) == "ok"
    assert groups(numbers().tolist()) == [[0, 1, 2, 5], [3], [4]]


@pytest.mark.parametrize(
    "blank",
    [
        "",
        "  ",
        "nan",
        "NaN",
        "None",
        "NULL",
        "<NA>",
        "NA",
        "n/a",
        "-",
        "?",
        "Unknown",
        b"",
        b" ",
        b"nan",
        b"N/A",
        -1,
        -(2**40),
    ],
)
def test_a_missing_id_is_refused(npz, blank):
    others: list[Any] = {str: ["anna"], bytes: [b"anna"], int: [1]}[type(blank)] * 5
    assert npz([*others, blank]) == Fault.SUBJECT_BLANK
    assert npz([blank, *others]) == Fault.SUBJECT_BLANK


DTYPES: list[Any] = [bool, complex, "M8[s]", "V4", [("a", "i4")]]
STRANGE = [np.arange(6.0), *(np.zeros(6, dtype) for dtype in DTYPES), np.array(NAMES)[:, None], np.array(5)]
STRANGE += [np.array(["x" * 65] * 6), np.array([b"x" * 65] * 6)]
STRANGE += [np.array([0x7FFFFFFF] * 6, "<u4").view("<U1"), np.array([0x110000] * 6, ">u4").view(">U1")]


@pytest.mark.parametrize("ids", STRANGE, ids=lambda ids: f"{ids.dtype}{ids.shape}")
def test_subjects_of_another_type_are_refused(npz, ids):
    assert npz(ids) == Fault.SUBJECT_TYPE


def test_pickled_and_empty_types_are_refused_unread(ingest):
    names, empty = npy(np.array(NAMES)), npy_header("<U0", (6,))
    for members, fault in (
        ((pickled(6), empty), Fault.SUBJECT_TYPE),
        ((names[:-1], names + b"x"), Fault.ARRAY_LENGTH),
    ):
        for member in members:
            data = archive(("images.npy", npy(IMAGES)), ("labels.npy", npy(LABELS)), ("subjects.npy", member))
            assert ingest(data, format="npz", **SIX) == fault


ONE = [1] * 6
# What is wrong with six records -> the rule that refuses them.
REFUSED_NPZ = [
    (Fault.COUNTS_DIFFER, NAMES[:5], {}),
    (Fault.COUNTS_DIFFER, [*NAMES, "anna"], {}),
    (Fault.SUBJECTS_TOO_MANY, NAMES, {"subjects_declared": 2}),
    (Fault.SUBJECTS_ABSENT, None, {}),
    (Fault.SUBJECTS_UNEXPECTED, NAMES, {"subjects_declared": None}),
]
REFUSED_IDX = [
    (Fault.SUBJECTS_TOO_MANY, idx_subjects([1, 2, 3, 1, 2, 3]), {"subjects_declared": 2}),
    (Fault.COUNTS_DIFFER, idx_subjects([1] * 5), {}),
    (Fault.IDX_LENGTH, idx_subjects([1] * 5, count=6), {}),
    (Fault.IDX_LENGTH, idx_subjects([1] * 7, count=6), {}),
    (Fault.IDX_LENGTH, idx_subjects(ONE)[:-1], {}),
    (Fault.IDX_MAGIC, struct.pack(">2I", 0x801, 6) + bytes(24), {}),
    (Fault.SUBJECT_BLANK, idx_subjects([1] * 5 + [-1]), {}),
    (Fault.SUBJECTS_ABSENT, None, {}),
    (Fault.SUBJECTS_UNEXPECTED, idx_subjects(ONE), {"subjects_declared": None}),
]


def test_subjects_that_break_a_rule_are_refused_by_it(npz, idx):
    assert npz(NAMES, subjects_declared=3) == "ok"
    for ask, refused in ((npz, REFUSED_NPZ), (idx, REFUSED_IDX)):
        for fault, subjects, changes in refused:
            assert ask(subjects, **changes) == fault, (subjects, changes)


ONE_CLASS = {"classes": ("cat",)}


@pytest.mark.parametrize(
    ("fault", "names", "facts"),
    [
        (Fault.SUBJECTS_ABSENT, ("cat/1.png", "dog/1.png"), SIX),
        (Fault.SUBJECTS_ABSENT, ("all/cat/1.png", "all/dog/1.png"), SIX),
        (Fault.SUBJECTS_UNEXPECTED, ("cat/anna/1.png", "dog/anna/1.png"), {}),
        (Fault.SUBJECTS_UNEXPECTED, ("cat/anna/1.png", "cat/bert/1.png"), ONE_CLASS),
        (Fault.LAYOUT, ("cat/1.png", "cat/anna/2.png"), SIX),
        (Fault.LAYOUT, ("cat/anna/x/y/1.png",), SIX),
        (Fault.LAYOUT, ("1.png",), SIX),
        (Fault.SUBJECT_BLANK, ("cat/anna/1.png", "cat/nan/1.png"), SIX),
    ],
)
def test_folders_of_subjects_lie_one_level_deep_exactly_where_they_were_declared(ingest, fault, names, facts):
    assert ingest(pictures(*names), **facts) == fault


def test_the_ids_themselves_are_stored_nowhere(npz, tmp_path):
    assert npz([f"{CANARY}{n}" for n in (1, 2, 1, 3, 2, 1)]) == "ok"
    assert npz([1_234_567_890] * 6) == "ok"
    for path in tmp_path.iterdir():
        assert CANARY not in path.name
        assert CANARY.encode() not in path.read_bytes()
        assert np.int64(1_234_567_890).tobytes() not in path.read_bytes()


def test_numbers_are_fresh_for_every_upload_and_in_no_order(npz, numbers):
    drawn = []
    for _ in range(20):
        assert npz(list("abcdef")) == "ok"
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
