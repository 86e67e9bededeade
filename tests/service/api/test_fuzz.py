"""Schemathesis against a running service: no generated request meets a 5xx or an unlisted status, on either database.

FUZZ_EXAMPLES=30 sends thousands of requests in all phases, sequences included, as every caller.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from benchmarks.api_stock import SMALL, lay_in
from service.api.events import StreamLimits
from service.db.access_tables import ApiKey, Decision
from service.db.base import new_id
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Release, Sample, Sweep
from service.db.ledger_tables import Account
from service.db.session import SessionFactory, transaction
from service.identity import admins, auth
from service.identity.access import Scope
from service.main import utc_now
from service.settings import Settings
from tests.service.api.conftest import serving

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
CALLERS = (None, "read", "admin") if EXAMPLES else ("admin",)
SEED = 20261122
IDS_MAX = 8  # of each kind, from which requests choose
KINDS: dict[str, Any] = {
    "account_id": Account,
    "dataset_id": Dataset,
    "evaluation_dataset_id": Dataset,
    "job_id": Job,
    "sweep_id": Sweep,
    "release_id": Release,
    "sample_id": Sample,
    "request_id": Decision,
    "key_id": ApiKey,
}


def fuzz(url: str, factory: SessionFactory, scope: str | None, folder: Path) -> tuple[dict[str, Any], str]:
    """Send the requests of one caller; return Schemathesis' counts of test cases and its output."""
    report, phases = folder / "report.json", "examples,coverage,fuzzing,stateful" if EXAMPLES else "fuzzing"
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/v1/openapi.json", "--no-color"]
    command += [
        "--checks",
        "not_a_server_error,status_code_conformance",
        "--phases",
        phases,
        "--max-examples",
        str(EXAMPLES or 3),
    ]
    command += ["--seed", str(SEED), "--continue-on-failure", "--no-shrink", "--suppress-health-check", "all"]
    command += ["--request-timeout", "60", "--report", "json", "--report-json-path", str(report)]
    root = str(Path(__file__).parents[3])
    changes = {"SCHEMATHESIS_HOOKS": "tests.service.api.fuzz_hooks", "PYTHONPATH": root}
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
    output = finished.stdout + finished.stderr
    assert report.exists(), output[-2000:]
    facts = json.loads(report.read_text("utf-8"))
    assert facts["complete"], output[-4000:]
    return facts["test_cases"], output


@pytest.mark.slow
@pytest.mark.parametrize("scope", CALLERS)
def test_no_generated_request_meets_a_server_error(scope, database_url, tmp_path):
    settings = Settings(data_dir=tmp_path / "data", database_url=database_url, mode="celery")
    # Event streams end at once: a reader would otherwise wait for minutes.
    with serving(settings, stream_limits=StreamLimits(seconds_max=0.0)) as served:
        lay_in(served.factory, settings.data_dir, **SMALL)
        cases, output = fuzz(served.url, served.factory, scope, tmp_path)
    assert cases["errored"] == cases["with_failures"] == 0, output
    assert cases["generated"] > 100
