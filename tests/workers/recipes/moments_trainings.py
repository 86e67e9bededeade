"""The recipe on 1,797 digits, and a budget and a progress that list what they are told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from privacy.accounting.events import GaussianEvent
from privacy.accounting.filter import open_filter
from privacy.errors import BudgetExceeded
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import build_plan
from service.storage.folder import FolderStorage
from workers.recipes.interface import Cancelled
from workers.train.orders import SealedFolder

FACTS = PublicFacts(tuple("0123456789"), 8, 8, 1, 1797, "record")
ACCOUNT = open_filter(1.0, 1e-5)
SECRET = b"0123456789abcdef0123456789abcdef"


class Purse:
    """A budget that lists its charges and refuses the stages in `closed`."""

    def __init__(self, closed: tuple[str, ...] = ()) -> None:
        self.closed = closed
        self.paid: list[tuple[str, GaussianEvent]] = []

    def charge(self, event: GaussianEvent, stage: str) -> None:
        if stage in self.closed:
            raise BudgetExceeded(event.count, 0)
        self.paid.append((stage, event))

    @property
    def counts(self) -> list[tuple[str, int]]:
        return [(stage, event.count) for stage, event in self.paid]

    def releases_paid(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for stage, event in self.paid:
            total[stage] += event.count
        return total


class Reports:
    """Progress that lists what it is told and asks to stop at one of the reports."""

    def __init__(self, stop_at: tuple[str, int] | None = None) -> None:
        self.stop_at, self.told = stop_at, list[tuple[str, int, int]]()

    def __call__(self, *, stage: str, step: int, steps: int) -> None:
        self.told.append((stage, step, steps))
        if (stage, step) == self.stop_at:
            raise Cancelled


def work_in(directory: Path) -> SealedFolder:
    return SealedFolder(FolderStorage(directory), "work", bytes(32), "test")


def plan(facts: PublicFacts = FACTS, **options: Any) -> Plan:
    small = {"components": 10, "frequencies": 6, "mean_share": 0.1, "pooled_share": 0.45, "class_share": 0.45}
    return build_plan("moments", {**small, "texture": False, **options}, ACCOUNT, ACCOUNT.capacity_nano, facts)
