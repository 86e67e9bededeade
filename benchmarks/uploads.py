"""How fast an upload becomes a dataset: from the first byte of the body over HTTP until READY, validation included.

Run `python -m benchmarks.uploads --json FILE`. The service is a process of its own, on SQLite in a fresh folder; the
client streams the file over the loopback interface. `cpu_s` is the processor time of the service and of the confined
process that reads the upload.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import Row, machine, parser_of, show, write_json
from obscura.client.local_service import LocalClient

SHAPES: tuple[tuple[int, tuple[int, ...]], ...] = ((60_000, (28, 28)), (200_000, (28, 28)), (20_000, (64, 64, 3)))
_BLOCK = 2**20


def npz(records: int, shape: tuple[int, ...]) -> bytes:
    """Return an .npz of noise, which no compression makes smaller."""
    buffer = io.BytesIO()
    images = np.random.default_rng().integers(0, 256, (records, *shape), dtype=np.uint8)
    np.savez(buffer, images=images, labels=np.arange(records) % 10)
    return buffer.getvalue()


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and of the children that it has waited for (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def blocks(content: bytes) -> Iterator[bytes]:
    """Yield content in blocks of 1 MiB."""
    for start in range(0, len(content), _BLOCK):
        yield content[start : start + _BLOCK]


def measure(shapes: tuple[tuple[int, tuple[int, ...]], ...], repeats: int) -> list[Row]:
    """Upload noise of each shape; the fastest of `repeats`."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, LocalClient(Path(folder) / "data") as client:
        process = client.service.process
        assert process is not None
        account = client.create_account(name="noise", owner="benchmark", epsilon=1.0, delta=1e-6, unit="record")
        for records, shape in shapes:
            facts: dict[str, Any] = {"height": shape[0], "width": shape[1], "channels": 3 if len(shape) == 3 else 1}
            facts |= {"classes": list("abcdefghij"), "records_declared": records, "account_id": account.id}
            found = []
            for _ in range(repeats):
                dataset = client.declare_dataset(name="noise", visibility="private", **facts)
                content, before = npz(records, shape), processor_seconds(process.pid)
                started = time.monotonic()
                dataset.push(blocks(content), format="npz")
                found.append((time.monotonic() - started, len(content), processor_seconds(process.pid) - before))
            seconds, size, cpu = min(found)
            row: Row = {"records": records, "shape": " x ".join(map(str, shape)), "mb": round(size / 1e6, 1)}
            speed = round(size / 1e6 / seconds, 1)
            rows.append(row | {"seconds": round(seconds, 2), "mb_per_s": speed, "cpu_s": round(cpu, 2)})
    return rows


def main() -> None:
    """Measure, print a table and, where asked, keep it as JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    rows = measure(SHAPES, options.repeats)
    show(rows, list(rows[0]))
    write_json(options.json, machine() | {"rows": rows})


if __name__ == "__main__":
    main()
