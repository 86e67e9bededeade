"""The benchmark of the noise runs."""

from __future__ import annotations

from benchmarks.noise_throughput import STDDEVS, measure


def test_every_scale_is_measured() -> None:
    rows = measure(draws=1000, repeats=1)
    assert [row["stddev"] for row in rows] == list(STDDEVS)
    assert all(row["exact"] > 0 and row["rounded_inexact"] > 0 for row in rows)
