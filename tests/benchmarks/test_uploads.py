"""The benchmark of the uploads runs."""

from __future__ import annotations

from benchmarks.uploads import measure


def test_an_upload_is_timed_from_its_first_byte_until_the_dataset_is_ready() -> None:
    (row,) = measure(((5000, (8, 8, 3)),), repeats=1)
    assert (row["records"], row["shape"]) == (5000, "8 x 8 x 3")
    assert row["mb_per_s"] > 0
    assert row["cpu_s"] > 0
