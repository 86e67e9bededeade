"""The recipe on 1,797 digits, and a budget and a progress that list what they are told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from privacy.accounting.events import GaussianEvent
from privacy.accounting.filter import open_filter
from privacy.errors import BudgetExceeded
from privacy.plans.datalens.plan import VOTES
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import build_plan
from service.storage.folder import FolderStorage
from tests.workers.small_trainings import TINY_DATALENS as TINY
from workers.recipes.interface import Cancelled
from workers.train.checkpoints import SealedFolder

FACTS = PublicFacts(tuple("0123456789"), 8, 8, 1, 1797, "record")
ACCOUNT = open_filter(1.0, 1e-5)
SECRET = b"0123456789abcdef0123456789abcdef"


class Purse:
    """A budget that lists its charges, pays for `images` aggregated images, and refuses the stages in `closed`."""

    def __init__(self, images: int = 10**6, closed: tuple[str, ...] = ()) -> None:
        self.images, self.closed = images, closed
        self.paid: list[tuple[str, GaussianEvent]] = []

    def charge(self, event: GaussianEvent, stage: str) -> None:
        if stage in self.closed or (stage == VOTES and event.count > self.images):
            raise BudgetExceeded(event.count, self.images)
        self.images -= event.count if stage == VOTES else 0
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
    return build_plan("datalens", {**TINY, **options}, ACCOUNT, ACCOUNT.capacity_nano, facts)


def start_alone(**options: Any) -> Plan:
    small = {name: TINY[name] for name in ("components", "frequencies", "mean_share", "pooled_share", "class_share")}
    return build_plan("moments", {**small, **options}, ACCOUNT, ACCOUNT.capacity_nano, FACTS)
