"""Make a table or a figure of a paper, beside what was published.

Run `python -m benchmarks.reproductions --paper rgp --table 2 --dataset cifar-10 --budget quick --json FILE`. `quick`
runs on two CPU cores in minutes, with smaller networks and fewer images than the paper's; `full` has the paper's sizes
and wants a GPU. Rows are added to the file. What a table lacks, or needs, is said below it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.reproductions.papers import (
    aggregator_costs,
    aggregators,
    datalens,
    loop_rows,
    pictures,
    private_steps,
    scores,
    small_epsilons,
    topagg_steps,
)
from benchmarks.reproductions.papers.accuracies import FOLDERS
from benchmarks.reproductions.papers.private_steps import Maker

TABLES: Mapping[tuple[str, str], Maker] = {
    **private_steps.TABLES,
    **aggregators.TABLES,
    **aggregator_costs.TABLES,
    **scores.TABLES,
    **topagg_steps.TABLES,
    ("datalens", "1"): datalens.table_1,
    ("datalens", "2"): small_epsilons.table_2,
}
FIGURES: Mapping[tuple[str, str], Maker] = {
    **private_steps.FIGURES,
    **aggregator_costs.FIGURES,
    **topagg_steps.FIGURES,
    **loop_rows.FIGURES,
    **pictures.FIGURES,
}
NEEDS: Mapping[tuple[str, str], str] = {
    **private_steps.NEEDS,
    ("datalens", "1"): datalens.NEEDS,
    ("datalens", "2"): small_epsilons.NEEDS,
    **dict.fromkeys(scores.TABLES, scores.NEEDS),
    ("datalens", "9"): topagg_steps.NEEDS,
}
# Options that some tables' makers take, and none of the figures', whose numbers are other ones.
FOR_TABLES: Mapping[str, set[tuple[str, str]]] = {
    "seeds": {("datalens", "1"), ("datalens", "2"), *scores.TABLES},
    "extractor": set(scores.TABLES),
}

# Sets of the papers that are in no package, with what DataLens' Table 1 has of itself at epsilon 1 and 10.
ABSENT: Mapping[str, str] = {
    "celeba-gender": "CelebA is in no package (published: 0.7058, 0.7287)",
    "celeba-hair": "CelebA is in no package (published: 0.6061, 0.6224)",
    "places365": "Places365 is in no package (published: 0.4313, 0.4875)",
    "svhn": "SVHN is in no package",
}


def main() -> None:
    """Make one table or figure, print its rows and, where asked, add them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paper", choices=sorted({paper for paper, _ in (*TABLES, *FIGURES)}), required=True)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--table")
    which.add_argument("--figure")
    parser.add_argument("--dataset", choices=sorted([*FOLDERS, *ABSENT]), default="cifar-10")
    parser.add_argument("--budget", choices=("quick", "full"), default="quick")
    parser.add_argument("--seeds", type=int, nargs="+", help="of DataLens' Tables 1 to 3 and 12; default: the budget's")
    parser.add_argument("--extractor", type=Path, help="TorchScript file of the usual Inception network, for scores")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.dataset in ABSENT:
        parser.error(f"not run: {ABSENT[options.dataset]}")
    makers, number = (TABLES, options.table) if options.table else (FIGURES, options.figure)
    key = (options.paper, number)
    if key not in makers:
        known = ", ".join(sorted(number for paper, number in makers if paper == options.paper))
        parser.error(
            (f"{NEEDS[key]} " if key in NEEDS and options.table else "") + f"Of {options.paper} there are {known}"
        )
    given = {name: value for name in FOR_TABLES if (value := getattr(options, name))}
    for name in given:
        if options.figure or key not in FOR_TABLES[name]:
            known = ", ".join(f"{paper} {number}" for paper, number in sorted(FOR_TABLES[name]))
            parser.error(f"--{name} is for {known}")
    rows = makers[key](options.dataset, options.budget, **given)
    for row in rows:
        print(line_of(row))
    if key in NEEDS and options.table:
        print(NEEDS[key])
    if options.json is not None:
        kept = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else []
        options.json.write_text(json.dumps([*kept, *rows], indent=1) + "\n", encoding="utf-8")


def line_of(row: Mapping[str, Any]) -> str:
    """Return a row as it is printed."""
    at = "" if row["epsilon"] is None else f" epsilon {row['epsilon']:g}"
    spread = "" if row["sd"] is None else f" +- {row['sd']:.2g}"
    published = "" if row["published"] is None else f" (published: {row['published']})"
    ours = "no figure" if row["ours"] is None else f"{row['ours']:.4g}"
    return f"{row['method']}{at}: {ours}{spread}{published}  [{row['setting']}; {row['seconds']:g} s]"


if __name__ == "__main__":
    main()
