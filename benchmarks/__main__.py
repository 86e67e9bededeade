"""Run every benchmark, one after another: `python -m benchmarks`, or `make bench`.

`quick` asks each for the least that its page still covers, with one seed; all of it takes about an hour on two CPU
cores. `full` asks for what the pages in docs/research were made with: most of a day. Failures and timeouts are listed
at the end; the other benchmarks run all the same.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

Arguments = tuple[str, ...]
# By benchmark: quick, and full where that is not what it does without arguments. {folder} is where figures go.
RUNS: Mapping[str, tuple[Arguments, Arguments]] = {
    "accounting": ((), ()),
    "api": (("--quick", "--databases", "sqlite"), ()),
    "canary_audit": (("--epsilons", "1", "--effort", "1"), ()),
    "chaos": (("--mode", "embedded", "--kills", "3"), ()),
    "crowd": ((), ()),
    "dpsgd_throughput": (("--rounds", "2", "--seconds", "60"), ()),
    "drawing": (("--epsilons", "1", "--seeds", "0", "--samples", "1000"), ()),
    "float_safety": (("--units", "1000", "--clips", "1", "--estimators", "dpsgd"), ()),
    "gradient_memory": ((), ()),
    "in_pieces": (
        ("--job", "dpimagebench_fashion_1", "--folder", "{folder}/dpimagebench_fashion", "--minutes", "1"),
        ("--job", "diffusion_fashion_1", "--folder", "{folder}/diffusion_fashion", "--minutes", "60"),
    ),
    "intake": (("--sample", "4"), ()),
    "ledger": (("--quick", "--databases", "sqlite"), ()),
    "membership_inference": (("--members", "500", "--epochs", "10"), ()),
    "previews": (("--datasets", "digits"), ()),
    "utility": (("--suite", "small_folders", "--datasets", "digits", "--epsilons", "10", "--seeds", "1"), ()),
    "reproductions": (
        ("--paper", "gep", "--table", "4"),
        ("--paper", "datalens", "--table", "1", "--dataset", "fashion-mnist"),
    ),
    "reproductions.orders": (
        ("--setup", "fashion-mnist, small CNN", "--methods", "dpsgd", "dpsgd without noise", "--seeds", "0"),
        (),
    ),
}
_WITHOUT_JSON = ("in_pieces",)  # keeps its figures in its folder
_MINUTES = {"quick": 30.0, "full": 600.0}  # of one benchmark, on a shared machine


def command(name: str, budget: str, folder: Path) -> list[str]:
    """Return the command line of a benchmark."""
    quick, full = RUNS[name]
    chosen = [part.format(folder=folder) for part in (quick if budget == "quick" else full)]
    kept = [] if name in _WITHOUT_JSON else ["--json", str(folder / f"{name}.json")]
    return [sys.executable, "-m", f"benchmarks.{name}", *chosen, *kept]


def run(names: Sequence[str], budget: str, folder: Path, minutes: float) -> dict[str, str]:
    """Run benchmarks and return the error of each, "" if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    ended = {}
    for name in names:
        line = command(name, budget, folder)
        print(f"== {' '.join(line[1:])}", flush=True)
        started = time.monotonic()
        try:
            code = subprocess.run(line, timeout=60 * minutes, check=False).returncode
            ended[name] = f"exit status {code}" if code else ""
        except subprocess.TimeoutExpired:
            ended[name] = f"stopped after {minutes:g} minutes"
        print(f"== {name}: {ended[name] or 'done'}, {time.monotonic() - started:.0f} s", flush=True)
    return ended


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", choices=list(_MINUTES), default="quick")
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--folder", type=Path, default=Path("var/benchmarks"), help="where figures go")
    parser.add_argument("--minutes", type=float, help="of one benchmark at most; default: 30, or 600 in full")
    given = parser.parse_args(arguments)
    ended = run(given.only, given.budget, given.folder, given.minutes or _MINUTES[given.budget])
    bad = {name: how for name, how in ended.items() if how}
    print(f"{len(ended) - len(bad)} of {len(ended)} benchmarks succeeded", flush=True)
    for name, how in bad.items():
        print(f"  {name}: {how}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
