"""Build inputs as people have them, push each in every way, and report the outcome.

Run `python -m benchmarks.intake --json FILE`. All go to one service on this machine. Every input goes by the SDK and by
the command line; some also go through the browser, if Chromium is installed. The exit status is 1 if an outcome is not
as expected. `inputs.jsonl` has the inputs, `builders/` builds them, and `ways.py` pushes them.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.intake.inputs import Input, all_inputs
from benchmarks.intake.ways import CHROMIUM, Got, Ways, fault, shown
from benchmarks.results import parser_of, write_json
from obscura.client.local_service import LocalClient

WAYS = ("sdk", "cli", "browser")


def row_of(given: Input, way: str, push: Callable[[Input, Path], Got], place: Path) -> dict[str, Any]:
    """Push an input in one way."""
    started = time.monotonic()
    expected = given.browser.expected if way == "browser" and given.browser else given.expected
    try:
        got = push(given, place)
        wrong = fault(expected, got)
    except Exception as error:  # the benchmark goes on, and the row says so
        got = Got("failed", f"{type(error).__name__}: {error}")
        wrong = "the way itself failed"
    row = {"input": given.name, "kind": given.kind, "way": way, "unit": given.unit, "expected": shown(expected)}
    row |= {"got": got.shown(), "wrong": wrong, "declared": got.declared}
    return row | {"seconds": round(time.monotonic() - started, 2)}


def measure(inputs: Sequence[Input], ways: Sequence[str], keep: Callable[[Any], None]) -> dict[str, Any]:
    """Push all inputs and return the rows with their totals; call `keep` with it after every input."""
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
        for given in inputs:
            place = given.write(folder)
            for way in ways:
                if way in pushers and (way != "browser" or given.browser is not None):
                    row = row_of(given, way, pushers[way], place)
                    found["rows"].append(row)
                    verdict = "BAD" if row["wrong"] else "ok "
                    print(f"{verdict} {way:7} {given.name}: {row['got'][:160]}", flush=True)
            keep(found)
        found["tracebacks_in_log"] = (data_dir / "service.log").read_text("utf-8", "replace").count("Traceback")
    rows = found["rows"]
    found |= {
        "rows_by_way": dict(Counter(row["way"] for row in rows)),
        "as_expected": sum(not row["wrong"] for row in rows),
        "not_as_expected": sum(bool(row["wrong"]) for row in rows),
        "tracebacks": sum(row["got"].startswith("failed") for row in rows),
        "declared_before_a_question": sum(bool(row["declared"]) and not row["got"].startswith("read") for row in rows),
    }
    keep(found)
    return found


def main(arguments: list[str] | None = None) -> int:
    inputs = all_inputs()
    kinds = list(dict.fromkeys(given.kind for given in inputs))
    parser = parser_of(__doc__)
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--only", nargs="+", help="names of inputs")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--sample", type=int, help="so many inputs of each kind only, spread over it")
    options = parser.parse_args(arguments)

    chosen = []
    for kind in options.kinds:
        of_kind = [given for given in inputs if given.kind == kind and given.name in (options.only or [given.name])]
        step = max(1, len(of_kind) // options.sample) if options.sample else 1
        chosen += of_kind[::step][: options.sample]
    found = measure(chosen, options.ways, functools.partial(write_json, options.json))
    for row in found["rows"]:
        if row["wrong"]:
            print(f"{row['way']} {row['input']}: {row['wrong']}\n  expected {row['expected']}\n  got {row['got']}")
    print(json.dumps({name: value for name, value in found.items() if name != "rows"}))
    return 1 if found["not_as_expected"] or found["tracebacks_in_log"] else 0


if __name__ == "__main__":
    sys.exit(main())
