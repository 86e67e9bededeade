"""Costs and densities: GEP 4, RGP 1, random freeze 2 and 9. Ours is measured or counted where papers have formulas."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gradient_memory import measure, network
from benchmarks.reproductions.rows import row_of
from benchmarks.results import Row, since, spread
from privacy.gradients.gep import orthonormal_basis
from privacy.plans.private_steps import FreezeSchedule

_REPEATS = 5
_STEPS_OF_AN_EPOCH = 50  # 50,000 images, batches of 1,000


def _row(paper: str, table: str, method: str, setting: str, ours: float, **found: Any) -> Row:
    return row_of(paper, table, method, None, None, setting, ours=ours, seeds=1, **found)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def gep_4(budget: str) -> list[Row]:
    """Cost of a single power iteration without and with parameter grouping: by the paper's formula, and by the clock.

    `ours` is the time over that without grouping, of pairs. `published` is the ratio of two formulas of the paper: 2 m
    k p + p k^2 and 2 m k p / g + p k^2 / g^2. Parameters and basis vectors are divided evenly, as these assume.
    """
    m, k, p, g = (200, 100, 20_000, 5) if budget == "quick" else (2000, 1000, 270_000, 5)
    generator = torch.Generator().manual_seed(0)
    anchors = torch.randn(m, p, generator=generator)
    parts = [part.contiguous() for part in anchors.split(p // g, dim=1)]
    pairs = [
        (
            _seconds(lambda: orthonormal_basis(anchors, k, generator)),
            _seconds(lambda: [orthonormal_basis(part, k // g, generator) for part in parts]),
        )
        for _ in range(_REPEATS)
    ]
    ratios = spread([grouped / whole for whole, grouped in pairs])
    formula = (2 * m * k * p / g + p * k**2 / g**2) / (2 * m * k * p + p * k**2)
    setting = f"m = {m}, k = {k}, p = {p}, g = {g}: time"
    whole, grouped = (round(statistics.median(seconds), 3) for seconds in zip(*pairs, strict=True))
    return [
        _row("gep", "4", "GEP", setting, 1.0, published=1.0, seconds=whole),
        row_of("gep", "4", "GEP+PG", None, None, setting, **ratios, published=formula, seconds=grouped),
    ]


def rgp_1(budget: str) -> list[Row]:
    """Memory of per-sample gradients of a WRN28-4, counted tensor by tensor: RGP's over DP-SGD's.

    `published` is the orders of growth, which name no constant.
    """
    records, rows = (4 if budget == "quick" else 64), []
    for rank in (1, 2, 4, 8):
        started = time.monotonic()
        found = measure(network(), records, rank)
        ratio = found["rgp"]["per_sample_bytes"] / found["dpsgd"]["per_sample_bytes"]
        setting = f"WRN28-4, {records} records, rank {rank}: bytes over DP-SGD's"
        rows.append(_row("rgp", "1", "RGP", setting, ratio, published="O(mrd) / O(md^2)", seconds=since(started)))
    return rows


# Method, r*, cooling epochs, epochs, epochs of the dense baseline, published total density.
_DENSITIES = (
    ("2", "End-to-end CNN", 0.7, 40, 40, 40, 0.65),
    ("2", "Handcrafted CNN", 0.6, 80, 80, 80, 0.7),
    ("2", "GEP", 0.4, 200, 200, 200, 0.8),
    ("2", "DP-Transfer Learning", 0.7, 50, 50, 50, 0.65),
    ("9", "Adjusted End-to-end CNN, epsilon 3", 0.9, 40, 60, 40, 0.6),
    ("9", "Adjusted End-to-end CNN, epsilon 7.53", 0.9, 80, 100, 80, 0.58),
)


def freeze_densities(table: str) -> list[Row]:
    """Total densities (Tables 2 and 9), which follow from the schedule alone.

    Those of Table 9 are of more epochs than the dense baseline's, over whose gradients the paper counts.
    """
    rows = []
    for at, method, rate, cooling, epochs, dense, published in _DENSITIES:
        if at == table:
            schedule = FreezeSchedule(rate, cooling * _STEPS_OF_AN_EPOCH, _STEPS_OF_AN_EPOCH)
            density = schedule.density(epochs * _STEPS_OF_AN_EPOCH) * epochs / dense
            setting = f"r* = {rate}, e* = {cooling}, {epochs} epochs over {dense} dense ones: total density"
            rows.append(_row("freeze", table, method, setting, density, published=published))
    return rows
