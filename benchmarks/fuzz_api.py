"""Schemathesis against a running service: generated requests, alone and in sequences, must never meet a 5xx.

Run `python -m benchmarks.fuzz_api --json FILE`. Each of three callers (no key, a key that reads, an admin's) sends what
the service's own OpenAPI document allows and forbids, on SQLite and on PostgreSQL, which is taken from
OBSCURA_TEST_POSTGRES, else from the usual local port. The seed is fixed. Ends with status 1 where anything was found.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvicorn
from sqlalchemy import select

from benchmarks.api_stock import lay_in
from benchmarks.ledger_databases import database
from service.api.events import StreamLimits
from service.cli.serving import listen, server_config
from service.db.access_tables import ApiKey, Decision
from service.db.base import new_id
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Release, Sample, Sweep
from service.db.ledger_tables import AccountRow
from service.db.session import SessionFactory, transaction
from service.identity import admins, auth
from service.identity.access import Scope
from service.logs import configure_logging
from service.main import create_app, utc_now
from service.settings import Settings

DATABASES = ("sqlite", "postgresql")
CALLERS: dict[str, str | None] = {"no key": None, "read": "read", "admin": "admin"}
STOCK = {"accounts": 6, "jobs": 100, "entries": 1000}
PHASES = "examples,coverage,fuzzing,stateful"
SEED = 20261122
IDS_MAX = 8  # of each kind, from which requests choose
KINDS: dict[str, Any] = {
    "account_id": AccountRow,
    "dataset_id": Dataset,
    "evaluation_dataset_id": Dataset,
    "job_id": Job,
    "sweep_id": Sweep,
    "release_id": Release,
    "sample_id": Sample,
    "request_id": Decision,
    "key_id": ApiKey,
}


@dataclass(frozen=True)
class Found:
    """What one run of Schemathesis did: cases made, those that met a 5xx, and what it says about them."""

    cases: int
    server_errors: int
    said: str


def fuzz(
    url: str, factory: SessionFactory, scope: str | None, folder: Path, *, examples: int, phases: str = PHASES
) -> Found:
    """Let Schemathesis send its requests, of one caller, to a service that has something stored."""
    report = folder / f"{new_id('report')}.json"
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/v1/openapi.json", "--no-color"]
    command += ["--checks", "not_a_server_error", "--phases", phases, "--max-examples", str(examples)]
    command += ["--seed", str(SEED), "--continue-on-failure", "--no-shrink", "--suppress-health-check", "all"]
    command += ["--request-timeout", "60", "--report", "json", "--report-json-path", str(report)]
    changes = {"SCHEMATHESIS_HOOKS": "benchmarks.fuzz_hooks", "PYTHONPATH": str(Path(__file__).parents[1])}
    with transaction(factory) as session:
        ids = {name: list(session.scalars(select(table.id).limit(IDS_MAX))) for name, table in KINDS.items()}
        if scope is not None:
            if scope == Scope.ADMIN:
                token = admins.admit_on_machine(session, name=f"fuzz {new_id('x')}", now=utc_now())[1]
            else:
                token = auth.create_key(session, name="fuzz", scopes=[scope], now=utc_now())[1]
            command += ["--header", f"Authorization: Bearer {token}"]
            changes["FUZZ_OWN_KEY"] = f"key_{token.split('_')[1]}"
    changes["FUZZ_IDS"] = json.dumps(ids)
    finished = subprocess.run(command, cwd=folder, env=os.environ | changes, capture_output=True, text=True)
    if not report.exists():
        raise RuntimeError(f"Schemathesis did not run: {(finished.stdout + finished.stderr)[-2000:]}")
    facts = json.loads(report.read_text("utf-8"))
    if facts["test_cases"]["errored"] or not facts["complete"]:
        raise RuntimeError(f"Schemathesis did not get through: {finished.stdout[-4000:]}")
    return Found(facts["test_cases"]["generated"], facts["test_cases"]["with_failures"], finished.stdout)


@contextmanager
def service(url: str, folder: Path) -> Iterator[tuple[str, SessionFactory]]:
    """Run a service on a database, without workers, until the end; yields its address and its sessions."""
    settings = Settings(data_dir=folder / "data", database_url=url, mode="celery")
    # Streams of events end at once: whoever reads them to their end would wait for minutes.
    app = create_app(settings, stream_limits=StreamLimits(seconds_max=0.0), send=_nobody)
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(server_config(app, connections_max=200))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("the service did not start")
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", app.state.factory
    finally:
        app.state.service.stopping.set()
        server.should_exit = True
        thread.join()
        listener.close()


def _nobody(_name: str, _args: Sequence[Any]) -> None:
    """There is no worker, so jobs stay queued."""


def main() -> None:
    """Send, print, write the figures as JSON where asked; exit with 1 where a request met a 5xx."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--databases", nargs="+", default=list(DATABASES), choices=list(DATABASES))
    parser.add_argument("--examples", type=int, default=30, help="generated requests of each operation, at most")
    options = parser.parse_args()
    configure_logging("CRITICAL")
    rows: list[dict[str, Any]] = []
    for kind in options.databases:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with database(kind, folder) as database_url, service(database_url, folder) as (url, factory):
                lay_in(factory, folder / "data", **STOCK)
                for caller, scope in CALLERS.items():
                    found = fuzz(url, factory, scope, folder, examples=options.examples)
                    rows.append({"database": kind, "caller": caller} | asdict(found))
                    print(f"{kind}, {caller}: {found.cases} cases, {found.server_errors} met a 5xx", flush=True)
                    if found.server_errors:
                        print(found.said, flush=True)
    results = {
        "cases": sum(row["cases"] for row in rows),
        "server_errors": sum(row["server_errors"] for row in rows),
        "seed": SEED,
        "rows": [{name: value for name, value in row.items() if name != "said"} for row in rows],
    }
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    print(f"{results['cases']} cases, {results['server_errors']} met a 5xx")
    sys.exit(1 if results["server_errors"] else 0)


if __name__ == "__main__":
    main()
