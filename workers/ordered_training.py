"""From an order to what its recipe hands over: the part of a training that all its processes do alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from models.extractor import Extractor, ExtractorUnusable, read_extractor
from privacy.mechanisms.noise import derive_key
from service.datasets.vault import Images, key_path, open_dataset, open_subjects, read_key
from service.errors import Conflict
from service.extractors import folder_of
from workers.recipes.interface import Run, TrainingData

if TYPE_CHECKING:
    import torch

    from service.settings import Settings
    from workers.context import Context
    from workers.orders import Order
    from workers.recipes.interface import Budget, CheckpointFolder, Progress, Trained, Trainer


@dataclass(frozen=True, repr=False)
class PublicParts:
    """What a training needs and nobody pays for: the extractor and the anchors that its plan names, or None."""

    extractor: Extractor | None = field(repr=False)
    anchors: Images | None = field(repr=False)


def public_parts(settings: Settings, order: Order) -> PublicParts:
    """Read what is public. Without it nothing is armed, opened or paid.

    Raises:
        Conflict: the plan's extractor is missing or unusable.
        NotFound: the public dataset of the anchors has no content.
    """
    extractor = _extractor(settings, order)
    anchors = None if order.anchors is None else open_dataset(settings, order.anchors.id)[0]
    return PublicParts(extractor, anchors)


def train_as_ordered(
    context: Context,
    order: Order,
    trainer: Trainer,
    public: PublicParts,
    *,
    budget: Budget,
    progress: Progress,
    checkpoints: Callable[[bytes], CheckpointFolder],
    device: torch.device,
) -> Trained:
    """Open the private data of a hold that is armed, and train.

    Args:
        context: of the attempt.
        order: what to train.
        trainer: the recipe that it names.
        public: from `public_parts`.
        budget: of the hold, or one that refuses, where another process pays.
        progress: of the job.
        checkpoints: gives the job's folder under the dataset's key.
        device: of this process.

    Raises:
        NotFound: the dataset has no content.
        Cancelled: the attempt was told to stop.
    """
    key = read_key(key_path(context.settings, order.dataset.id))
    private_images, private_labels = open_dataset(context.settings, order.dataset.id)
    private_subjects = None
    if order.facts.unit == "subject":
        private_subjects = open_subjects(context.settings, order.dataset.id)
    data = TrainingData(
        private_images,
        private_labels,
        order.facts.classes,
        private_subjects,
        public_extractor=public.extractor,
        public_anchors=public.anchors,
    )
    run = Run(
        plan=order.plan,
        facts=order.facts,
        data=data,
        budget=budget,
        # Without the key, what the database holds does not tell the noise: it can be computed no more than the images.
        secret=derive_key(order.secret + key, "training", order.job.id),
        attempt=context.attempt.number,
        progress=progress,
        checkpoints=checkpoints(key),
        device=device,
    )
    return trainer(run)


def _extractor(settings: Settings, order: Order) -> Extractor | None:
    """Read the extractor that the plan names; None where it names none.

    Raises:
        Conflict: it is missing or unusable.
    """
    name = order.plan.config.get("extractor")
    if not name:
        return None
    try:
        return read_extractor(folder_of(settings.data_dir), name)
    except ExtractorUnusable as error:
        raise Conflict(f"The training cannot begin: {error}.", extractor=name) from None
