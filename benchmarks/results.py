"""Shared by benchmarks: options, result files that a later run completes, tables, and the spread over runs."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows a module's docstring and has the option `--json FILE`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file of results; a run that was cut off resumes from it")
    return parser


def machine() -> Row:
    """Return the facts of this machine that results depend on, and the commit."""
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    processor = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), "unknown processor")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    facts = {"machine": f"{platform.system()} {platform.machine()}, {processor}", "cores": os.cpu_count()}
    return facts | {"python": platform.python_version(), "commit": commit}


def write_json(file: Path | None, document: object) -> None:
    """Write a document unless no file was given."""
    if file is not None:
        file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


class Results:
    """Rows of a JSON file, written after each change, so that a run that was cut off resumes."""

    def __init__(self, file: Path | None, **facts: Any) -> None:
        self._file = file
        there = json.loads(file.read_text(encoding="utf-8")) if file is not None and file.exists() else {}
        self.document: Row = {**facts, **({"rows": there} if isinstance(there, list) else there)}
        self.rows: list[Row] = self.document.setdefault("rows", [])

    def find(self, **key: Any) -> Row | None:
        """Return the row that has these values."""
        return next((row for row in self.rows if key.items() <= row.items()), None)

    def put(self, row: Row, replaced: Row | None = None) -> Row:
        """Add a row, or replace one, and write the file."""
        if replaced is None:
            self.rows.append(row)
        else:
            self.rows[self.rows.index(replaced)] = row
        self.write()
        return row

    def write(self) -> None:
        """Write the file."""
        write_json(self._file, self.document)


def spread(values: Sequence[float], scale: float = 1.0) -> Row:
    """Return runs, their mean (`ours`) and standard deviation (`sd`; None for one run), times `scale`."""
    runs = [scale * value for value in values]
    deviation = statistics.stdev(runs) if len(runs) > 1 else None
    return {"ours": statistics.mean(runs), "sd": deviation, "seeds": len(runs), "runs": runs}


def since(started: float) -> float:
    """Return the seconds since a reading of `time.monotonic`."""
    return round(time.monotonic() - started, 1)


def show(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print some columns of rows as an aligned table; a column may carry a format, as in `seconds:.2f`."""
    names = [column.split(":")[0] for column in columns]
    formats = [column.partition(":")[2] for column in columns]
    cells = [[_cell(row.get(name), form) for name, form in zip(names, formats, strict=True)] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    for line in (names, *cells):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cell(value: Any, form: str) -> str:
    if value is None:
        return ""
    return format(value, form or ("g" if isinstance(value, float) else ""))
