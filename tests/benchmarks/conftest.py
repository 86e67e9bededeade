"""Small folders in place of public data sets, and plans for them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.small_data import Folder
from privacy.accounting.filter import open_filter
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import build_plan

FACTS = {
    name: PublicFacts(tuple("abcdefghij")[:classes], side, side, channels, records, "record")
    for name, classes, side, channels, records in (
        ("digits", 10, 28, 1, 1437),
        ("fashion", 10, 28, 1, 60_000),
        ("fashion_3000", 10, 28, 1, 3000),
        ("fashion_10000", 10, 28, 1, 10_000),
        ("fashion_55000", 10, 28, 1, 55_000),
        ("emoji", 9, 64, 3, 3178),
        ("cifar10", 10, 32, 3, 50_000),
        ("cifar10_5000", 10, 32, 3, 5000),
        ("cifar10_45000", 10, 32, 3, 45_000),
    )
}


def planned(recipe: str, options: Mapping[str, Any], dataset: str, epsilon: float, delta: float) -> Plan:
    """Return the plan of a training, which spends nearly all of its account."""
    account = open_filter(epsilon, delta)
    plan = build_plan(recipe, options, account, account.capacity_nano, FACTS[dataset])
    assert 0.9 * plan.budget_nano < plan.cost_nano <= plan.budget_nano
    return plan


def bright_rows(n: int = 240, classes: int = 3, side: int = 8) -> Folder:
    """Return grey images, each with one bright row that tells its class."""
    labels = np.arange(n) % classes
    images = np.random.default_rng(0).integers(0, 60, (n, side, side)).astype(np.uint8)
    images[np.arange(n), (2 * labels + 1) % side] = 250
    names = tuple("abcdefghij"[:classes])
    return Folder(images, labels.astype(np.int64), images[: n // 4], labels[: n // 4].astype(np.int64), names)


def light_and_dark(colour: bool = True) -> Folder:
    """Return 100 images of two classes, light and dark, and 20 for tests."""
    rng, labels = np.random.default_rng(0), np.arange(120, dtype=np.int64) % 2
    images = (rng.integers(0, 100, (120, 8, 8, 3)) + 150 * labels[:, None, None, None]).astype(np.uint8)
    images = images if colour else images[..., 0]
    return Folder(images[:100], labels[:100], images[100:], labels[100:], ("dark", "light"))
