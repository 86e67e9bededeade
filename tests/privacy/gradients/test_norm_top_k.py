"""NormTopK keeps the largest coordinates as long as they fit, found by adding up and by sorting alike."""

from __future__ import annotations

import math

import pytest
import torch

from privacy.gradients.integers import squares
from privacy.gradients.topagg import norm_top_k


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
def test_norm_top_k_keeps_the_longest_prefix_of_the_sorted_squares(keep: float) -> None:
    generator = torch.Generator().manual_seed(7)
    rows = torch.randn(70, 300, generator=generator) * torch.logspace(-6, 3, 70)[:, None]
    rows[3] = 0.0
    rows[4, 1:] = 0.0  # one coordinate carries everything: it does not fit
    kept = norm_top_k(rows.clone(), keep, squares(rows))
    for row, found in zip(rows, kept, strict=True):
        square = row.square().double()
        order = torch.argsort(square, descending=True, stable=True)
        fits = square[order].cumsum(0) <= keep * square.sum()
        expected = torch.zeros_like(row)
        expected[order[fits]] = row[order[fits]]
        assert torch.equal(found != 0, expected != 0)
        assert torch.equal(found, expected)
    assert torch.equal(norm_top_k(rows, 1.0, squares(rows)), rows)


@pytest.mark.parametrize(
    "kind", ["normal", "heavy tails", "mostly zero", "few values", "all equal", "one is nearly all"]
)
@pytest.mark.parametrize("keep", [0.1, 0.8, 0.99])
def test_norm_top_k_of_long_rows_adds_up_and_leaves_out_what_sorting_does(kind: str, keep: float) -> None:
    """Too long to be sorted; the squared norms are added in float32, so the last that fits may be another."""
    d, generator = 40_000, torch.Generator().manual_seed(0)
    row = torch.randn(d, generator=generator)
    if kind == "heavy tails":
        row *= torch.randn(d, generator=generator).mul(2).exp()
    if kind == "mostly zero":
        row *= torch.rand(d, generator=generator) < 0.1
    if kind == "few values":
        row = row.mul(3).round()
    if kind == "all equal":
        row = torch.ones(d)
    if kind == "one is nearly all":
        row[77] = 1e4
    kept = norm_top_k(row[None].clone(), keep, squares(row[None]))[0]
    mass = float(row.double().square().sum())
    assert float(kept.double().square().sum()) <= keep * mass * (1 + 2.0**-20)
    assert torch.equal(kept[kept != 0], row[kept != 0])
    left_out = row[kept == 0].abs()
    smallest = float(kept[kept != 0].abs().min()) if bool((kept != 0).any()) else math.inf
    assert smallest > float(left_out.max())
    next_ones = row.double().square()[row.abs() == left_out.max()].sum()
    assert float(kept.double().square().sum() + next_ones) > keep * mass * (1 - 2.0**-20)
