"""Previews: forecast a plan's result by running the plan on public images in place of the private ones (a stand-in)."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from models import classifiers, private_classifier, public_images, released, stand_ins
from privacy.plans.plan import Plan, PlanBudget, PublicFacts
from privacy.plans.registry import plan_from_json
from service import jobs, ledger
from service.datasets.vault import Vault
from service.db.dataset_tables import Dataset
from service.db.session import transaction
from service.errors import LedgerCorruption
from service.jobs.kinds import preview
from workers.evaluation.report import draw_grid
from workers.evaluation.utility import Utility, accuracy_by_class, as_seen, train_and_test
from workers.recipes.interface import Piece, Progress, Run, Trainer, TrainingData, save_trained
from workers.recipes.registry import work_of
from workers.train import drawing, inputs, measuring, orders
from workers.train.progress import ReportedProgress

MEASURED, REFERENCE = "measure_preview", "measure_stand_in"  # stages of reports
SAMPLES, SAMPLES_LARGE, LARGE_PIXELS = 8_000, 2_500, 64 * 64  # synthetic images for the CNN; fewer if large
EPOCHS = 10
GRID_CLASSES_MAX, GRID_COLUMNS = 12, 10
LISTED_MAX = 100  # maximum number of classes with an accuracy each
_CNN_SECONDS = 30.0
_SEED = 0
PublicSet = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], tuple[str, ...], str]  # images, labels, classes, name


@dataclass(frozen=True)
class Forecast:
    """Measurements of a plan that was run on a stand-in. All fields are public.

    Attributes:
        accuracy: of the small CNN trained on generated images, or of the classifier if the plan trains one; measured on
            held-out images of the stand-in, in [0, 1]. `balanced` is the balanced accuracy.
        real: accuracy of the same CNN trained on the stand-in's own images; `real_balanced` is its balanced accuracy.
            Both are None if the plan trains a classifier.
        by_class: accuracy of each tested declared class; empty if there are too many classes to list.
        stated: True if the stand-in has the class fractions stated in the plan.
    """

    accuracy: float
    real: float | None
    chance: float
    stand_in: str
    balanced: float
    real_balanced: float | None
    by_class: dict[str, float]
    stated: bool


def run(context: orders.Context) -> None:
    job_id = context.attempt.job_id
    with transaction(context.factory, read_only=True) as session:
        job = jobs.get_job(session, job_id)
        if job.account_id is None or job.dataset_id is None:
            raise LedgerCorruption("A preview lacks its account or dataset.", job_id=job_id)
        plan = plan_from_json(job.plan)
        facts = jobs.facts_of(session.get_one(Dataset, job.dataset_id), ledger.get_account(session, job.account_id))
        named = None if job.evaluation_dataset_id is None else orders.public_dataset(session, job.evaluation_dataset_id)
        anchors = orders.anchors_of(session, plan)
    parts = inputs.public_parts(context, plan, anchors)
    public: PublicSet | None = None
    if named is not None:
        public = *Vault.of(context.settings).open_dataset(named.id), tuple(named.classes), named.name
    stand_in = find_stand_in(facts, public, shares_of(plan, facts), context.alive)
    samples, seconds = samples_for(facts), _CNN_SECONDS * measuring.as_classifiers_see(facts).size
    after = [Piece(stage, EPOCHS * samples, seconds) for stage in (MEASURED, REFERENCE)]
    progress = ReportedProgress(context, (*work_of(plan, facts), drawing.drawing_work(plan, facts, samples), *after))
    trainer = context.trainers[plan.recipe]

    def publish(grid: bytes) -> None:
        with transaction(context.factory) as session:
            preview.publish_grid(session, job_id=job_id, attempt=context.attempt.number, grid=grid)

    common: dict[str, Any] = {"parts": parts, "device": context.device, "progress": progress, "publish": publish}
    found = forecast(plan, facts, stand_in, trainer, **common)
    context.end(preview.KIND.finish, results=asdict(found))


def shares_of(plan: Plan, facts: PublicFacts) -> tuple[float, ...] | None:
    """Return the class fractions stated in a plan, in label order, or None if it states none."""
    stated = plan.config.stated_fractions(facts.classes)
    return None if stated is None else tuple(stated.values())


def find_stand_in(
    facts: PublicFacts,
    public: PublicSet | None = None,
    shares: Sequence[float] | None = None,
    look: Callable[[], None] = lambda: None,
) -> stand_ins.StandIn:
    """Return a stand-in for the declared facts, with the class fractions `shares`. Call `look` regularly meanwhile.

    The stand-in is cut from the set `public`, if it is given. Otherwise it is written characters if each class is named
    by one letter or digit. For other grey images of up to ten classes it is Fashion-MNIST, if this machine has it;
    otherwise generated patterns.
    """
    shape, count = (facts.channels, facts.height, facts.width), facts.records_declared
    few_grey = facts.channels == 1 and len(facts.classes) <= 10
    if public is None and few_grey and not stand_ins.are_characters(facts.classes):
        with suppress(FileNotFoundError):
            public = *public_images.fashion_mnist("train"), "Fashion-MNIST"
    if public is None:
        return stand_ins.generated(facts.classes, count=count, shape=shape, shares=shares, look=look)
    images, labels, names, name = public
    common: dict[str, Any] = {"count": count, "classes": len(facts.classes), "shape": shape, "shares": shares}
    return stand_ins.from_public(images, labels, names, name=name, **common)


def samples_for(facts: PublicFacts) -> int:
    return SAMPLES if facts.height * facts.width < LARGE_PIXELS else SAMPLES_LARGE


def forecast(
    plan: Plan,
    facts: PublicFacts,
    stand_in: stand_ins.StandIn,
    trainer: Trainer,
    *,
    parts: Mapping[str, Any] | None = None,
    device: torch.device | None = None,
    progress: Progress = lambda **_: None,
    publish: Callable[[bytes], None] = lambda _: None,
    samples: int | None = None,
    epochs: int | None = None,
) -> Forecast:
    """Run a plan's training on a stand-in, and measure the result.

    The stand-in has the declared numbers of records, classes and pixels. `parts` is the result of `public_parts`. The
    CNN is trained on `samples` images, by default `samples_for`, for `epochs`, by default EPOCHS. Before anything is
    measured, `publish` gets a PNG image with a row of generated images per class, unless the plan trains a classifier.
    """
    device, classes, count = device or torch.device("cpu"), facts.classes, samples or samples_for(facts)
    subjects = None
    if facts.subjects_declared is not None:
        subjects = np.arange(len(stand_in.labels)) % facts.subjects_declared
    data = TrainingData(stand_in.images, stand_in.labels, classes, subjects, **(parts or {}))
    run = Run(plan=plan, facts=facts, data=data, budget=PlanBudget(plan.stages), secret=secrets.token_bytes(32))
    trained = trainer(replace(run, progress=progress, device=device))

    def look(stage: str, done: int, steps: int) -> None:
        progress(stage=stage, step=done, steps=steps)

    real = None
    if isinstance(trained, private_classifier.PrivateClassifier):
        with classifiers.between_layers(trained.modules(), partial(look, MEASURED, 0, 1)):
            predicted = trained.predict(stand_in.test_images)
        found = Utility.of(stand_in.test_labels, predicted, len(classes))
    else:
        with tempfile.TemporaryDirectory() as folder:
            save_trained(trained, Path(folder))
            generator = released.load_released(Path(folder))
        generator.to(device)
        chosen = tuple(range(min(len(classes), GRID_CLASSES_MAX)))
        few = drawing.SampleRequest(count=len(chosen) * GRID_COLUMNS, seed=_SEED, names=classes, chosen=chosen)
        batches = drawing.draw(generator, few, lambda **_: look(drawing.DRAWING, 0, count))
        shown = np.concatenate([pixels for pixels, _ in batches])[np.argsort(few.labels, kind="stable")]
        publish(draw_grid(shown, stand_in.classes[: len(chosen)]))
        request = drawing.SampleRequest(count=count, seed=_SEED, names=classes)
        drawn, _ = measuring.drawn_images(generator, request, progress)
        own = measuring.public_images(stand_in.images[: len(drawn.labels)], stand_in.labels[: len(drawn.labels)])
        test_images = as_seen(stand_in.test_images)  # once, for both

        def learn(stage: str, seen: measuring.Images) -> Utility:
            again = (epochs or EPOCHS) * count // len(seen.labels)  # equal steps on fewer images
            pixels = seen.images, seen.labels, test_images, stand_in.test_labels
            sizes: dict[str, Any] = {"classes": len(classes), "seed": _SEED, "device": device, "epochs": again}
            return train_and_test("cnn", *pixels, **sizes, look=partial(look, stage))

        found, real = learn(MEASURED, drawn), learn(REFERENCE, own)
    each = zip(classes, accuracy_by_class(found.confusion), strict=True)
    return Forecast(
        accuracy=found.accuracy,
        real=None if real is None else real.accuracy,
        chance=1 / len(classes),
        stand_in=stand_in.name,
        balanced=found.balanced_accuracy,
        real_balanced=None if real is None else real.balanced_accuracy,
        by_class={name: share for name, share in each if share is not None} if len(classes) <= LISTED_MAX else {},
        stated=shares_of(plan, facts) is not None,
    )
