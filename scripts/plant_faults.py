"""Plant one fault per guarantee in a copy of the tree, and check that the named tests catch it.

    python -m scripts.plant_faults [--only WORD ...]

Prints the table of docs/research/guarantees.md. The exit status is 1 if tests miss a fault or fail without it. It is
also 1 if the lines that a fault replaces do not occur exactly once. planted_faults.txt contains the faults.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FAULTS = Path(__file__).with_name("planted_faults.txt")
SECONDS_MAX = 900.0  # timeout of one test run


@dataclass
class Planted:
    """A fault: in `file`, replace `before` with `after`. `tests` are arguments for pytest; one test must fail."""

    guarantee: str
    fault: str
    file: str = ""
    tests: str = ""
    before: str = ""
    after: str = ""


def read_faults(text: str) -> list[Planted]:
    """Parse `planted_faults.txt`: a title, a file, tests, and lines to remove (-) and add (+), as in a diff."""
    faults: list[Planted] = []
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "#":
            faults.append(Planted(*rest.split(" | ")))
        elif kind in ("file", "tests"):
            setattr(faults[-1], kind, rest.strip())
        elif kind in ("-", "+"):
            name = "before" if kind == "-" else "after"
            setattr(faults[-1], name, f"{getattr(faults[-1], name)}{rest}\n")
    return faults


def copied_tree(folder: Path) -> None:
    """Copy the files tracked by git, with uncommitted changes."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file() and not name.startswith("docs/images/"):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)


def run_tests(folder: Path, tests: str) -> tuple[int, str]:
    """Run tests in the copy; return pytest's exit status, and the id of the first failed test or the output."""
    command = f"{sys.executable} -m pytest -q -x -n 0 -p no:cacheprovider {tests}"
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX
    )
    failed = re.search(r"^(?:FAILED|ERROR) (\S+::\w+(?:\[.*?\])?)", done.stdout, flags=re.MULTILINE)
    return done.returncode, failed[1] if failed else (done.stdout + done.stderr)[-600:]


def plant(folder: Path, planted: Planted) -> str:
    """Apply a fault, run its tests and undo it; return the id of the test that caught it, or an error message."""
    file = folder / planted.file
    text = file.read_text("utf-8") if file.exists() else ""
    before, after = planted.before.removesuffix("\n"), planted.after.removesuffix("\n")
    if text.count(before) != 1:
        return f"THE LINES TO REPLACE DO NOT OCCUR EXACTLY ONCE in {planted.file}: {before!r}"
    file.write_text(text.replace(before, after), "utf-8")
    try:
        status, said = run_tests(folder, planted.tests)
    finally:
        file.write_text(text, "utf-8")
    return said if status == 1 else "MISSED" if status == 0 else f"DID NOT RUN: {said}"


def main() -> int:
    """Plant the chosen faults and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="words of the guarantees whose faults to plant")
    given = parser.parse_args()
    caught: list[str] = []
    bad = 0
    sys.stdout.write("| guarantee | planted fault | caught by |\n|---|---|---|\n")
    with tempfile.TemporaryDirectory(prefix="obscura-faults-") as name:
        copied_tree(Path(name))
        for planted in read_faults(FAULTS.read_text("utf-8")):
            if any(word in planted.guarantee for word in given.only):
                started, verdict = time.monotonic(), plant(Path(name), planted)
                found = re.fullmatch(r"\S+::(\w+)(?:\[.*\])?", verdict)
                caught += [verdict] if found else []
                bad += not found
                shown = f"`{found[1]}`" if found else verdict
                sys.stdout.write(f"| {planted.guarantee} | {planted.fault} | {shown} |\n")
                sys.stdout.flush()
                sys.stderr.write(f"  {time.monotonic() - started:.0f} s\n")
        status, said = run_tests(Path(name), shlex.join(caught)) if caught else (0, "")
        if status != 0:
            sys.stdout.write(f"This test also fails without a fault: {said}\n")
    return 1 if bad or status else 0


if __name__ == "__main__":
    sys.exit(main())
