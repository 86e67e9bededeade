"""TopAgg's public parameters: validation, sensitivity and price."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest

from privacy.accounting.filter import open_filter
from privacy.aggregation.topagg_config import TopAggConfig
from privacy.errors import InvalidParameter

PAPER: dict[str, Any] = {"k": 200, "c": 1e-5, "stddev": 5000.0, "beta": 0.7, "teachers": 4000, "dimension": 784}


@pytest.mark.parametrize("k", [1, 2, 3, 200, 350, 784])
def test_sensitivity_is_twice_the_root_of_k_rounded_up(k: int) -> None:
    sensitivity = TopAggConfig(**{**PAPER, "k": k}).sensitivity
    assert Fraction(sensitivity) ** 2 >= 4 * k
    assert sensitivity == pytest.approx(2 * math.sqrt(k), rel=1e-15)


def test_without_the_top_k_step_a_teacher_pays_for_every_coordinate() -> None:
    full = TopAggConfig(**PAPER, top_k=False)
    assert full.votes_max == 784
    assert full.sensitivity == pytest.approx(2 * math.sqrt(784))


def test_the_papers_setting_buys_2245_images() -> None:
    account = open_filter(1.0, 1e-5)
    cfg = TopAggConfig(**PAPER)
    assert account.capacity_nano // account.price_nano(cfg.event(1)) == 2217
    assert account.price_nano(cfg.event(30)) == 30 * account.price_nano(cfg.event(1))


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("k", 0),
        ("k", 785),
        ("k", 1.5),
        ("k", True),
        ("teachers", 0),
        ("teachers", 1 << 21),
        ("dimension", 0),
        ("c", 0.0),
        ("c", 1e-40),
        ("c", math.nan),
        ("stddev", -1.0),
        ("stddev", math.inf),
        ("beta", 0.0),
        ("beta", 1.1),
    ],
)
def test_parameters_out_of_range_are_refused(name: str, bad: object) -> None:
    with pytest.raises(InvalidParameter) as caught:
        TopAggConfig(**{**PAPER, name: bad})
    assert caught.value.name in (name, "k")


def test_noise_too_narrow_for_integers_has_no_event() -> None:
    with pytest.raises(InvalidParameter):
        TopAggConfig(**{**PAPER, "stddev": 1.5}).event(1)
