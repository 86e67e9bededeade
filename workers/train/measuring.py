"""Measurements of a release on public images, for evaluations and previews. Nothing private is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from models.classifiers import CLASSIFIER_KINDS, ClassifierKind, between_layers
from models.private_classifier import load_classifier
from models.released import ReleasedGenerator, load_released
from obscura.wire.release_schemas import SimilarityFacts
from privacy.mechanisms.topagg import side_by_side
from privacy.plans.plan import Plan, PublicFacts
from workers.evaluation.similarity import IMAGES_MAX, NamedExtractor, measure_similarity
from workers.evaluation.utility import TRAINING, Utility, as_seen, seen_size, train_and_test
from workers.recipes.interface import Piece, Progress
from workers.train.drawing import SampleRequest, draw, drawing_work

EVALUATION, LIKENESS = "evaluate", "evaluate_likeness"  # stages of reports
REFERENCE = "reference"  # the classifier trained on real images
# Cost of training on an image, and of comparing one; see `workers.recipes.interface.Piece`.
_SECONDS: Mapping[ClassifierKind, float] = {"logistic_regression": 4e-6, "mlp": 1.2e-5, "cnn": 1.2e-4}
_LIKENESS_SECONDS = 2e-4
_BYTES_TOGETHER = 2**30  # of images of several generators in memory at once, for parallel training
_REFERENCE_MIN = 20  # with fewer public images, they are not split


def evaluation_work(
    plan: Plan, facts: PublicFacts, count: int, test_images: int, kept_reference: float | None
) -> tuple[Piece, ...]:
    """Return the work of measuring a generator on `count` images, and again without its guide, if it has one."""
    generators = 2 if plan.config.changes_its_start else 1
    learning = generators * sum(_learning_seconds(kind, count) for kind in CLASSIFIER_KINDS)
    learning += _learning_seconds("cnn", max(1, test_images // 2)) if kept_reference is None else 0
    compared = min(count, test_images, IMAGES_MAX)
    return (
        *[drawing_work(plan, facts, count)] * generators,
        Piece(EVALUATION, 100, learning * as_classifiers_see(facts).size),
        Piece(LIKENESS, 100, _LIKENESS_SECONDS * compared * facts.size),
    )


def as_classifiers_see(facts: PublicFacts) -> PublicFacts:
    height, width = seen_size(facts.height, facts.width)
    return replace(facts, height=height, width=width)


def _learning_seconds(kind: ClassifierKind, count: int) -> float:
    training = TRAINING[kind]
    return training.steps(count) * min(training.batch, count) * _SECONDS[kind]


@dataclass(frozen=True)
class Images:
    """Images `(n, c, h, w)` uint8 and labels `(n,)` int64: synthetic or public."""

    images: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True)
class Measured:
    """The results of an evaluation.

    Attributes:
        accuracy: in [0, 1], by classifier.
        balanced: balanced accuracy in [0, 1], by classifier.
        warm_start_only: accuracy of a guided generator without its guide, in [0, 1], by classifier.
        confusion: counts (classes, classes) of the CNN or of the released classifier, one row per true class.
        real: accuracy of the CNN trained on one half of the public images and tested on the other; generators only.
        similarity: similarity of synthetic and public images; generators only, if there are enough images.
        seen: height and width to which images were reduced for classifiers; None if they were not.
    """

    accuracy: dict[str, float]
    balanced: dict[str, float]
    warm_start_only: dict[str, float] | None
    confusion: tuple[tuple[int, ...], ...]
    real: float | None = None
    similarity: SimilarityFacts | None = None
    seen: tuple[int, int] | None = None


def measure_generator(
    directory: Path,
    public: Images,
    extractor: NamedExtractor,
    request: SampleRequest,
    *,
    device: torch.device,
    warm_start: bool,
    reference: float | None,
    progress: Progress,
) -> Measured:
    """Train classifiers on a released generator's samples, and test them once.

    Args:
        public: images for testing classifiers and for comparison with synthetic images.
        request: the samples to train on; its seed is also used for the classifiers.
        warm_start: also measure the generator without its guide.
        reference: `Measured.real` of an earlier evaluation, if any.
    """
    test = Images(as_seen(public.images), public.labels)
    generators: dict[str, ReleasedGenerator] = {}
    if warm_start:
        generators["warm_start"] = load_released(directory, which="warm_start")
    generators["final"] = load_released(directory)  # last, because its images are also compared with the public images
    wanted: list[tuple[str, ClassifierKind, Images, Images]] = []  # names, kinds, training and test images
    learning = sum(_learning_seconds(kind, request.count) for kind in CLASSIFIER_KINDS) * len(generators)
    if reference is None and len(test.labels) >= _REFERENCE_MIN:
        order = torch.randperm(len(test.labels), generator=torch.Generator().manual_seed(request.seed))
        halves = [Images(test.images[half], test.labels[half]) for half in (order[::2], order[1::2])]
        wanted.append((REFERENCE, "cnn", halves[0], halves[1]))
        learning += _learning_seconds("cnn", len(halves[0].labels))
    lock, done = Lock(), dict[tuple[str, ClassifierKind], float]()
    found: dict[tuple[str, ClassifierKind], Utility] = {}

    def learn(number: int) -> tuple[tuple[str, ClassifierKind], Utility]:
        name, kind, seen, asked = wanted[number]
        cost = _learning_seconds(kind, len(seen.labels))

        def look(step: int, steps: int) -> None:
            with lock:
                done[name, kind] = cost * step / max(steps, 1)
                share = sum(done.values()) / learning
                progress(stage=EVALUATION, step=min(100, int(100 * share)), steps=100)

        sizes: dict[str, Any] = {"classes": len(request.names), "seed": request.seed, "device": device}
        pixels = seen.images, seen.labels, asked.images, asked.labels
        return (name, kind), train_and_test(kind, *pixels, look=look, **sizes)

    few = request.count * test.images[0].numel() * len(generators) <= _BYTES_TOGETHER
    for which, generator in generators.items():
        generator.to(device)
        synthetic, whole = drawn_images(generator, request, progress)
        wanted += [(which, kind, synthetic, test) for kind in CLASSIFIER_KINDS]
        if which == "final" or not few:
            wanted.sort(key=lambda each: -_learning_seconds(each[1], len(each[2].labels)))  # longest first
            found |= dict(side_by_side(learn, range(len(wanted)), device))
            wanted.clear()
    accuracy = {which: {str(kind): found[which, kind].accuracy for kind in CLASSIFIER_KINDS} for which in generators}

    def compared(blocks: int, steps: int) -> None:
        progress(stage=LIKENESS, step=100 * blocks // max(steps, 1), steps=100)

    real = found.get((REFERENCE, "cnn"))
    return Measured(
        accuracy=accuracy["final"],
        balanced={str(kind): found["final", kind].balanced_accuracy for kind in CLASSIFIER_KINDS},
        warm_start_only=accuracy.get("warm_start"),
        confusion=found["final", "cnn"].confusion,
        real=reference if real is None else real.accuracy,
        similarity=measure_similarity(whole, public.images, extractor, seed=request.seed, look=compared),
        seen=None if test.images.shape == public.images.shape else (test.images.shape[2], test.images.shape[3]),
    )


def measure_classifier(directory: Path, test: Images, *, device: torch.device, progress: Progress) -> Measured:
    look = partial(progress, stage=EVALUATION, step=0, steps=1)
    look()
    classifier = load_classifier(directory).to(device)
    with between_layers(classifier.modules(), look):
        predicted = classifier.predict(test.images)
    utility = Utility.of(test.labels, predicted, len(classifier.config.classes))
    balanced = {"classifier": utility.balanced_accuracy}
    return Measured({"classifier": utility.accuracy}, balanced, None, utility.confusion)


def drawn_images(
    generator: ReleasedGenerator, request: SampleRequest, progress: Progress
) -> tuple[Images, torch.Tensor]:
    """Generate the requested images in memory.

    Returns:
        The images as classifiers see them, and the same images at full size, (m, c, h, w) uint8. If classifiers see
        reduced images, only the first IMAGES_MAX are returned at full size.
    """
    images, whole, drawn = torch.empty(0), torch.empty(0), 0
    for pixels, _ in draw(generator, request, progress):
        part = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        seen = as_seen(part)
        if not drawn:
            images = torch.empty(request.count, *seen.shape[1:], dtype=torch.uint8)
            large = seen.shape != part.shape
            whole = torch.empty(min(request.count, IMAGES_MAX), *part.shape[1:], dtype=torch.uint8) if large else images
        images[drawn : drawn + len(part)] = seen
        if whole is not images:
            whole[drawn : drawn + len(part)] = part[: max(len(whole) - drawn, 0)]
        drawn += len(part)
    return Images(images, torch.from_numpy(request.labels)), whole


def public_images(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> Images:
    """Convert a stored public dataset, with images (n, h, w) or (n, h, w, c) uint8, to `Images`."""
    pixels = np.asarray(images)
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)  # (n, c, h, w)
    return Images(torch.from_numpy(np.array(pixels)), torch.from_numpy(np.array(labels)))
