"""A preview carries out the plan on public images: it holds nothing, charges nothing and opens nothing private."""

import shutil
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import undefer

from obscura.wire.words import DatasetState, JobState
from privacy.plans.plan import PublicFacts
from service.datasets.vault import Vault
from service.db.dataset_tables import Dataset
from service.db.job_tables import FailureCode, Preview
from service.db.session import transaction
from service.jobs.kinds.preview import show
from service.storage.interface import key_of
from tests.workers.conftest import OPTIONS
from tests.workers.small_trainings import FACTS, SMALL, digits, plan_of, stop_at, work
from workers.evaluation import utility
from workers.recipes.interface import Cancelled
from workers.recipes.registry import TRAINERS
from workers.supervise.attempts import ExitStatus
from workers.train.kinds import preview as previewing
from workers.train.kinds.preview import find_stand_in, forecast


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few images are drawn and learned: what classifiers learn is tested elsewhere."""
    monkeypatch.setattr(previewing, "SAMPLES", 200)
    monkeypatch.setattr(previewing, "EPOCHS", 2)
    monkeypatch.setenv("OBSCURA_FASHION_MNIST", "/nowhere")


def ask(workshop: Any, **changes: Any) -> str:
    facts = {"dataset_id": workshop.dataset_id, "recipe": "datalens", "epsilon": 1.0, "options": OPTIONS}
    facts |= {"stand_in_dataset_id": workshop.public_id}
    return str(workshop.submit("preview", **facts | changes))


def test_a_preview_neither_pays_nor_opens_private_images(workshop):
    before, logged = workshop.balance(), len(workshop.entries())
    Vault.of(workshop.settings).key_path(workshop.dataset_id).unlink()
    shutil.rmtree(workshop.settings.data_dir / key_of(workshop.dataset_id))

    job_id = ask(workshop)
    work(workshop, job_id)
    job = workshop.job(job_id)
    with transaction(workshop.factory, read_only=True) as session:
        found = select(Preview).where(Preview.job_id == job_id).options(undefer(Preview.grid))
        preview = session.scalars(found).one()
    assert (job.state, job.hold_id, job.release_id) == (JobState.SUCCEEDED, None, None)
    assert (preview.results["stand_in"], preview.results["chance"]) == ("digits", 0.1)
    assert 0 <= preview.results["accuracy"] <= 1 >= preview.results["real"] >= 0
    assert preview.grid.startswith(b"\x89PNG")
    assert workshop.balance() == before
    assert len(workshop.entries()) == logged


def test_the_grid_can_be_seen_before_anything_is_measured(workshop, monkeypatch):
    def seen(*_: Any, **__: Any) -> Any:
        with transaction(workshop.factory, read_only=True) as session:
            preview = session.scalars(select(Preview).options(undefer(Preview.grid))).one()
            record = show(preview, workshop.job(job_id))
        assert preview.grid.startswith(b"\x89PNG")
        assert (record.grid_ready, record.accuracy, record.finished_at) == (True, None, None)
        raise Cancelled

    monkeypatch.setattr(previewing, "train_and_test", seen)
    job_id = ask(workshop)
    with transaction(workshop.factory, read_only=True) as session:
        assert not show(session.scalars(select(Preview)).one(), workshop.job(job_id)).grid_ready
    assert workshop.work(job_id, TRAINERS) == ExitStatus.INTERRUPTED  # by `seen`, after its assertions


def test_a_stand_in_that_is_gone_is_named_as_the_reason(workshop):
    job_id = ask(workshop)
    with transaction(workshop.factory) as session:
        session.get_one(Dataset, workshop.public_id).state = DatasetState.DELETED
    shutil.rmtree(workshop.settings.data_dir / key_of(workshop.public_id))
    work(workshop, job_id)
    assert workshop.job(job_id).failure_code is FailureCode.DATASET_UNAVAILABLE


@pytest.mark.parametrize("recipe", ["datalens", "dp_classifier", "dp_diffusion", "dpgan"])
def test_every_recipe_that_makes_something_to_look_at_has_a_forecast(recipe):
    grids = list[bytes]()
    plan, stand_in = plan_of(recipe, SMALL[recipe]), find_stand_in(FACTS)
    found = forecast(plan, FACTS, stand_in, TRAINERS[recipe], publish=grids.append)
    assert found.stand_in == "written characters"
    generates = recipe != "dp_classifier"
    assert (found.real is not None, len(grids)) == (generates, int(generates))
    assert 0 <= found.accuracy <= 1


def test_of_a_rare_class_a_preview_tells_that_it_is_not_recognised():
    """20 records of 4,020: over all classes nothing would be noticed.

    The noise is new in each run: in 20 runs at least 0.27 lay between the two balanced accuracies.
    """
    facts = PublicFacts(("normal", "sick"), 16, 16, 1, 4020, "record")
    found = {}
    for shares in ("", "4000,20"):
        plan = plan_of("moments", {"class_fractions": shares} if shares else {}, facts=facts, epsilon=4.0)
        stand_in = find_stand_in(facts, shares=previewing.shares_of(plan, facts))
        found[shares] = forecast(plan, facts, stand_in, TRAINERS["moments"], samples=1000, epochs=8)
        assert found[shares].stated == bool(shares)
        assert set(found[shares].by_class) == {"normal", "sick"}
    even, uneven = found[""], found["4000,20"]
    assert uneven.balanced < even.balanced - 0.05
    assert uneven.balanced == pytest.approx(sum(uneven.by_class.values()) / 2)


def test_large_images_are_averaged_once_each_for_both_classifiers(monkeypatch):
    monkeypatch.setattr(utility, "SIDE_MAX", 8)
    averaged, pool = [], utility.nn.functional.adaptive_avg_pool2d

    def counted(images, size):
        averaged.append(len(images))
        return pool(images, size)

    monkeypatch.setattr(utility.nn.functional, "adaptive_avg_pool2d", counted)
    facts = PublicFacts(("cat", "dog"), 16, 16, 3, 300, "record")
    stand_in = find_stand_in(facts)
    forecast(plan_of("moments", {}, facts=facts), facts, stand_in, TRAINERS["moments"])
    assert sum(averaged) == 200 + 200 + len(stand_in.test_images)  # drawn, the stand-in's own, and those of the test


def test_more_budget_is_forecast_to_be_better():
    data = digits()
    stand_in = find_stand_in(FACTS, (data.private_images, data.private_labels, data.classes, "digits"))
    little, much = (
        forecast(plan_of("moments", {}, epsilon=each), FACTS, stand_in, TRAINERS["moments"], samples=1500, epochs=8)
        for each in (0.02, 8.0)
    )
    assert little.accuracy < 0.5 < much.accuracy < much.real + 0.05


@pytest.mark.parametrize("stage", [previewing.MEASURED, previewing.REFERENCE])
def test_a_preview_stops_where_it_is_told_to(stage):
    plan = plan_of("datalens", SMALL["datalens"])
    with pytest.raises(Cancelled):
        forecast(plan, FACTS, find_stand_in(FACTS), TRAINERS["datalens"], progress=stop_at(0, stage))


@pytest.mark.parametrize(
    ("classes", "channels", "stands_in"),
    [("0 1 2", 1, "written characters"), ("cat dog", 1, "generated patterns"), ("cat dog", 3, "generated patterns")],
)
def test_what_stands_in_follows_from_what_was_declared(classes, channels, stands_in):
    facts = PublicFacts(tuple(classes.split()), 16, 12, channels, 30, "record")
    found = find_stand_in(facts)
    assert (found.name, len(found.images), len(found.classes)) == (stands_in, 30, len(facts.classes))
