"""Reproduce a table of a paper, next to the published figures.

Run `python -m benchmarks.reproductions --paper rgp --table 2 --dataset cifar-10 --budget quick --json FILE`. `quick`
takes minutes on two CPU cores, with smaller networks and fewer images than the papers; `full` has the papers' sizes
and needs a GPU. Rows are added to the file. SVHN, CelebA and Places365 are in no package.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from benchmarks.reproductions import classifiers, datalens
from benchmarks.reproductions.costs import freeze_densities, gep_4, rgp_1
from benchmarks.reproductions.rows import FOLDERS, Maker
from benchmarks.results import Results, Row, parser_of

TABLES: Mapping[tuple[str, str], Maker] = {  # paper, number
    **{key: functools.partial(classifiers.classifier_rows, *key) for key in classifiers.TABLES},
    ("gep", "4"): lambda _dataset, budget: gep_4(budget),
    ("rgp", "1"): lambda _dataset, budget: rgp_1(budget),
    ("rgp", "4"): classifiers.membership_rows,
    ("freeze", "2"): lambda _dataset, _budget: freeze_densities("2"),
    ("freeze", "9"): lambda _dataset, _budget: freeze_densities("9"),
    **{("datalens", number): maker for number, maker in datalens.TABLES.items()},
}
_SMALL_CNN = "the paper's CNN has 550,000 weights, ours 17,000"
NEEDS: Mapping[tuple[str, str], str] = {
    ("gep", "1"): "Anchors are public patterns, not ImageNet.",
    ("rgp", "2"): "full needs a GPU for about a day a row.",
    ("rgp", "4"): "Published for BERT on GLUE; here a small CNN on images.",
    **{("freeze", table): _SMALL_CNN for table in ("1", "3", "4")},
    **{("datalens", table): datalens.NEEDS for table in datalens.TABLES},
    ("datalens", "9"): classifiers.NEEDS,
}


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--paper", choices=sorted({paper for paper, _ in TABLES}), required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--dataset", choices=list(FOLDERS), default="cifar-10")
    parser.add_argument("--budget", choices=("quick", "full"), default="quick")
    parser.add_argument("--seeds", type=int, nargs="+", help="of DataLens' tables; default: the budget's")
    options = parser.parse_args(arguments)
    key = options.paper, options.table
    if key not in TABLES:
        known = ", ".join(number for paper, number in TABLES if paper == options.paper)
        parser.error(f"of {options.paper} there are tables {known}")
    results, more = Results(options.json), ()
    if options.seeds:
        if options.paper != "datalens" or options.table not in datalens.TABLES:
            parser.error(f"--seeds is for tables {', '.join(datalens.TABLES)} of datalens")
        more = (options.seeds,)
    for row in TABLES[key](options.dataset, options.budget, *more):
        print(line_of(row))
        results.put(row)
    print(NEEDS.get(key, ""))


def line_of(row: Row) -> str:
    """Return a row as it is printed."""
    at = "" if row["epsilon"] is None else f" epsilon {row['epsilon']:g}"
    deviation = "" if row["sd"] is None else f" +- {row['sd']:.2g}"
    published = "" if row["published"] is None else f" (published: {row['published']})"
    ours = "not run" if row["ours"] is None else f"{row['ours']:.4g}"
    return f"{row['method']}{at}: {ours}{deviation}{published}  [{row['setting']}; {row['seconds']:g} s]"


if __name__ == "__main__":
    main()
