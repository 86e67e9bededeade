"""Stand-ins have what was declared, are the same every time, and are tested on images that took no part."""

from typing import Any

import numpy as np
import pytest
import torch

from models import stand_ins
from models.stand_ins import StandIn, StandInUnusable, are_characters, from_public, generated

SHAPES = [(1, 8, 12), (3, 16, 16)]


def public(count: int = 60, classes: int = 4, shape: tuple[int, ...] = (10, 10)) -> tuple[np.ndarray, np.ndarray]:
    stream = np.random.default_rng(0)
    return stream.integers(0, 256, (count, *shape), dtype=np.uint8), np.arange(count) % classes


def stand_in(made_of: str, classes: int = 3, **wanted: Any) -> StandIn:
    if made_of == "patterns":
        return generated(("cat", "dog", "cow", "hen")[:classes], **wanted)
    if made_of == "characters":
        return generated(tuple("0127")[:classes], **wanted)
    images = public(shape=(10, 10, 3) if made_of == "colour" else (10, 10))
    return from_public(*images, tuple("abcd"), name="public", classes=classes, **wanted)


@pytest.mark.parametrize("shape", SHAPES, ids=["grey", "colour"])
@pytest.mark.parametrize("made_of", ["patterns", "grey", "colour"])
def test_a_stand_in_has_the_declared_count_classes_and_shape(shape, made_of):
    made = stand_in(made_of, count=70, shape=shape)
    channels, height, width = shape
    assert made.images.shape == (70, height, width) + ((3,) if channels == 3 else ())
    assert (made.images.dtype, made.labels.dtype) == (np.uint8, np.int64)
    assert set(made.labels) == set(made.test_labels.tolist()) == {0, 1, 2}
    assert made.test_images.shape[1:] == shape
    assert len(made.classes) == 3
    assert np.array_equal(made.images, stand_in(made_of, count=70, shape=shape).images)


@pytest.mark.parametrize("made_of", ["patterns", "characters", "grey"])
def test_classes_come_in_the_stated_shares_and_all_are_tested(made_of):
    made = stand_in(made_of, count=200, shape=(1, 10, 10), shares=(0.9, 0.02, 0.08))
    assert np.bincount(made.labels).tolist() == [180, 4, 16]
    assert len(made.images) == 200
    assert set(made.test_labels.tolist()) == {0, 1, 2}
    assert len(set(made.labels[:20])) > 1, "mixed"


def test_a_class_that_is_too_rare_to_come_at_all_is_still_tested():
    made = generated(("cat", "dog"), count=10, shape=(1, 8, 8), shares=(0.999, 0.001))
    assert np.bincount(made.labels, minlength=2).tolist() == [10, 0]
    assert set(made.test_labels.tolist()) == {0, 1}


def test_tested_images_took_no_part():
    images, labels = public(count=200, classes=2)
    made = from_public(images, labels, ("a", "b"), name="public", count=500, classes=2, shape=(1, 10, 10))
    own = {image.tobytes() for image in made.images}
    tested = [image.numpy().tobytes() for image in made.test_images[:, 0]]
    assert not own.intersection(tested)
    assert len(tested) == 40


@pytest.mark.parametrize("names", [("a",), tuple("0123456789"), tuple("abcXYZ")])
@pytest.mark.parametrize("shape", SHAPES, ids=["grey", "colour"])
def test_characters_are_written_differently_in_every_image(names, shape):
    made = generated(names, count=40, shape=shape)
    assert made.classes == names
    assert made.images.shape == (40, *shape[1:]) + ((3,) if shape[0] == 3 else ())
    assert made.test_images.shape[1:] == shape
    assert len({image.tobytes() for image in made.images}) == 40
    assert np.array_equal(made.images, generated(names, count=40, shape=shape).images)
    assert made.images.reshape(40, -1).std(axis=1).min() > 1  # something is written on each


@pytest.mark.parametrize(
    ("names", "written"),
    [("0 1 9", True), ("a B 7", True), ("cat dog", False), ("a bc", False), ("é f", False), ("日 本", False)],
)
def test_only_single_letters_and_digits_can_be_written(names, written):
    assert are_characters(tuple(names.split())) is written


@pytest.mark.parametrize("kind", ["patterns", "characters"])
def test_classes_can_be_told_apart(kind):
    made = stand_in(kind, classes=4, count=600, shape=(1, 28, 28))
    means = np.stack([made.images[made.labels == label].mean(axis=0) for label in range(4)]).reshape(4, -1)
    rows = made.test_images.numpy().reshape(len(made.test_images), -1).astype(float)
    means, rows = (each - each.mean(axis=1, keepdims=True) for each in (means, rows))
    right = (rows @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T).argmax(axis=1)
    assert (right == made.test_labels.numpy()).mean() > 0.5


@pytest.mark.parametrize("classes", [5, 4])
def test_what_cannot_stand_in_is_refused(classes):
    images, labels = public()
    with pytest.raises(StandInUnusable, match="no images"):
        from_public(images, labels % 3, tuple("abcd"), name="public", count=10, classes=classes, shape=(1, 8, 8))


def test_patterns_follow_from_their_seed_and_differ_from_each_other():
    images = stand_ins.public_patterns(50, 3, 28, 20, seed=1)
    assert images.shape == (50, 3, 28, 20)
    assert 0 <= images.min() < 0.1 < 0.9 < images.max() <= 1
    assert torch.equal(images, stand_ins.public_patterns(50, 3, 28, 20, seed=1))
    assert not torch.equal(images, stand_ins.public_patterns(50, 3, 28, 20, seed=2))
    assert images.flatten(1).std(dim=1).min() > 0.01
    assert len({tuple(image.flatten().tolist()) for image in images}) == 50
