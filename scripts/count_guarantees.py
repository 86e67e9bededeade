"""Print how many guarantees of each kind tests and audits check, so that a lost one is noticed.

    python -m scripts.count_guarantees

docs/research/guarantees.md records the counts with their commit.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from benchmarks import broken_gradients, broken_mechanisms
from service.audit.findings import FindingCode
from service.failpoints import NAMES
from tests.service.departments import routes
from tests.service.ledger.machine_broken import BROKEN
from tests.service.test_matrix import cells

ROOT = Path(__file__).resolve().parents[1]
INVARIANTS = "docs/contribute/architecture.md"
HOSTILE = (
    "tests/service/ingest", "tests/service/datasets/test_reading.py",
    "tests/service/api/test_problems.py", "tests/service/webhooks", "tests/service/test_query_parameters.py",
)  # fmt: skip


def collected(*paths: str) -> int:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", *paths]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sum("::" in line for line in found.splitlines())


def functions(module: ModuleType) -> int:
    found = inspect.getmembers(module, lambda it: inspect.isfunction(it) and it.__module__ == module.__name__)
    return sum(not name.startswith("_") for name, _ in found)


COUNTS: dict[str, Callable[[], int]] = {
    "ledger findings (`service.audit.findings.FindingCode`)": lambda: len(FindingCode),
    "failpoints (`service.failpoints.NAMES`)": lambda: len(NAMES),
    f"ledger invariants ({INVARIANTS})": lambda: len(re.findall(r"(?m)^\| I\d+ \|", (ROOT / INVARIANTS).read_text())),
    "broken ledgers that the state machine must find": lambda: len(BROKEN),
    "broken mechanisms that the release audit must flag": lambda: functions(broken_mechanisms),
    "broken gradients that the gradient audit must flag": lambda: len(broken_gradients.BROKEN_GRADIENTS),
    "audit games (tests/privacy/auditing)": lambda: collected("tests/privacy/auditing"),
    "hostile inputs (upload reader, API, webhooks)": lambda: collected(*HOSTILE),
    "forged or edited ledgers (tests/service/audit)": lambda: collected("tests/service/audit"),
    "permission cells (tests/service/test_matrix.py)": lambda: len(list(cells(routes()))),
    "crash tests (tests/crash)": lambda: collected("tests/crash"),
}


if __name__ == "__main__":
    for name, count in COUNTS.items():
        sys.stdout.write(f"| {name} | {count()} |\n")
