"""Usefulness of what was trained, measured once on public images: a classifier's accuracy, or that of classifiers
trained on a generator's samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from models.classifiers import CLASSIFIER_KINDS, ClassifierKind
from models.private_classifier import load_classifier
from models.released import ReleasedGenerator, load_released
from models.watching import between_layers
from workers.evaluation.utility import Utility, train_and_test
from workers.planned_work import DRAWING, EVALUATION, EVALUATION_SHARES
from workers.recipes.interface import Progress
from workers.sampling import SampleRequest, draw


@dataclass(frozen=True)
class Images:
    """Images `(n, c, h, w)` uint8 and labels `(n,)` int64: synthetic or public."""

    images: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True)
class Measured:
    """What an evaluation found.

    Attributes:
        accuracy: in [0, 1], by classifier.
        warm_start_only: the same of the generator before its first vote, where there is one.
        confusion: counts (classes, classes) of the CNN, or of the released classifier, a row per true class.
    """

    accuracy: dict[str, float]
    warm_start_only: dict[str, float] | None
    confusion: tuple[tuple[int, ...], ...]


def measure_generator(
    directory: Path,
    test: Images,
    request: SampleRequest,
    *,
    warm_start: bool,
    device: torch.device,
    progress: Progress,
) -> Measured:
    """Train classifiers on a released generator's samples, and test them once.

    Args:
        directory: of the release.
        test: public images.
        request: the samples to train on; its seed is that of the classifiers, too.
        warm_start: measure what the generator was before its first vote as well.
        device: to draw and train on.
        progress: is told about the images that are drawn, and about the classifiers' steps.

    Raises:
        Cancelled: from `progress`.
        FileNotFoundError: the release's files are gone (ValueError: damaged).
    """
    generators: dict[str, ReleasedGenerator] = {"final": load_released(directory)}
    if warm_start:
        generators["warm_start"] = load_released(directory, which="warm_start")
    results: dict[str, dict[ClassifierKind, Utility]] = {}
    for which, generator in generators.items():
        generator.to(device)
        drawn = list(draw_with_progress(generator, request, device, progress))
        images = torch.from_numpy(np.concatenate([pixels for pixels, _ in drawn]).transpose(0, 3, 1, 2).copy())
        labels = torch.from_numpy(np.concatenate([labels for _, labels in drawn]))
        results[which], before = {}, 0

        def look(done: int, steps: int, *, before: int, share: int) -> None:
            progress(stage=EVALUATION, step=before + share * done // max(steps, 1), steps=100)

        for kind in CLASSIFIER_KINDS:
            share = EVALUATION_SHARES[kind]
            results[which][kind] = train_and_test(
                kind,
                images,
                labels,
                test.images,
                test.labels,
                classes=len(request.names),
                seed=request.seed,
                device=device,
                look=partial(look, before=before, share=share),
            )
            before += share
    accuracy = {
        which: {str(kind): utility.accuracy for kind, utility in found.items()} for which, found in results.items()
    }
    return Measured(accuracy["final"], accuracy.get("warm_start"), results["final"]["cnn"].confusion)


def measure_classifier(directory: Path, test: Images, *, device: torch.device, progress: Progress) -> Measured:
    """Test a released classifier once; arguments and errors as in `measure_generator`."""

    def look() -> None:
        progress(stage=EVALUATION, step=0, steps=1)

    look()
    classifier = load_classifier(directory).to(device)
    with between_layers(classifier.modules(), look):
        predicted = classifier.predict(test.images)
    classes = len(classifier.config.classes)
    counts = torch.bincount(test.labels * classes + predicted, minlength=classes**2).reshape(classes, classes)
    confusion = tuple(tuple(int(count) for count in row) for row in counts)
    return Measured({"classifier": float((predicted == test.labels).double().mean())}, None, confusion)


def public_images(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> Images:
    """Return a stored public dataset, (n, h, w) or (n, h, w, c), as tensors."""
    pixels = np.asarray(images)
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)  # (n, c, h, w)
    return Images(torch.from_numpy(np.array(pixels)), torch.from_numpy(np.array(labels)))


def draw_with_progress(
    generator: ReleasedGenerator, request: SampleRequest, device: torch.device, progress: Progress
) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]]:
    """Yield batches as `workers.sampling.draw` does, and tell how many images there are.

    Raises:
        Cancelled: from `progress`.
    """

    def tell(drawn: int) -> None:
        progress(stage=DRAWING, step=drawn, steps=request.count)

    return draw(generator, request, device, on_drawn=tell)
