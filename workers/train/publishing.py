"""The files of a release: the training's result, privacy card, report and sample grid.

Everything here is computed from the recipe's releases, from public data and from the ledger.
"""

from __future__ import annotations

import json
import math
import platform
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.released import load_released
from obscura.wire.formats import CARD_FILE, IMAGES_FILE
from obscura.wire.wording import show_epsilon
from obscura.wire.words import SampleFormat
from privacy.accounting.certificate import build_certificate
from privacy.accounting.events import Event
from privacy.plans.options import ClassFractionsConfig
from privacy.plans.registry import RECIPES
from service import jobs, ledger, times
from service.cards import ordered_card
from service.db.base import release_id_of
from service.db.session import transaction
from service.ledger.chain import body_hash
from workers.evaluation import report
from workers.recipes.class_histogram import read_histogram
from workers.recipes.interface import Piece, Progress
from workers.train.drawing import SampleRequest, draw, drawing_work
from workers.train.inputs import charged_by_stage
from workers.train.orders import Context, Training
from workers.train.packing import SampleFile, pack

RELEASE_FILE = "release.json"  # content of the release's row, so that another attempt can publish this artifact
GRID_FILE, TILES_FILE = "grid.png", "tiles.png"
_GRID_PER_CLASS = 10
_REPORT_PER_CLASS = 200  # as many as the report's distances need
_REPORT_IMAGES_MAX = 20_000
_REPORT_SECONDS = 10.0
_STORED_MAX = 2000  # images, or as many as the grid has


def publishing_work(training: Training) -> tuple[Piece, ...]:
    """Return the work of `write_artifact`: drawing the images of a generator's grid and report."""
    plan, facts = training.plan, training.facts
    if RECIPES[plan.recipe].publishes != "generator":
        return ()
    return (drawing_work(plan, facts, _images_to_show(len(facts.classes))),)


def write_artifact(directory: Path, trained: Path, context: Context, training: Training, progress: Progress) -> None:
    """Write all files of a release into an empty folder that is not visible yet.

    `trained` is the folder with the recipe's result.
    """
    for path in sorted(trained.iterdir()):
        shutil.copyfile(path, directory / path.name)
    with transaction(context.factory, read_only=True) as session:
        charged = charged_by_stage(session, training)
        released = ledger.released(ledger.get_hold(session, training.hold_id))
        ended_early = jobs.get_job(session, training.job.id).ended_early
    plan = training.plan
    ran: dict[str, Event] = {}  # paid releases by stage; releases repeated after a crash count again
    for stage in plan.stages:
        whole = stage.paid_as_whole is not None
        count = released.get(stage.name, 0) if whole else charged[stage.name] // stage.price_of(1)
        if count:
            ran[stage.name] = replace(stage.event, count=count)
    incomplete = None if ended_early is None else _incomplete(training, ran, ended_early.value)
    share = "" if incomplete is None else f" · {math.floor(100 * incomplete['fraction'])}% made"
    name = f"{training.dataset.name} · {plan.recipe} · ε {training.job.epsilon:g}{share}"
    published = RECIPES[plan.recipe].publishes
    facts = _card(training, ran, charged.total())
    card = ordered_card({"title": f"Privacy card: {name}", **facts, "incomplete": incomplete})
    summary: dict[str, Any] = {"facts": plan.facts}
    if published == "generator":
        release = {
            "name": name,
            "dataset": training.dataset.name,
            "account": training.account.name,
            "recipe": plan.recipe,
            "classes": training.facts.classes,
            "created_at": times.to_the_hour(datetime.now(UTC)).isoformat(timespec="minutes"),
            "stages": [
                {"name": stage, "releases": event.count, "noise_multiplier": event.noise_multiplier}
                | {"cost_nano": charged[stage]}
                for stage, event in ran.items()
            ],
            "facts": plan.facts,
            "notes": plan.notes,
            "incomplete": incomplete,
        }
        _show_generator(directory, context, training, card, release, progress)
    elif published == "histogram":  # the histogram is its own report
        summary["histogram"] = dict(read_histogram(directory))
    document = {"job_id": training.job.id, "kind": published, "name": name, "card": card, "summary": summary}
    for file, content in ((CARD_FILE, card), (RELEASE_FILE, document | {"incomplete": incomplete})):
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (directory / file).write_text(f"{text}\n", encoding="utf-8")


def _show_generator(
    directory: Path,
    context: Context,
    training: Training,
    card: Mapping[str, Any],
    release: Mapping[str, Any],
    progress: Progress,
) -> None:
    """Write images, grid and report of a generator, within seconds; slower measurements belong to evaluations.

    A slow generator must not delay its release. So draw the grid's images, and further images while time is left.
    """
    generator, classes = load_released(directory), release["classes"]
    generator.to(context.device)
    least = _GRID_PER_CLASS * len(classes)
    request = SampleRequest(count=_images_to_show(len(classes)), seed=0, names=classes)
    batches, drawn, began = [], 0, time.monotonic()
    for batch in draw(generator, request, progress):  # classes take turns
        batches.append(batch)
        drawn += len(batch[1])
        if drawn >= least and time.monotonic() - began > _REPORT_SECONDS:
            break
    images, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    by_class = np.argsort(labels[:least], kind="stable")
    release_id, sign = release_id_of(training.job.id), context.signing_key().sign
    file = SampleFile(SampleFormat.IMAGEFOLDER, release["name"], card, release_id, sign)
    (directory / GRID_FILE).write_bytes(report.draw_grid(images[:least][by_class], classes, file.encode))
    (directory / TILES_FILE).write_bytes(report.draw_tiles(images[: report.TILES**2], file.encode))
    stored = slice(min(drawn, max(least, _STORED_MAX)))
    request = replace(request, count=len(images[stored]))
    pack(directory / IMAGES_FILE, iter([(images[stored], labels[stored])]), request, file)
    on_gpu = context.device.type == "cuda"
    technical = {
        "obscura": version("obscura-images"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if on_gpu else f"CPU, {platform.machine()}",
        "attempts": str(training.job.attempt),
        "plan (SHA-256)": body_hash(training.job.plan),
    }
    report.write_report(
        directory, release=release, images=images, labels=labels, technical=technical, encode=file.encode
    )


def _incomplete(training: Training, ran: Mapping[str, Event], reason: str) -> dict[str, Any] | None:
    """Return why a training ended early, and its share of the planned releases; None if it made all. Public."""
    stages = {
        stage.name: {"made": min(ran[stage.name].count if stage.name in ran else 0, stage.event.count)}
        | {"planned": stage.event.count}
        for stage in training.plan.stages
    }
    made, planned = (sum(stage[which] for stage in stages.values()) for which in ("made", "planned"))
    if made == planned:
        return None
    fraction = math.floor(1000 * made / planned) / 1000
    return {"reason": reason, "fraction": fraction, "made": made, "planned": planned, "stages": stages}


def _card(training: Training, ran: Mapping[str, Event], charged_nano: int) -> dict[str, Any]:
    facts, config = training.facts, training.plan.config
    colour = "grey" if facts.channels == 1 else "colour"
    count = f"that there are at most {facts.records_declared:,} records"
    if facts.subjects_declared is not None:
        count += f" of at most {facts.subjects_declared:,} subjects"
    assumed_public = [
        f"the {len(facts.classes)} class names: {', '.join(facts.classes)}",
        f"the size of the images: {facts.height} x {facts.width} pixels, {colour}",
        count,
        "the recipe, its options and the code",
    ]
    if isinstance(config, ClassFractionsConfig) and config.class_fractions:
        assumed_public.append(f"the stated class fractions: {config.class_fractions}")
    if training.anchors is not None:
        assumed_public.append(f"every image of the dataset {training.anchors.id}, {config.public_images_serve}")
    if config.needed_extractor:
        assumed_public.append(f"the extractor {config.needed_extractor} and every image that it was trained on")
    certificate = build_certificate(
        filter=training.privacy_filter,
        events=list(ran.values()),
        unit=training.account.unit.value,
        assumed_public=assumed_public,
        cost_nano=charged_nano,
    )
    shown = ("epsilon", "delta", "unit", "protects", "adjacency", "assumed_public", "not_covered")
    top = {key: certificate.pop(key) for key in shown}
    rounded = show_epsilon(top["epsilon"], up=True)
    accountant = f"{certificate.pop('accountant')} {certificate.pop('accountant_version')}"
    return {
        **top,
        "summary": f"Adding or removing {top['protects']} changes the probability of every result of this release, and "
        f"of everything generated from it, by a factor of at most exp({rounded}), except with a probability of about "
        f"{top['delta']:g}.",
        "epsilon_rounded": float(rounded),
        "recipe": training.plan.recipe,
        "accounting": {
            "method": certificate.pop("accounting"),
            **certificate,
            "accountant": accountant,
            "stages": list(ran),
            "job_id": training.job.id,
            "account_id": training.account.id,
            "dataset_id": training.dataset.id,
            "plan_sha256": body_hash(training.job.plan),
        },
    }


def _images_to_show(classes: int) -> int:
    return max(_GRID_PER_CLASS * classes, min(_REPORT_PER_CLASS * classes, _REPORT_IMAGES_MAX))
