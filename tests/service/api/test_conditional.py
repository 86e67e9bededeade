"""Byte ranges and cursors, without a server."""

import pytest

from service.api.conditional import byte_range
from service.api.pages import decode_cursor, encode_cursor
from service.api.problems import RangeNotSatisfiable
from service.errors import InvalidInput


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("bytes=0-0", (0, 0)),
        ("bytes=100-199", (100, 199)),
        ("bytes=2000-", (2000, 2047)),
        ("bytes=-48", (2000, 2047)),
        ("bytes=2000-999999", (2000, 2047)),
        ("bytes=-999999", (0, 2047)),
    ],
)
def test_ranges_are_inclusive(asked, expected):
    assert byte_range(asked, 2048) == expected


@pytest.mark.parametrize(
    "asked", [None, "", "bytes=5-2", "lines=1-2", "bytes=0-1,4-5", "bytes=-", "nonsense", "bytes=" + "9" * 5000 + "-"]
)
def test_ranges_that_are_none_mean_everything(asked):
    assert byte_range(asked, 2048) is None


@pytest.mark.parametrize("asked", ["bytes=2048-", "bytes=-0", "bytes=9999-10000"])
def test_ranges_outside(asked):
    with pytest.raises(RangeNotSatisfiable):
        byte_range(asked, 2048)


def test_nothing_of_nothing():
    with pytest.raises(RangeNotSatisfiable):
        byte_range("bytes=0-", 0)


def test_cursors_come_back():
    assert decode_cursor(encode_cursor(["2030-01-01T00:00:00+00:00", "job_x"]), [str, str])[1] == "job_x"
    assert decode_cursor(encode_cursor([7]), [int]) == [7]
    with pytest.raises(InvalidInput):
        decode_cursor(encode_cursor([7]), [str])
    with pytest.raises(InvalidInput):
        decode_cursor(encode_cursor([True]), [int])
