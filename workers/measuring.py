"""Usefulness of what was trained, measured once on the job's public dataset: a classifier's accuracy, or that of
classifiers trained on a generator's samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from models.classifiers import CLASSIFIER_KINDS, ClassifierKind
from models.private_classifier import load_classifier
from models.released import ReleasedGenerator, load_released
from models.watching import between_layers
from service.errors import StaleAttempt
from service.logs import get_logger
from service.vault import open_dataset
from workers.context import Context
from workers.evaluation.report import Usefulness
from workers.evaluation.utility import Utility, train_and_test
from workers.orders import Order
from workers.recipes.interface import Cancelled, Progress
from workers.sampling import SampleRequest, draw_arrays
from workers.traces import trace_of

T = TypeVar("T")
STAGE = "evaluate"
DRAWING = "draw_images"  # for the evaluation, and those that a release shows
SAMPLES = 30_000
SEED = 0


@dataclass(frozen=True)
class Images:
    """Images `(n, c, h, w)` uint8 and labels `(n,)` int64: synthetic or public."""

    images: torch.Tensor
    labels: torch.Tensor


def measure_usefulness(directory: Path, order: Order, context: Context, progress: Progress) -> Usefulness | None:
    """Measure the generator of `directory`, and its warm start alone where the plan has one.

    Args:
        directory: with the finished generator.
        order: names the public dataset, and how many images to draw.
        context: of this process.
        progress: is told about the images that are drawn, and about each classifier.

    Returns:
        None when the job names no public dataset, or when the measurement broke: the release was paid for and is
        published all the same. The operator's log has the reason.

    Raises:
        Cancelled: the attempt was told to stop.
    """
    if order.evaluation is None:
        return None
    evaluation_id = order.evaluation.id
    return _unless_it_breaks(order, lambda: _measure(directory, order, evaluation_id, context, progress))


def measure_classifier(directory: Path, order: Order, context: Context, progress: Progress) -> tuple[float, int] | None:
    """Test the classifier of `directory` once on the job's public dataset; arguments as in `measure_usefulness`.

    Returns:
        Accuracy in [0, 1] and the number of test images; None as in `measure_usefulness`.

    Raises:
        Cancelled: the attempt was told to stop.
    """
    if order.evaluation is None:
        return None
    evaluation_id = order.evaluation.id

    def test() -> tuple[float, int]:
        look = partial(progress, stage=STAGE, step=0, steps=1)
        look()
        test = _public_images(context, evaluation_id)
        classifier = load_classifier(directory).to(context.device)
        with between_layers(classifier.modules(), look):
            predicted = classifier.predict(test.images)
        return float((predicted == test.labels).double().mean()), len(test.labels)

    return _unless_it_breaks(order, test)


def _unless_it_breaks(order: Order, measure: Callable[[], T]) -> T | None:
    try:
        return measure()
    except (Cancelled, StaleAttempt):
        raise
    except Exception as error:
        get_logger(__name__).error("evaluation_failed", job_id=order.job.id, trace=trace_of(error))
        return None


def _measure(directory: Path, order: Order, dataset_id: str, context: Context, progress: Progress) -> Usefulness:
    test = _public_images(context, dataset_id)
    generators: dict[str, ReleasedGenerator] = {"final": load_released(directory)}
    if order.plan.config.get("warm_start") is True:
        generators["warm_start"] = load_released(directory, which="warm_start")
    steps = len(generators) * len(CLASSIFIER_KINDS)
    seed = int(order.plan.config.get("evaluation_seed", SEED))
    count = int(order.plan.config.get("evaluation_samples", SAMPLES))
    results: dict[str, dict[ClassifierKind, Utility]] = {}
    for which, generator in generators.items():
        generator.to(context.device)
        request = SampleRequest(count=count, seed=seed, names=order.facts.classes)
        train = _synthetic_images(generator, request, context.device, progress)
        results[which] = {}
        for kind in CLASSIFIER_KINDS:
            look = partial(progress, stage=STAGE, step=sum(len(found) for found in results.values()), steps=steps)
            look()
            results[which][kind] = train_and_test(
                kind,
                train.images,
                train.labels,
                test.images,
                test.labels,
                classes=len(order.facts.classes),
                seed=seed,
                device=context.device,
                look=look,
            )
    accuracy = {
        which: {str(kind): utility.accuracy for kind, utility in found.items()} for which, found in results.items()
    }
    return Usefulness(
        evaluation_dataset=order.evaluation.name if order.evaluation is not None else dataset_id,
        train_images=count,
        test_images=len(test.labels),
        seeds=(seed,),
        accuracy=accuracy["final"],
        accuracy_warm_start_only=accuracy.get("warm_start"),
        confusion=results["final"]["cnn"].confusion,
    )


def _public_images(context: Context, dataset_id: str) -> Images:
    images, labels = open_dataset(context.settings, dataset_id)
    pixels = np.asarray(images)
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)  # (n, c, h, w)
    return Images(torch.from_numpy(np.array(pixels)), torch.from_numpy(np.array(labels)))


def _synthetic_images(
    generator: ReleasedGenerator, request: SampleRequest, device: torch.device, progress: Progress
) -> Images:
    images, labels = draw_with_progress(generator, request, device, progress)
    pixels = np.ascontiguousarray(images.transpose(0, 3, 1, 2))  # (n, c, h, w)
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels))


def draw_with_progress(
    generator: ReleasedGenerator, request: SampleRequest, device: torch.device, progress: Progress
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Draw images as `workers.sampling.draw_arrays` does, and tell how many there are.

    Raises:
        Cancelled: the attempt was told to stop.
    """
    return draw_arrays(
        generator,
        request,
        device,
        on_drawn=lambda drawn: progress(stage=DRAWING, step=drawn, steps=request.count),
    )
