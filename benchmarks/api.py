"""The cost of requests: every GET route of the API and every page of the dashboard, on a database with much in it.

Run `python -m benchmarks.api --json FILE`; `--quick` lays in a hundredth. A real service in a process of its own, on
SQLite and on PostgreSQL (from OBSCURA_TEST_POSTGRES, else from the usual local port). Before anything is measured each
route is asked once. `cpu_ms` is processor time of the service's process for one request, without the database's server.
`kb` is the length of the answer, `stored` the number of entries in the ledger. Exports that grow with the stock and the
upload of an npz are measured by their throughput.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np

from benchmarks.api_stock import Stock, lay_in
from benchmarks.ledger_databases import database
from benchmarks.results import machine, parser_of, write_json
from service import dashboard
from service.datasets import vault
from service.db.access_tables import DEFAULT_PROJECT
from service.db.session import make_engine, make_session_factory
from service.main import create_app
from service.settings import Settings

CLIENTS = (1, 8)
CPU_MS_MAX = 30.0
PAGE_MS_MAX, PAGE_KB_MAX = 100.0, 100.0  # of the dashboard's pages, asked for by one client at a time
UPLOAD_MB_PER_SECOND_MIN = 30.0
EXPORT_MB_PER_SECOND_MIN = 2.0
EXPORTS = ("/accounts/{account_id}/ledger.csv",)  # downloads that grow with the stock; no pages
DATABASES = ("sqlite", "postgresql")
STOCK = {"accounts": 1000, "jobs": 10_000, "entries": 1_000_000}
QUICK = {"accounts": 20, "jobs": 200, "entries": 10_000}
START_SECONDS = 600
_FILES = ("/v1/", "/static/", "/reference/")  # what is no page; Swagger UI's files are cached for good
# Lists at their longest page, and pages that are not the first.
VARIANTS = {
    "/v1/jobs": ["?limit=200"],
    "/v1/accounts": ["?limit=200"],
    "/accounts/{account_id}/{part}": ["?before=500"],
}
VARIANTS |= {f"/v1/{name}": ["?limit=200"] for name in ("datasets", "releases", "sweeps", "keys", "decisions")}
VARIANTS |= {"/jobs": ["?state=succeeded&recipe=datalens"], "/datasets": ["?q=pictures&state=ready"]}
VARIANTS |= {"/v1/accounts/{account_id}/entries": ["?limit=200"]}
_SEARCH = "?recipe=datalens&epsilon=0.1&shown=datalens&vary=teachers&values="
VARIANTS["/train"] = [_SEARCH + ",".join(map(str, range(100, 100 + trials))) for trials in (2, 20)]


def routes() -> list[str]:
    """Return the templates of all paths that can be got: the API's and the dashboard's."""
    with tempfile.TemporaryDirectory() as folder:
        paths = create_app(Settings(data_dir=Path(folder))).openapi()["paths"]
    found = [path for path, operations in paths.items() if "get" in operations]
    pages = [route.path for part in dashboard.PARTS for route in part.routes if "GET" in route.methods]
    return found + [path for path in pages if "{secret}" not in path and not path.startswith("/login/")]  # no page


def filled(path: str, stock: Stock) -> list[str]:
    """Return the addresses that stand for a template: one for each of its parts or files, and its variants."""
    names = {"account_id": [stock.account_id], "dataset_id": [stock.dataset_id], "job_id": [stock.job_id]}
    names |= {"sweep_id": [stock.sweep_id], "release_id": [stock.release_id], "sample_id": [stock.sample_id]}
    names |= {"request_id": [stock.request_id], "name": ["generator.json"]}
    names |= {"preview_id": [stock.preview_id], "made_id": [stock.preview_id]}  # pictures are of previews alone
    names |= {"part": ["data", "jobs", "ledger", "controls"], "number": ["0"]}
    names |= {"tab": ["usefulness", "guarantee", "use", "share"]}
    names |= {"recipe": ["datalens"], "project_id": [DEFAULT_PROJECT]}
    if path.startswith("/parts/"):
        names["name"] = ["budgets", "jobs", "releases"]
    if path.startswith("/reference/"):
        names["name"] = ["swagger-ui.css"]
    if path.startswith("/static/"):
        names["name"] = [path.name for path in sorted((Path(dashboard.__file__).parent / "static").iterdir())]
    addresses = [f"{path}?release={stock.release_id}" if path == "/compare" else path]
    for name, values in names.items():
        addresses = [address.replace("{" + name + "}", value) for address in addresses for value in values]
    addresses = list(dict.fromkeys(addresses))
    return [address + variant for address in addresses for variant in ("", *VARIANTS.get(path, []))]


class Service:
    """A running service: its process, and what requests need."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, token: str) -> None:
        self.process, self.address = process, urlsplit(url)
        self.headers = {"Authorization": f"Bearer {token}"}
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        connection = self.connect()
        connection.request("POST", "/login", urlencode({"key": token}), form)
        self.headers["Cookie"] = (connection.getresponse().getheader("Set-Cookie") or "").split(";")[0]

    def connect(self, timeout_seconds: float = 120) -> http.client.HTTPConnection:
        """Open a connection that is kept."""
        return http.client.HTTPConnection(self.address.hostname or "", self.address.port, timeout=timeout_seconds)

    def get(self, connection: http.client.HTTPConnection, path: str) -> int:
        """Ask for a path and read the answer; returns its length."""
        connection.request("GET", path, headers=self.headers)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"GET {path} gave {answer.status}: {body[:300]!r}")
        return len(body)

    def create(self, path: str, facts: Mapping[str, Any]) -> str:
        """Create something by a POST of JSON and return its id."""
        connection = self.connect()
        connection.request("POST", path, json.dumps(facts), self.headers | {"Content-Type": "application/json"})
        return str(json.loads(connection.getresponse().read())["id"])

    def cpu_seconds(self) -> float:
        """Return the processor time that the process has used, all its threads together.

        The clock's number is that of `clock_getcpuclockid`: Linux makes it of the process's id.
        """
        return time.clock_gettime((~self.process.pid << 3) | 2)


@contextmanager
def service(url: str, data_dir: Path, token: str, further: Mapping[str, str] = {}) -> Iterator[Service]:
    """Run `obscura up` on a database, without workers, until the end."""
    changes = {"OBSCURA_DATABASE_URL": url, "OBSCURA_MODE": "celery", "OBSCURA_REDIS_URL": "redis://127.0.0.1:1/0"}
    command = [sys.executable, "-m", "obscura.cli", "--data-dir", str(data_dir), "up", "--port", "0"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OBSCURA_")}
    with (data_dir / "log").open("wb") as log:
        process = subprocess.Popen(command, env=kept | changes | further, stdout=subprocess.DEVNULL, stderr=log)
    try:
        yield Service(process, _address(process, data_dir), token)
    finally:
        process.terminate()
        process.wait()


def _address(process: subprocess.Popen[bytes], data_dir: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.2)
        if (data_dir / "service.url").exists():
            url = (data_dir / "service.url").read_text("ascii").strip()
            try:
                http.client.HTTPConnection(url.removeprefix("http://"), timeout=5).request("GET", "/v1/health/live")
                return url
            except OSError:
                continue
    raise RuntimeError(f"the service did not start: {(data_dir / 'log').read_text()[-2000:]}")


def measure(running: Service, path: str, clients: int, seconds: float) -> dict[str, float]:
    """Ask for a path over and over; returns latencies and processor time of one request."""
    spent: list[list[float]] = [[] for _ in range(clients)]
    connections = [running.connect() for _ in range(clients)]
    failed: list[BaseException] = []

    def client(number: int) -> None:
        try:
            while time.perf_counter() < deadline or len(spent[number]) < 3:
                started = time.perf_counter()
                running.get(connections[number], path)
                spent[number].append(time.perf_counter() - started)
        except BaseException as error:
            failed.append(error)

    size = running.get(connections[0], path)
    cpu = running.cpu_seconds()
    deadline = time.perf_counter() + seconds
    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cpu = running.cpu_seconds() - cpu
    for connection in connections:
        connection.close()
    if failed:
        raise failed[0]
    times = sorted(taken for each in spent for taken in each)
    return {
        "requests": len(times),
        "p50_ms": 1e3 * statistics.median(times),
        "p99_ms": 1e3 * times[min(int(0.99 * len(times)), len(times) - 1)],
        "cpu_ms": 1e3 * cpu / len(times),
        "kb": size / 1e3,
    }


def upload(running: Service) -> dict[str, float]:
    """Declare a public dataset and send its npz of 100 MB; return how fast it went, validation included."""
    side, count = 28, 100_000_000 // (28 * 28)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, side, side), dtype=np.uint8)
    packed = io.BytesIO()
    np.savez(packed, images=images, labels=np.arange(count, dtype=np.int64) % 10)
    facts = {"name": "upload", "visibility": "public", "classes": [f"class {number}" for number in range(10)]}
    facts |= {"height": side, "width": side, "channels": 1, "records_declared": count}
    dataset_id, connection = running.create("/v1/datasets", facts), running.connect()
    body, cpu, started = packed.getvalue(), running.cpu_seconds(), time.perf_counter()
    connection.request("PUT", f"/v1/datasets/{dataset_id}/content?format=npz", body, running.headers)
    answer = connection.getresponse()
    said = answer.read()
    seconds = time.perf_counter() - started
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"the upload gave {answer.status}: {said[:300]!r}")
    return {
        "megabytes": len(body) / 1e6,
        "seconds": seconds,
        "megabytes_per_second": len(body) / 1e6 / seconds,
        "cpu_ms": 1e3 * (running.cpu_seconds() - cpu),
    }


def export(running: Service, path: str) -> dict[str, float]:
    """Download a file that grows with what is stored, once; return how fast it went."""
    cpu, started = running.cpu_seconds(), time.perf_counter()
    size = running.get(running.connect(), path)
    seconds = time.perf_counter() - started
    return {
        "megabytes": size / 1e6,
        "seconds": seconds,
        "megabytes_per_second": size / 1e6 / seconds,
        "cpu_ms": 1e3 * (running.cpu_seconds() - cpu),
    }


def measure_database(kind: str, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of one database."""
    data_dir = folder / kind
    data_dir.mkdir()
    with database(kind, folder) as url:
        started = time.perf_counter()
        engine = make_engine(url)
        sizes = QUICK if options.quick else STOCK
        stock = lay_in(make_session_factory(engine), data_dir, **sizes)
        engine.dispose()
        vault.make_fingerprint_key(Settings(data_dir=data_dir))  # no start makes one where the ledger has findings
        print(f"{kind}: laid in after {time.perf_counter() - started:.0f} s", flush=True)
        rows = []
        with service(url, data_dir, stock.token) as running:
            for path in routes():
                if path in EXPORTS:
                    row = {"database": kind, "route": path, "clients": 1, "stored": sizes["entries"]}
                    rows.append(row | export(running, filled(path, stock)[0]))
                    continue
                for address, clients in ((address, clients) for address in filled(path, stock) for clients in CLIENTS):
                    found = measure(running, address, clients, options.seconds)
                    name = path + (f" ({address.rpartition('/')[2]})" if path.startswith("/parts/") else "")
                    name += address[address.index("?") :] if "?" in address else ""
                    row = {"database": kind, "route": name, "clients": clients, "stored": sizes["entries"]}
                    rows.append(row | {key: round(value, 3) for key, value in found.items()})
                    print("  ".join(str(value) for value in rows[-1].values()), flush=True)
            found = upload(running)
            rows.append({"database": kind, "route": "PUT /v1/datasets/{dataset_id}/content", "clients": 1} | found)
            print("  ".join(str(value) for value in rows[-1].values()), flush=True)
    return rows


def missed(rows: list[dict[str, Any]]) -> list[str]:
    """Return what fell short of the bars."""
    slow = [
        f"{row['database']} {row['route']} with {row['clients']} clients: {row['cpu_ms']:.1f} ms of processor time"
        for row in rows
        if "megabytes" not in row and row["cpu_ms"] > CPU_MS_MAX
    ]
    sent = [row for row in rows if "megabytes" in row]
    slow += [
        f"{row['database']} {row['route']}: {row['p50_ms']:.1f} ms and {row['kb']:.1f} kB of a page"
        for row in rows
        if "megabytes" not in row
        and not row["route"].startswith(_FILES)
        and row["clients"] == 1
        and (row["p50_ms"] > PAGE_MS_MAX or row["kb"] > PAGE_KB_MAX)
    ]
    return slow + [
        f"{row['database']} {row['route']}: {row['megabytes_per_second']:.1f} MB/s"
        for row in sent
        if row["megabytes_per_second"]
        < (EXPORT_MB_PER_SECOND_MIN if row["route"] in EXPORTS else UPLOAD_MB_PER_SECOND_MIN)
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the rows")
    parser.add_argument("--databases", nargs="+", default=list(DATABASES), choices=list(DATABASES))
    parser.add_argument("--seconds", type=float, default=1.0, help="for each route and number of clients")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.databases:
            rows += measure_database(kind, options, Path(folder))
    stock = QUICK if options.quick else STOCK
    results = machine() | {"stock": stock, "rows": rows, "missed": missed(rows)}
    write_json(options.json, results)
    for what in results["missed"]:
        print(f"missed: {what}")


if __name__ == "__main__":
    main()
