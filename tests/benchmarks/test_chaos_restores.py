"""The drills of loss: one of them, from a real service to its restart, and what the benchmark would call a loss."""

import random
import shutil
from pathlib import Path

import pytest

from benchmarks import chaos_services
from benchmarks.chaos_restores import Drill, World, holdings, judge, prepare, run_drill
from service.storage.folder import FolderStorage
from service.storage.journals import Journal


@pytest.mark.slow
def test_what_was_paid_for_survives_a_forgotten_database(
    tmp_path: Path, warm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos_services, "_API", (warm, *chaos_services._API[1:]))
    template = World(tmp_path / "prepared")
    busy_seconds = prepare(template)
    dice = random.Random(1)
    drill = run_drill(0, "no database", template, template, tmp_path / "drill", dice, busy_seconds=busy_seconds)
    assert drill.sound, drill
    assert (drill.end, drill.releases_after) == ("says", drill.releases_before)
    assert drill.releases_before >= 4
    assert "installation_mismatch" in drill.said

    # The control: folders that are gone, and spending that nothing says, are seen.
    world = World(tmp_path / "control")
    shutil.copytree(template.folder, world.folder)
    before = holdings(world.data_dir)
    codes, short = judge(world, None, {})
    assert (codes, short) == ([], 0)
    shutil.rmtree(next((world.data_dir / "releases").glob("rel_*")))
    assert (before - holdings(world.data_dir)).total() == 1
    journal = Journal(FolderStorage(world.data_dir), "job_" + "a" * 20, 1)
    journal.write(stage="votes", count=1, price_nano=1)
    assert judge(world, None, {"acc_" + "a" * 20: 1}) == ([], 2)


@pytest.mark.parametrize(
    ("after", "unseen", "end", "sound"),
    [
        (4, 0, "works", True),
        (4, 0, "says", True),
        (3, 0, "works", False),
        (4, 1, "works", False),
        (4, 0, "neither", False),
    ],
)
def test_a_drill_is_sound_only_if_nothing_is_lost_and_somebody_says_so(
    after: int, unseen: int, end: str, sound: bool
) -> None:
    assert Drill(0, "kill", 4, after, unseen, end, [], 1.0).sound is sound
