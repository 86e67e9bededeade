"""A classifier trained with differential privacy; its weights are the release (Abadi et al. 2016 and later work)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from models.extractor import ExtractorUnusable
from models.private_classifier import ClassifierConfig, PrivateClassifier
from privacy.gradients.arithmetic import exact_arithmetic
from privacy.mechanisms.noise import SecureNoise
from privacy.mechanisms.partition import NOBODY
from privacy.plans.dp_classifier import DpClassifierConfig
from privacy.plans.plan import Plan, PublicFacts
from workers.recipes.interface import NothingUseful, Piece, Run, TrustedCurator, load_checkpoint, save_checkpoint
from workers.recipes.private_steps import Task, planned_steps, steps_work
from workers.recipes.ranks import all_agree
from workers.recipes.records import Units, alike_block, anchor_images, labels_of, pixels_of

FEATURES = "features"  # a stage of reports
FEATURES_BLOCK = 512  # images per batch of feature computation
_FEATURES_SECONDS = 1e-3  # seconds for the fixed features of one image
_ROW_SECONDS, _HEAD_SECONDS = 5e-4, 2e-5  # seconds per row of a step: of a network, of a linear head on fixed features


def train(run: Run) -> PrivateClassifier:
    """Train and return the released classifier.

    Raise ExtractorUnusable, before this attempt charges anything, if the plan's extractor is missing or has changed
    since the training began.

    Privacy:
        Adjacency: add or remove one unit. Each step privatises one sum over a Poisson sample, paid for before the
        sample is drawn; the proof is in the estimator's file. Features of an image are a public function of it.
    """
    config, facts, data = run.plan.config_of(DpClassifierConfig), run.facts, run.data
    shape = ClassifierConfig(config.architecture, facts.classes, facts.channels, facts.height, facts.width)
    extractor = data.public_extractor if config.extractor else None
    if config.extractor and (extractor is None or extractor.config.name != config.extractor):
        raise ExtractorUnusable(f"the extractor {config.extractor} is not installed")
    classifier = PrivateClassifier(shape, config.initial_seed, extractor).to(run.device)
    steps = planned_steps(run, config, classifier_task(run, config, classifier))
    sha256 = None if extractor is None else extractor.sha256
    saved = load_checkpoint(run.checkpoints, device=run.device)
    if saved:
        if saved["extractor_sha256"] != sha256:
            raise ExtractorUnusable("the extractor's file has changed since the training began; restore the old file")
        steps.restore(saved["steps"])

    steps.make(
        lambda: save_checkpoint(run.checkpoints, {"steps": steps.checkpoint_state(), "extractor_sha256": sha256})
    )
    if steps.done == 0:
        raise NothingUseful
    steps.load_average()
    return classifier.cpu().eval()


def classifier_task(run: Run, config: DpClassifierConfig, classifier: PrivateClassifier) -> Task:
    """Return the task of private steps on a classifier's head, after computing the private images' fixed features."""
    facts, data = run.facts, run.data
    with torch.no_grad(), exact_arithmetic():
        anchors = classifier.features(anchor_images(config, facts, data).to(run.device))
    features = features_of(classifier, data.private_images, facts, run)
    units, labels = Units(facts, config, data), np.asarray(data.private_labels)

    def rows(drawn: npt.NDArray[np.int64], coins: SecureNoise) -> tuple[Tensor, Tensor]:
        records = units.records(drawn, coins)
        return features(records), labels_of(labels, records)

    return Task(
        classifier.head,
        losses,
        rows,
        lambda stream: (anchors, torch.randint(len(facts.classes), (len(anchors),), generator=stream)),
        units.count,
        units.rows_each,
        ema=config.ema,
    )


def work(plan: Plan, facts: PublicFacts) -> tuple[Piece, ...]:
    return classifier_work(plan, plan.config_of(DpClassifierConfig).architecture, facts)


def classifier_work(plan: Plan, architecture: str, facts: PublicFacts) -> tuple[Piece, ...]:
    if not (architecture.startswith("scatter") or architecture == "pretrained_linear"):
        return (steps_work(plan, facts, _ROW_SECONDS),)
    blocks = math.ceil(facts.records_declared / FEATURES_BLOCK)
    features = Piece(FEATURES, blocks, _FEATURES_SECONDS * facts.records_declared * facts.size)
    return features, steps_work(plan, facts, _ROW_SECONDS if architecture == "scatter_cnn" else _HEAD_SECONDS)


def losses(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.float(), targets, reduction="none")


def features_of(
    classifier: PrivateClassifier, private_images: npt.NDArray[np.uint8], facts: PublicFacts, curator: TrustedCurator
) -> Callable[[npt.NDArray[np.int64]], Tensor]:
    """Return a function from records (n,) to the fixed public features (n, ...) of their images. PRIVATE.

    Features are computed once if that saves time. Reports, and the shapes of the computation, depend only on the
    declared number of records: blank images replace missing records. The last stored row has the features of the
    padding record `NOBODY`, whose number is -1.
    """
    device = next(classifier.head.parameters()).device

    def compute(images: npt.NDArray[np.uint8], records: npt.NDArray[np.int64]) -> Tensor:
        with torch.no_grad(), exact_arithmetic():
            return classifier.features(pixels_of(images, records).to(device)).cpu()

    if classifier.transform is None:
        return lambda records: compute(private_images, records)  # the `repr` of a partial has the images
    if len(private_images) > facts.records_declared:
        raise ValueError("there are more records than were declared")  # uploads are rejected before
    parts, blocks = [], math.ceil(facts.records_declared / FEATURES_BLOCK)
    size = alike_block(
        lambda images: compute(images, np.arange(len(images))), private_images.shape[1:], FEATURES_BLOCK, all_agree
    )
    for block in range(blocks):
        curator.progress(stage=FEATURES, step=block, steps=blocks)
        records = np.arange(block * FEATURES_BLOCK, (block + 1) * FEATURES_BLOCK)
        chosen = np.where(records < len(private_images), records, NOBODY)
        parts += [compute(private_images, some).half() for some in np.split(chosen, FEATURES_BLOCK // size)]
    kept = torch.cat([*parts, compute(private_images, np.full(size, NOBODY)).half()])
    return lambda records: kept[torch.from_numpy(records)].float()
