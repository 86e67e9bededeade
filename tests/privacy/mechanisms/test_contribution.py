"""One record for each subject: never two, chosen from its own records, evenly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from privacy.errors import ContributionUnbounded, InvalidParameter
from privacy.mechanisms.partition import assert_one_record_each, one_record_each

KEY = bytes(range(32))
Record = tuple[int, bytes]


def chosen(records: list[Record], key: bytes = KEY) -> dict[int, bytes]:
    """The content of the record that was taken of each subject."""
    subjects = np.array([subject for subject, _ in records], dtype=np.int64)
    rows = np.array([list(content) for _, content in records], dtype=np.uint8).reshape(len(records), 3)
    indices = one_record_each(subjects, rows, key)
    assert_one_record_each(subjects[indices])
    assert indices.tolist() == sorted(indices.tolist())
    return {records[index][0]: records[index][1] for index in indices.tolist()}


some_records = st.lists(st.tuples(st.sampled_from([0, 1, 2, 2**62]), st.binary(min_size=3, max_size=3)), max_size=20)


@given(
    records=some_records, extra=st.lists(st.binary(min_size=3, max_size=3), min_size=1, max_size=9), mix=st.randoms()
)
def test_another_subject_changes_nobodys_record(records: list[Record], extra: list[bytes], mix: object) -> None:
    before = chosen(records)
    assert set(before) == {subject for subject, _ in records}
    more = [*records, *((77, content) for content in extra)]
    mix.shuffle(more)  # type: ignore[attr-defined]
    after = chosen(more)
    assert after.pop(77) in extra
    assert after == before


def test_every_record_of_a_subject_is_as_likely() -> None:
    records = [(5, bytes([0, 0, n])) for n in range(8)]
    counts = np.zeros(8)
    for key in range(4000):
        counts[chosen(records, key.to_bytes(16, "big"))[5][2]] += 1
    assert stats.chisquare(counts).pvalue > 1e-6


@pytest.mark.parametrize("subjects", [[1, 1], [1, 2, 3, 2]])
def test_two_records_of_a_subject_are_found(subjects: list[int]) -> None:
    with pytest.raises(ContributionUnbounded):
        assert_one_record_each(np.array(subjects))
    assert_one_record_each(np.unique(subjects))


def test_arrays_that_do_not_fit_and_short_keys_are_refused() -> None:
    rows: npt.NDArray[np.uint8] = np.zeros((2, 3), np.uint8)
    with pytest.raises(InvalidParameter):
        one_record_each(np.array([1]), rows, KEY)
    with pytest.raises(InvalidParameter):
        one_record_each(np.array([1, 2]), rows, b"short")
