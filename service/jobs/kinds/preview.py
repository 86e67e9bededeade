"""Previews: rehearse a plan before budget is reserved, on a public stand-in for the private images. They cost nothing.

Recipe, noise and budget are as planned. The images are public or generated, so nothing private is read and the ledger
is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from obscura.wire.job_schemas import PreviewRecord, PreviewRequest
from obscura.wire.schemas import record_of
from obscura.wire.wording import show_percent
from obscura.wire.words import JobState, Visibility
from privacy.plans.registry import RECIPES
from service.db.base import new_id
from service.db.dataset_tables import Dataset
from service.db.job_tables import FailureCode, Job, Preview
from service.errors import InvalidInput
from service.identity.access import find
from service.jobs.endings import lock_attempt
from service.jobs.kind import Ask, Kind, Order, Reading, failure_of, made_by
from service.jobs.planning import plan_on, require_anchors_ready, require_ready, training_set
from service.jobs.submission import planned_job, queue_job

STAND_IN_NUMBERS_MAX = 2**32  # pixels times channels times records, in bytes of memory
_NAMED = 3  # number of worst classes to name
_STATIC, _FAINT = 0.25, 0.6  # fractions of the gain over guessing with real images


def accept(
    session: Session,
    ask: Ask,
    *,
    dataset_id: str,
    recipe: str,
    epsilon: float,
    options: Mapping[str, Any],
    stand_in_dataset_id: str | None,
) -> Job:
    """Accept the preview of a training. A preview needs no budget, and uses only the declaration of the dataset."""
    trained = training_set(session, dataset_id)
    plan = plan_on(session, trained, recipe, epsilon, options)
    require_anchors_ready(session, plan)
    if RECIPES[recipe].publishes == "histogram":
        raise InvalidInput(f"The recipe {recipe} needs no preview: it publishes counts, and its plan states the error.")
    declared = trained.dataset
    numbers = declared.records_declared * declared.height * declared.width * declared.channels
    if numbers > STAND_IN_NUMBERS_MAX:
        raise InvalidInput(
            f"A stand-in for {declared.records_declared} images of this size needs {numbers / 2**30:.1f} GiB of "
            f"memory; the limit of a preview is {STAND_IN_NUMBERS_MAX / 2**30:.0f} GiB. Train without a preview: with "
            "so many records, the noise is small.",
            numbers=numbers,
            numbers_max=STAND_IN_NUMBERS_MAX,
        )
    if stand_in_dataset_id is not None:
        stand_in = find(session, Dataset, stand_in_dataset_id)
        if stand_in.visibility is not Visibility.PUBLIC:
            raise InvalidInput(
                "A stand-in must be a public dataset: a preview costs nothing, so it may not read private data."
            )
        if len(stand_in.classes) < len(declared.classes):
            raise InvalidInput(
                f"The stand-in has {len(stand_in.classes)} classes, but the dataset has {len(declared.classes)}. Name "
                "a stand-in with at least as many classes as the dataset, or leave the stand-in out.",
                classes=len(stand_in.classes),
                classes_min=len(declared.classes),
            )
        require_ready(session, stand_in, "stand-in")
    named = {"evaluation_dataset_id": stand_in_dataset_id}
    job = planned_job(ask, KIND.name, trained, plan, epsilon=epsilon, options=options, **named)
    made = Preview(id=new_id("prv"), job_id=job.id, created_at=ask.now)
    return queue_job(session, job, made)


def forecast_sentence(
    accuracy: float,
    real: float | None,
    chance: float,
    stand_in: str,
    balanced: float | None = None,
    real_balanced: float | None = None,
    by_class: Mapping[str, float] | None = None,
    stated: bool = False,
) -> str:
    """Describe the result of a preview, and warn if noise dominates.

    Args:
        real: the accuracy after training on the stand-in's own images; None for the preview of a classifier.
        chance: accuracy of guessing.
        balanced: recall averaged over the classes; `real_balanced` is the same for the stand-in's own images.
        stated: True if class fractions were stated. Then report averages over the classes, and the worst classes.
    """
    of = stand_in
    if stated and balanced is not None:
        accuracy, real, of = balanced, real_balanced, f"a class of {stand_in}, on average over the classes"
    what = "A classifier trained on such images is" if real is not None else "Such a classifier is"
    sentence = f"{what} right on {show_percent(accuracy)} of {of} (guessing: {show_percent(chance)}"
    sentence += ")." if real is None else f"; trained on the stand-in's own images: {show_percent(real)})."
    if stated and by_class:
        fewest = sorted(by_class, key=lambda name: by_class[name])[:_NAMED]
        sentence += f" Worst classes: {', '.join(f'{name} {show_percent(by_class[name])}' for name in fewest)}."
    kept = (accuracy - chance) / max((1.0 if real is None else real) - chance, 1e-9)
    if kept < _STATIC:
        sentence += (
            " At this budget, nearly everything is lost in the noise: use more records, fewer classes or a larger "
            "epsilon."
        )
    elif kept < _FAINT:
        sentence += " At this budget, much is lost in the noise."
    return f"{sentence} This is a forecast on other images, not a promise."


def publish_grid(session: Session, *, job_id: str, attempt: int, grid: bytes) -> None:
    """Store the grid of a running preview. Pages show it while the accuracy is being measured."""
    job = lock_attempt(session, job_id, attempt, KIND.name, replay=JobState.RUNNING)
    made_by(session, Preview, job_id).grid = grid
    job.progress_version += 1


def show(made: Preview, job: Job) -> PreviewRecord:
    found = made.results or {}
    return record_of(
        PreviewRecord,
        job,
        id=made.id,
        job_id=job.id,
        stand_in=found.get("stand_in"),
        accuracy=found.get("accuracy"),
        real_accuracy=found.get("real"),
        balanced_accuracy=found.get("balanced"),
        accuracy_by_class=found.get("by_class"),
        chance=found.get("chance"),
        grid_ready=made.has_grid,
        verdict=forecast_sentence(**found) if found else None,
        notes=list(job.plan.get("notes", [])),
        failure=failure_of(job),
        finished_at=made.finished_at,
    )


KIND = Kind(
    name="preview",
    many="previews",
    title=lambda _job, _made: "Preview a plan",
    accept=accept,
    failed=FailureCode.PREVIEW_FAILED,
    order=Order(
        path="/v1/previews",
        tag="plans",
        summary="Preview a training",
        description="Carry out a plan on public images with the declared number, size and classes. It costs nothing "
        "and reads nothing private.\n\nThe account need not have the budget, and the dataset's content need not "
        "have arrived.",
        request=PreviewRequest,
    ),
    makes=Preview,
    record=PreviewRecord,
    show=show,
    reading=Reading(
        path="/v1/previews",
        prefix="prv",
        tag="plans",
        description="Read a preview: its state, and its forecast once it has ended.",
        image="grid",
        image_description="Read a grid of images that the generator made from the stand-in, one class in each row. It "
        "is ready before the accuracy is.",
        examples={"accuracy": 0.74, "balanced_accuracy": 0.71},
    ),
    planned=True,
    reads_numbers=True,
    gives_way=True,
)
