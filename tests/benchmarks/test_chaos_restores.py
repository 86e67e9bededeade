"""Unit tests of the restore scenarios: one of them with the real service, and the checks that find a loss."""

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import chaos_restores, chaos_services
from benchmarks.chaos_restores import (
    OLDER_WITH_RECEIPTS,
    Outcome,
    World,
    holdings,
    prepare,
    proved_spending,
    refunds,
    run_scenario,
)
from service.storage.folder import FolderStorage
from service.storage.journals import Journal


@pytest.mark.slow
def test_nothing_is_lost_or_refunded_by_an_older_database(
    tmp_path: Path, warm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos_services, "_API", (warm, *chaos_services._API[1:]))
    monkeypatch.setattr(chaos_restores, "RELEASES", 1)
    template = World(tmp_path / "prepared")
    busy_seconds = prepare(template)
    place, dice = tmp_path / "scenario", random.Random(1)
    outcome = run_scenario(0, OLDER_WITH_RECEIPTS, template, template, place, dice, busy_seconds=busy_seconds)
    assert outcome.sound, outcome
    assert outcome.locked
    assert outcome.releases_before >= 2

    # The control: missing folders and spending that nothing proves are found.
    world = World(tmp_path / "control")
    shutil.copytree(template.folder, world.folder)
    assert refunds(world, proved_spending(world.data_dir)) == 0
    before = holdings(world.data_dir)
    shutil.rmtree(next((world.data_dir / "releases").glob("rel_*")))
    assert (before - holdings(world.data_dir)).total() == 1
    journal = Journal(FolderStorage(world.data_dir), "job_" + "a" * 20, 1, "acc_" + "a" * 20)
    journal.write(stage="votes", count=1, cost_nano=1)
    assert refunds(world, proved_spending(world.data_dir) | {"acc_" + "a" * 20: 1}) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"releases_after": 3},
        {"refunds_unseen": 1},
        {"refunds_accepted": 1},
        {"refunds_raised": 1},
        {"images_elsewhere": 1},
        {"works": False},
        {"locked": False},
        {"codes": []},
    ],
)
def test_a_scenario_is_sound_only_if_nothing_is_lost_and_the_lock_is_explained(changed: dict[str, Any]) -> None:
    sound = Outcome(0, OLDER_WITH_RECEIPTS, 4, 4, True, True, 0, 0, 0, 0, True, ["journal_ahead"], 1.0)
    assert sound.sound
    assert not replace(sound, **changed).sound
