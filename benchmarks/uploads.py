"""How fast an upload becomes a dataset: from the first byte of the body over HTTP until READY, everything included.

Run `python -m benchmarks.uploads`, with `--json FILE` to keep the figures. The service is a process of its own, on
SQLite in a fresh folder; the client streams the file over the loopback interface. `cpu_s` is the processor time of the
service and of the confined process that reads the upload.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SHAPES: tuple[tuple[int, tuple[int, ...]], ...] = ((60_000, (28, 28)), (200_000, (28, 28)), (20_000, (64, 64, 3)))
START_SECONDS = 120.0


def npz(records: int, shape: tuple[int, ...]) -> bytes:
    """Return an .npz of noise, which no compression makes smaller."""
    buffer = io.BytesIO()
    images = np.random.default_rng().integers(0, 256, (records, *shape), dtype=np.uint8)
    np.savez(buffer, images=images, labels=np.arange(records) % 10)
    return buffer.getvalue()


@contextmanager
def service(folder: Path) -> Iterator[tuple[httpx.Client, int]]:
    """Run `obscura up` for the time of a block; yields a client of it and its process id."""
    address = folder / "service.url"
    environment = {**os.environ, "OBSCURA_DATA_DIR": str(folder), "OBSCURA_PORT": "0"}
    command = [sys.executable, "-m", "obscura.cli", "up"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(lambda: address.exists() and (folder / "admin.key").exists())
        headers = {"Authorization": f"Bearer {(folder / 'admin.key').read_text().strip()}"}
        with httpx.Client(base_url=address.read_text().strip(), headers=headers, timeout=600) as client:
            _wait_for(lambda: _answers(client))
            yield client, process.pid
    finally:
        process.terminate()
        process.wait()


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the service did not start")
        time.sleep(0.1)


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/v1/health/ready").status_code == 200
    except httpx.TransportError:
        return False


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and of the children that it has waited for (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def upload(client: httpx.Client, account_id: str, records: int, shape: tuple[int, ...]) -> tuple[int, float]:
    """Declare a private dataset and send its content; returns its bytes and the seconds until the dataset is ready."""
    body = {"name": "noise", "account_id": account_id, "visibility": "private", "classes": list("abcdefghij")}
    body |= {"height": shape[0], "width": shape[1], "channels": shape[2] if len(shape) == 3 else 1}
    declared = client.post("/v1/datasets", json={**body, "records_declared": records}).raise_for_status().json()
    content = npz(records, shape)
    connection = HTTPConnection(client.base_url.host, client.base_url.port, timeout=600, blocksize=2**20)
    headers = {"Authorization": client.headers["Authorization"], "Content-Length": str(len(content))}
    started = time.monotonic()
    connection.request("PUT", f"/v1/datasets/{declared['id']}/content?format=npz", io.BytesIO(content), headers)
    answer = connection.getresponse()
    said = json.loads(answer.read())
    seconds = time.monotonic() - started
    connection.close()
    if answer.status != 200 or said["state"] != "ready":
        raise RuntimeError(f"the upload was answered {answer.status}")
    return len(content), seconds


def measure(shapes: tuple[tuple[int, tuple[int, ...]], ...], repeats: int) -> list[dict[str, Any]]:
    """Upload noise of each shape; the fastest of `repeats`."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as (client, pid):
        account = {"name": "noise", "owner": "benchmark", "epsilon": 1.0, "delta": 1e-6, "unit": "record"}
        account |= {"adjacency": "add_remove"}
        account_id = client.post("/v1/accounts", json=account).raise_for_status().json()["id"]
        for records, shape in shapes:
            found = []
            for _ in range(repeats):
                before = processor_seconds(pid)
                size, seconds = upload(client, account_id, records, shape)
                found.append((seconds, size, processor_seconds(pid) - before))
            seconds, size, cpu = min(found)
            megabytes = size / 1e6
            rows.append(
                {
                    "records": records,
                    "shape": " x ".join(map(str, shape)),
                    "mb": round(megabytes, 1),
                    "seconds": round(seconds, 2),
                    "mb_per_s": round(megabytes / seconds, 1),
                    "cpu_s": round(cpu, 2),
                }
            )
    return rows


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = measure(SHAPES, arguments.repeats)
    for row in rows:
        sys.stdout.write("  ".join(f"{name} {value}" for name, value in row.items()) + "\n")
    if arguments.json is not None:
        machine = {"machine": platform.machine(), "processor": platform.processor(), "cores": os.cpu_count()}
        arguments.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
