"""The files of a release: what was trained, privacy card, report and sample grid, and what is said about them.

Everything here is computed from what the recipe released, from public data and from the ledger.
"""

from __future__ import annotations

import json
import platform
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.released import ReleasedGenerator, load_released
from privacy.accounting.certificate import build_certificate
from privacy.accounting.events import Event
from privacy.plans.registry import RECIPES, Published
from service import ledger
from service.artifacts import CARD_FILE
from service.db.session import transaction
from service.ledger.chain import body_hash
from workers.context import Context
from workers.evaluation.grid import write_grid
from workers.evaluation.report import ReleaseFacts, StageFacts, Usefulness, write_report
from workers.measuring import draw_with_progress, measure_classifier, measure_usefulness
from workers.orders import Order, charged_by_stage
from workers.recipes.class_histogram import read_histogram
from workers.recipes.interface import Progress
from workers.sampling import SampleRequest

RELEASE_FILE = "release.json"  # what the release's row will say, so that another attempt can publish this artifact
GRID_FILE = "grid.png"
_GRID_PER_CLASS = 10
_REPORT_PER_CLASS = 200  # as many as the report's distances are measured on
_REPORT_IMAGES_MAX = 20_000
_PICTURE_SEED = 0


def write_artifact(directory: Path, *, trained: Path, order: Order, context: Context, progress: Progress) -> None:
    """Fill a folder with everything that a release consists of.

    Args:
        directory: an empty folder, not yet visible to anybody.
        trained: folder with what the recipe handed over.
        order: the training.
        context: of this process.
        progress: is told about the evaluation, and about the images that are drawn to be shown.

    Raises:
        Cancelled: the attempt was told to stop.
    """
    files = sorted(trained.iterdir())
    for path in files:
        shutil.copyfile(path, directory / path.name)
    with transaction(context.factory, read_only=True) as session:
        charged = charged_by_stage(session, order)
    ran = _events(order, charged)
    published = RECIPES[order.plan.recipe].publishes
    description = _Description(
        name=f"{order.dataset.name} · {order.plan.recipe} · ε {order.job.epsilon:g}",
        card=_card(order, ran, charged.total()),
        ran=ran,
        charged=charged,
    )
    began = time.monotonic()
    figures = _DESCRIBE[published](directory, order, context, progress, description)
    seconds = {"train": _seconds_of_training(order, files), "evaluate": round(time.monotonic() - began, 2)}
    _write_json(directory / CARD_FILE, description.card)
    document = {
        "job_id": order.job.id,
        "kind": published,
        "name": description.name,
        "card": description.card,
        "summary": {"seconds": seconds, "facts": order.plan.facts, **figures},
    }
    _write_json(directory / RELEASE_FILE, document)


@dataclass(frozen=True)
class _Description:
    """What is said of a release of any kind: its name and card, and what was paid for."""

    name: str
    card: dict[str, Any]
    ran: Mapping[str, Event]
    charged: Counter[str]


def _describe_generator(
    directory: Path, order: Order, context: Context, progress: Progress, description: _Description
) -> dict[str, Any]:
    """Write grid and report of a generator; returns how useful it is on public data, for the summary."""
    generator = load_released(directory)
    generator.to(context.device)
    usefulness = measure_usefulness(directory, order, context, progress)
    with transaction(context.factory, read_only=True) as session:
        spent_nano = ledger.balance(session, order.account.id).spent_nano + description.charged.total()
    _write_grid(directory / GRID_FILE, generator, order.facts.classes, context.device, progress)
    facts = ReleaseFacts(
        name=description.name,
        dataset=order.dataset.name,
        account=order.account.name,
        recipe=order.plan.recipe,
        classes=order.facts.classes,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        stages=tuple(
            StageFacts(stage, event.count, event.noise_multiplier, description.charged[stage])
            for stage, event in description.ran.items()
        ),
        facts=order.plan.facts,
        notes=order.plan.notes,
        account_epsilon=order.account.epsilon,
        account_spent_epsilon=order.privacy_filter.epsilon_of(spent_nano),
    )
    count = min(_REPORT_PER_CLASS * len(facts.classes), max(_REPORT_IMAGES_MAX, len(facts.classes)))
    request = SampleRequest(count=count, seed=_PICTURE_SEED, names=facts.classes)
    images, labels = draw_with_progress(generator, request, context.device, progress)
    write_report(
        directory,
        card=description.card,
        release=facts,
        images=images,
        labels=labels,
        usefulness=usefulness,
        technical=_technical(order, context),
    )
    return {} if usefulness is None else _figures(order, usefulness)


def _describe_histogram(
    directory: Path, _order: Order, _context: Context, _progress: Progress, _description: _Description
) -> dict[str, Any]:
    """A histogram is its own report: its counts stand in the summary."""
    return {"histogram": dict(read_histogram(directory))}


def _describe_classifier(
    directory: Path, order: Order, context: Context, progress: Progress, _description: _Description
) -> dict[str, Any]:
    """Test a classifier once on the job's public dataset, where it names one; there are no images to show."""
    tested = measure_classifier(directory, order, context, progress)
    if tested is None or order.evaluation is None:
        return {}
    accuracy, images = tested
    return {
        "accuracy": {"classifier": accuracy},
        "evaluation": {"dataset": order.evaluation.name, "dataset_id": order.evaluation.id, "test_images": images},
    }


_DESCRIBE: Mapping[Published, Callable[[Path, Order, Context, Progress, _Description], dict[str, Any]]] = {
    "generator": _describe_generator,
    "histogram": _describe_histogram,
    "classifier": _describe_classifier,
}


def _events(order: Order, charged: Counter[str]) -> dict[str, Event]:
    """What was paid for, stage by stage; releases done again after a crash count again."""
    releases = {
        stage.name: charged[stage.name] // order.privacy_filter.unit_price_nano(stage.event)
        for stage in order.plan.stages
    }
    return {
        stage.name: replace(stage.event, count=releases[stage.name])
        for stage in order.plan.stages
        if releases[stage.name]
    }


def _card(order: Order, ran: Mapping[str, Event], charged_nano: int) -> dict[str, Any]:
    """The privacy card: what is guaranteed, how it was paid for, and where to look it up."""
    certificate = build_certificate(
        filter=order.privacy_filter,
        events=list(ran.values()),
        unit=order.account.unit.value,
        assumed_public=_assumed_public(order),
        price_nano=charged_nano,
    )
    return {
        **certificate.to_json(),
        "recipe": order.plan.recipe,
        "stages": list(ran),
        "job_id": order.job.id,
        "account_id": order.account.id,
        "dataset_id": order.dataset.id,
        "plan_sha256": body_hash(order.plan.to_json()),
    }


def _assumed_public(order: Order) -> tuple[str, ...]:
    facts = order.facts
    colour = "grey" if facts.channels == 1 else "colour"
    count = f"that there are at most {facts.records_declared:,} records"
    if facts.subjects_declared is not None:
        count += f" of at most {facts.subjects_declared:,} subjects"
    extractor = order.plan.config.get("extractor")
    return (
        f"the {len(facts.classes)} class names: {', '.join(facts.classes)}",
        f"the size of the images: {facts.height} x {facts.width} pixels, {colour}",
        count,
        "the recipe, its options and the code",
        *((f"every image of the dataset {order.anchors.id}, of the gradient's basis",) if order.anchors else ()),
        *((f"the extractor {extractor} and every image that it was trained on",) if extractor else ()),
    )


def _write_grid(
    path: Path, generator: ReleasedGenerator, classes: tuple[str, ...], device: torch.device, progress: Progress
) -> None:
    request = SampleRequest(count=_GRID_PER_CLASS * len(classes), seed=_PICTURE_SEED, names=classes)
    images, labels = draw_with_progress(generator, request, device, progress)
    grouped = images[np.argsort(labels, kind="stable")].transpose(0, 3, 1, 2) / 255.0  # (n, c, h, w), by class
    write_grid(grouped, classes, path)


def _figures(order: Order, usefulness: Usefulness) -> dict[str, Any]:
    """What lists and dashboards show of a generator: figures on public data only."""
    figures: dict[str, Any] = {
        "accuracy": dict(usefulness.accuracy),
        "evaluation": {
            "dataset": usefulness.evaluation_dataset,
            "dataset_id": order.job.evaluation_dataset_id,
            "train_images": usefulness.train_images,
            "test_images": usefulness.test_images,
            "seeds": list(usefulness.seeds),
        },
    }
    if usefulness.accuracy_warm_start_only is not None:
        figures["accuracy_warm_start_only"] = dict(usefulness.accuracy_warm_start_only)
    return figures


def _technical(order: Order, context: Context) -> dict[str, str]:
    return {
        "obscura": version("obscura"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if context.device.type == "cuda" else f"CPU, {platform.machine()}",
        "attempts": str(context.attempt.number),
        "plan (SHA-256)": body_hash(order.plan.to_json()),
    }


def _seconds_of_training(order: Order, files: list[Path]) -> float:
    """From the first claim of the job until the generator was finished, pauses between attempts included."""
    if order.job.started_at is None or not files:
        return 0.0
    finished = max(path.stat().st_mtime for path in files)
    return round(max(finished - order.job.started_at.timestamp(), 0.0), 2)


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
