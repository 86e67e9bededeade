"""Throughput of the exact discrete Gaussian on one core, beside NumPy's rounded floating-point Gaussian.

Run `python -m benchmarks.noise_throughput`, with `--json FILE` to keep the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import time
from pathlib import Path
from typing import Any

import numpy as np

from privacy.mechanisms.discrete_gaussian import step_table
from privacy.mechanisms.noise import SecureNoise

STDDEVS = (0.5, 1.0, 4.7, 31.4, 200.0, 5000.0, 1e5, 1e7)


def seconds_for(draws: int, stddev: float) -> float:
    """Return the processor time of the exact sampler for `draws` integers."""
    noise = SecureNoise(secrets.token_bytes(32))
    started = time.process_time()
    noise.discrete_gaussian(draws, stddev)
    return time.process_time() - started


def measure(draws: int, repeats: int) -> list[dict[str, float]]:
    """Measure every stddev, best of `repeats`, in million draws per second of processor time."""
    rows = []
    inexact = np.random.default_rng()
    for stddev in STDDEVS:
        step_table.cache_clear()
        started = time.process_time()
        step_table(stddev)
        table_ms = 1e3 * (time.process_time() - started)
        exact = min(seconds_for(draws, stddev) for _ in range(repeats))
        started = time.process_time()
        np.rint(inexact.normal(0.0, stddev, draws)).astype(np.int64)
        rounded = time.process_time() - started
        row = {"exact": draws / exact / 1e6, "rounded_inexact": draws / rounded / 1e6, "table_ms": table_ms}
        rows.append({"stddev": stddev, **row})
    return rows


def main() -> None:
    """Print a table and, where asked, write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=5_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = measure(options.draws, options.repeats)
    print(f"million draws per second of one core, {options.draws} draws, best of {options.repeats}")
    print(f"{'stddev':>10} {'exact':>8} {'rounded (inexact)':>18} {'table ms':>9}")
    for row in rows:
        print(f"{row['stddev']:>10g} {row['exact']:>8.1f} {row['rounded_inexact']:>18.1f} {row['table_ms']:>9.1f}")
    if options.json:
        facts: dict[str, Any] = {"machine": platform.machine(), "cores": os.cpu_count(), "numpy": np.__version__}
        options.json.write_text(json.dumps({"draws": options.draws, **facts, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
