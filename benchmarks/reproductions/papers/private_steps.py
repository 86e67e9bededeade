"""The tables of GEP, RGP and random freeze: which function makes which, on which sets, and what cannot be made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from benchmarks.reproductions.papers.accuracies import FREEZE_1, FREEZE_3, FREEZE_4, GEP_1, RGP_2, accuracy_rows
from benchmarks.reproductions.papers.costs import freeze_densities, gep_4, rgp_1
from benchmarks.reproductions.papers.gradients import gradient_rows
from benchmarks.reproductions.papers.linear_rows import linear_rows
from benchmarks.reproductions.papers.membership import membership_rows
from benchmarks.reproductions.papers.rows import Row
from benchmarks.reproductions.papers.text_rows import sentence_rows

Maker = Callable[[str, str], list[Row]]  # (data set, quick or full) -> rows
_ACCURACIES = {
    ("gep", "1"): GEP_1,
    ("rgp", "2"): RGP_2,
    ("freeze", "1"): FREEZE_1,
    ("freeze", "3"): FREEZE_3,
    ("freeze", "4"): FREEZE_4,
}
TABLES: Mapping[tuple[str, str], Maker] = {
    **{key: functools.partial(accuracy_rows, *key, arms) for key, arms in _ACCURACIES.items()},
    ("gep", "3"): linear_rows,
    ("gep", "4"): lambda _dataset, budget: gep_4(budget),
    ("rgp", "1"): lambda _dataset, budget: rgp_1(budget),
    ("rgp", "3"): lambda _dataset, budget: sentence_rows(budget),
    ("rgp", "4"): membership_rows,
    ("freeze", "2"): lambda _dataset, _budget: freeze_densities("2"),
    ("freeze", "9"): lambda _dataset, _budget: freeze_densities("9"),
}
FIGURES: Mapping[tuple[str, str], Maker] = {("gep", figure): gradient_rows for figure in ("4", "5", "7")}
# What a table cannot be compared with, or needs, said beside its rows.
NEEDS: Mapping[tuple[str, str], str] = {
    ("gep", "1"): "SVHN cannot be had as a package; full needs a GPU for some hours a row, and its anchors are public "
    "patterns, not ImageNet; PATE's rows are data-dependent",
    ("gep", "3"): "features of a ResNet152 trained by SimCLR cannot be had: scattering coefficients in their place",
    ("rgp", "2"): "SVHN cannot be had as a package; full needs a GPU for about a day a row",
    ("rgp", "3"): "published on BERT and SST-2, which cannot be had as packages: a small transformer over public word "
    "vectors on movie reviews in their place, whatever --dataset says",
    ("rgp", "4"): "published on BERT and GLUE, which cannot be had as packages: a small CNN on images in their place",
    ("freeze", "1"): "the paper's CNN has 550,000 weights, ours 17,000; its rows on SimCLR features need weights that "
    "cannot be had, those on ScatterNet and GEP stand in `reproductions.orders` with fewer steps",
    ("freeze", "3"): "the paper's CNN has 550,000 weights, ours 17,000",
    ("freeze", "4"): "the paper's CNN has 550,000 weights, ours 17,000",
}
