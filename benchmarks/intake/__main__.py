"""Build inputs as people have them, push each in every way, and say what became of it.

Run `python -m benchmarks.intake --json FILE`. One service runs on this machine for all of them. Every input goes by the
SDK and by the command line; those that say so go through the browser, too, where Chromium is. The exit status is 1
where something is not as expected.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.intake.inputs import Input
from benchmarks.intake.kinds import all_inputs
from benchmarks.intake.ways import CHROMIUM, Got, Ways, expected_of, fault, shown
from obscura.client.local_service import LocalClient

WAYS = ("sdk", "cli", "browser")


def row_of(kind: str, given: Input, way: str, push: Callable[[Input, Path], Got], place: Path) -> dict[str, Any]:
    """Push an input in one way."""
    started = time.monotonic()
    expected = expected_of(given, way)
    try:
        got = push(given, place)
        wrong = fault(expected, got)
    except Exception as error:  # the benchmark goes on, and the row says so
        got = Got("failed", f"{type(error).__name__}: {error}")
        wrong = "the way itself failed"
    return {
        "input": given.name,
        "kind": kind,
        "way": way,
        "unit": given.unit,
        "expected": shown(expected),
        "got": got.shown(),
        "wrong": wrong,
        "declared": got.declared,
        "seconds": round(time.monotonic() - started, 2),
    }


def measure(inputs: Sequence[tuple[str, Input]], ways: Sequence[str], keep: Callable[[Any], None]) -> dict[str, Any]:
    """Push all inputs and return the rows with their totals; `keep` is called with it after every row."""
    found: dict[str, Any] = {"inputs": len(inputs), "rows": []}
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        data_dir, folder = Path(home) / "service", Path(home) / "inputs"
        client = stack.enter_context(LocalClient(data_dir))
        pushing = Ways(client, data_dir, folder)
        pushers = {"sdk": pushing.in_python, "cli": pushing.by_command_line}
        if "browser" in ways and CHROMIUM.exists():
            pushers["browser"] = stack.enter_context(pushing.browser())
        elif "browser" in ways:
            print(f"No browser: {CHROMIUM} is not there.", flush=True)
        for kind, given in inputs:
            place = given.write(folder)
            for way in ways:
                if way in pushers and (way != "browser" or given.browser is not None):
                    row = row_of(kind, given, way, pushers[way], place)
                    found["rows"].append(row)
                    print(
                        f"{'ok ' if not row['wrong'] else 'BAD'} {way:7} {given.name}: {row['got'][:160]}", flush=True
                    )
            keep(found)
        found["tracebacks_in_log"] = (data_dir / "service.log").read_text("utf-8", "replace").count("Traceback")
    found |= totals(found["rows"])
    keep(found)
    return found


def totals(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Count rows by what became of them."""
    return {
        "rows_by_way": dict(Counter(row["way"] for row in rows)),
        "as_expected": sum(not row["wrong"] for row in rows),
        "not_as_expected": sum(bool(row["wrong"]) for row in rows),
        "tracebacks": sum(row["got"].startswith("failed") for row in rows),
        "declared_before_a_question": sum(bool(row["declared"]) and not row["got"].startswith("read") for row in rows),
    }


def main() -> int:
    """Push what is asked for; the exit status is 1 where something is not as expected."""
    kinds = all_inputs()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--kinds", nargs="+", choices=list(kinds), default=list(kinds))
    parser.add_argument("--only", nargs="+", help="names of inputs")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--sample", type=int, help="so many inputs of each kind only, spread over it")
    options = parser.parse_args()

    def keep(found: Any) -> None:
        if options.json is not None:
            options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")

    chosen = []
    for kind in options.kinds:
        of_kind = [given for given in kinds[kind] if options.only is None or given.name in options.only]
        step = max(1, len(of_kind) // options.sample) if options.sample else 1
        chosen += [(kind, given) for given in of_kind[::step][: options.sample]]
    found = measure(chosen, options.ways, keep)
    for row in found["rows"]:
        if row["wrong"]:
            print(f"{row['way']} {row['input']}: {row['wrong']}\n  expected {row['expected']}\n  got {row['got']}")
    print(json.dumps({name: value for name, value in found.items() if name != "rows"}))
    return 1 if found["not_as_expected"] or found["tracebacks_in_log"] else 0


if __name__ == "__main__":
    sys.exit(main())
