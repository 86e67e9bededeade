"""Reproduce a table or figure of a paper, next to the published figures.

Run `python -m benchmarks.reproductions --paper rgp --table 2 --dataset cifar-10 --budget quick --json FILE`. `quick`
takes minutes on two CPU cores, with smaller networks and fewer images than the papers; `full` has the papers' sizes
and needs a GPU. Rows are added to the file.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from benchmarks.reproductions import datalens, scores, topagg_steps
from benchmarks.reproductions.accuracies import FREEZE_1, FREEZE_3, FREEZE_4, GEP_1, RGP_2, accuracy_rows
from benchmarks.reproductions.costs import freeze_densities, gep_4, rgp_1
from benchmarks.reproductions.gradients import gradient_rows
from benchmarks.reproductions.linear_rows import linear_rows
from benchmarks.reproductions.membership import membership_rows
from benchmarks.reproductions.rows import FOLDERS, Maker
from benchmarks.results import Results, Row, parser_of

Key = tuple[str, str]  # paper, number
_ACCURACIES = {
    ("gep", "1"): GEP_1,
    ("rgp", "2"): RGP_2,
    ("freeze", "1"): FREEZE_1,
    ("freeze", "3"): FREEZE_3,
    ("freeze", "4"): FREEZE_4,
}
TABLES: Mapping[Key, Maker] = {
    **{key: functools.partial(accuracy_rows, *key, arms) for key, arms in _ACCURACIES.items()},
    ("gep", "3"): linear_rows,
    ("gep", "4"): lambda _dataset, budget: gep_4(budget),
    ("rgp", "1"): lambda _dataset, budget: rgp_1(budget),
    ("rgp", "4"): membership_rows,
    ("freeze", "2"): lambda _dataset, _budget: freeze_densities("2"),
    ("freeze", "9"): lambda _dataset, _budget: freeze_densities("9"),
    ("datalens", "1"): datalens.table_1,
    ("datalens", "2"): datalens.table_2,
    **scores.TABLES,
    **topagg_steps.TABLES,
}
FIGURES: Mapping[Key, Maker] = {
    **{("gep", figure): gradient_rows for figure in ("4", "5", "7")},
    ("datalens", "3"): topagg_steps.table_8,  # draws Table 8
    ("datalens", "4"): datalens.figure_4,
}
_SMALL_CNN = "the paper's CNN has 550,000 weights, ours 17,000"
NEEDS: Mapping[Key, str] = {
    ("gep", "1"): "Not on SVHN, which is in no package; anchors are public patterns, not ImageNet.",
    ("gep", "3"): "Scattering coefficients replace the features of a ResNet152 trained by SimCLR.",
    ("rgp", "2"): "Not on SVHN, which is in no package; full needs a GPU for about a day a row.",
    ("rgp", "4"): "Published for BERT on GLUE; here a small CNN on images.",
    **{("freeze", table): _SMALL_CNN for table in ("1", "3", "4")},
    **{("datalens", table): datalens.NEEDS for table in ("1", "2")},
    **dict.fromkeys(scores.TABLES, scores.NEEDS),
    ("datalens", "9"): topagg_steps.NEEDS,
}
ELSEWHERE: Mapping[Key, str] = {
    **{("datalens", table): f"run benchmarks.datalens_loop --table {table}" for table in ("4", "7")},
    **{("datalens", table): "of other aggregators, no longer run (docs/research/README.md)" for table in ("5", "6")},
    ("rgp", "3"): "published for BERT on GLUE, which are in no package; no longer run on a substitute",
}
FOR_TABLES: Mapping[str, set[Key]] = {
    "seeds": {("datalens", "1"), ("datalens", "2"), *scores.TABLES},
    "extractor": set(scores.TABLES),
}
# With DataLens' published Table 1 accuracy at epsilon 1 and 10.
ABSENT: Mapping[str, str] = {
    "celeba-gender": "CelebA is in no package (published: 0.7058, 0.7287)",
    "celeba-hair": "CelebA is in no package (published: 0.6061, 0.6224)",
    "places365": "Places365 is in no package (published: 0.4313, 0.4875)",
    "svhn": "SVHN is in no package",
}


def main() -> None:
    """Make one table or figure, print its rows and, where asked, add them to a file."""
    parser = parser_of(__doc__)
    parser.add_argument("--paper", choices=sorted({paper for paper, _ in (*TABLES, *FIGURES)}), required=True)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--table")
    which.add_argument("--figure")
    parser.add_argument("--dataset", choices=sorted([*FOLDERS, *ABSENT]), default="cifar-10")
    parser.add_argument("--budget", choices=("quick", "full"), default="quick")
    parser.add_argument("--seeds", type=int, nargs="+", help="of DataLens' Tables 1 to 3 and 12; default: the budget's")
    parser.add_argument("--extractor", help="TorchScript file of the usual Inception network, for scores")
    options = parser.parse_args()
    if options.dataset in ABSENT:
        parser.error(f"not run: {ABSENT[options.dataset]}")
    makers, number = (TABLES, options.table) if options.table else (FIGURES, options.figure)
    key = (options.paper, number)
    if key not in makers:
        known = ", ".join(sorted(number for paper, number in makers if paper == options.paper))
        parser.error(f"{ELSEWHERE[key]}" if options.table and key in ELSEWHERE else f"of {options.paper}: {known}")
    given = {name: value for name in FOR_TABLES if (value := getattr(options, name))}
    for name in given:
        if options.figure or key not in FOR_TABLES[name]:
            known = ", ".join(f"{paper} {number}" for paper, number in sorted(FOR_TABLES[name]))
            parser.error(f"--{name} is for {known}")
    results = Results(options.json)
    for row in makers[key](options.dataset, options.budget, **given):
        print(line_of(row))
        results.put(row)
    if options.table and key in NEEDS:
        print(NEEDS[key])


def line_of(row: Row) -> str:
    """Return a row as it is printed."""
    at = "" if row["epsilon"] is None else f" epsilon {row['epsilon']:g}"
    deviation = "" if row["sd"] is None else f" +- {row['sd']:.2g}"
    published = "" if row["published"] is None else f" (published: {row['published']})"
    ours = "not run" if row["ours"] is None else f"{row['ours']:.4g}"
    return f"{row['method']}{at}: {ours}{deviation}{published}  [{row['setting']}; {row['seconds']:g} s]"


if __name__ == "__main__":
    main()
