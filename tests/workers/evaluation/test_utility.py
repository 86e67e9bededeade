"""Usefulness: what can be learnt is learnt, what cannot is chance, and the answer follows from the seed alone."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.classifiers import CLASSIFIER_KINDS, ClassifierKind, Dropout
from workers.evaluation import utility
from workers.evaluation.utility import TRAINING, Utility, accuracy_by_class, are_uneven, as_seen, train_and_test

CLASSES = 3


def stripes(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images (n, 1, 12, 8), one third of whose rows are brighter, according to the class; and the classes."""
    stream = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    images = torch.rand(n, 1, 12, 8, generator=stream) * 0.5
    rows = torch.arange(12) // 4
    return images + 0.4 * (rows[None, :] == labels[:, None])[:, None, :, None], labels


TRAIN, TEST = stripes(900, 1), stripes(300, 2)
FEW = TRAIN[0][:60], TRAIN[1][:60]


def judged(kind: ClassifierKind, train: tuple[Tensor, Tensor] = TRAIN, **changes: Any) -> Utility:
    return train_and_test(kind, *train, *changes.pop("test", TEST), **{"classes": CLASSES, "seed": 0} | changes)


@pytest.mark.parametrize("kind", CLASSIFIER_KINDS)
def test_separable_classes_are_told_apart(kind):
    utility = judged(kind, epochs=15)
    assert utility.accuracy > 0.9
    confusion = np.array(utility.confusion)
    assert confusion.sum(axis=1).tolist() == [100, 100, 100]  # rows are true classes
    assert confusion.trace() / 300 == pytest.approx(utility.accuracy)


@pytest.mark.parametrize("kind", CLASSIFIER_KINDS)
def test_labels_at_random_teach_nothing(kind):
    labels = torch.randint(0, CLASSES, (900,), generator=torch.Generator().manual_seed(3))
    assert 0.1 < judged(kind, (TRAIN[0], labels), epochs=2).accuracy < 0.6  # chance is a third


def test_confusion_counts_true_rows_and_predicted_columns():
    """A classifier that has only ever seen class 1 says class 1."""
    ones = torch.ones(900, dtype=torch.int64)
    utility = judged("logistic_regression", (TRAIN[0], ones), epochs=15)
    assert np.array(utility.confusion)[:, 1].tolist() == [100, 100, 100]
    assert utility.accuracy == pytest.approx(1 / 3)


@pytest.mark.parametrize("kind", CLASSIFIER_KINDS)
def test_the_seed_decides(kind):
    one, two, other = (judged(kind, FEW, seed=seed, epochs=2) for seed in (5, 5, 6))
    assert one == two
    assert one.confusion != other.confusion


def test_large_images_go_through_the_network_in_parts_and_teach_the_same(monkeypatch):
    together = list[int]()
    whole = judged("logistic_regression", epochs=15)

    def watched(images: Tensor) -> Tensor:
        together.append(len(images))
        return images.float()

    monkeypatch.setattr(utility, "_unit_interval", watched)
    monkeypatch.setattr(utility, "_PIXELS_TOGETHER", 12 * 8 * 100)
    parts = judged("logistic_regression", epochs=15)
    assert set(together) == {100, 50}  # of a batch of 250, and of 300 to be tested on
    assert abs(parts.accuracy - whole.accuracy) < 0.02  # sums are rounded otherwise


def test_the_global_random_state_is_neither_read_nor_changed():
    torch.manual_seed(1)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    first = judged("cnn", FEW, seed=5, epochs=2)
    assert torch.equal(before, torch.get_rng_state())
    assert np.random.get_state()[1].tolist() == numpy_before
    torch.manual_seed(2)
    assert judged("cnn", FEW, seed=5, epochs=2) == first


@pytest.mark.parametrize("kind", CLASSIFIER_KINDS)
def test_bytes_and_fractions_are_the_same_images(kind):
    train, test = ((images * 255).round().byte() for images in (FEW[0], TEST[0]))
    found = [
        judged(kind, (as_type(train), FEW[1]), test=(as_type(test), TEST[1]), epochs=2)
        for as_type in (lambda images: images, lambda images: images.float() / 255)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", CLASSIFIER_KINDS)
def test_training_and_test_can_be_ended_between_any_two_layers(kind):
    looks, last, told = 0, 10**9, list[int]()

    def look(step: int, steps: int) -> None:
        nonlocal looks
        assert 0 <= step <= steps
        looks += 1
        told.append(step)
        if looks == last:
            raise InterruptedError

    found, whole = judged(kind, epochs=1, look=look), looks
    steps = TRAINING[kind].steps(900, epochs=1)
    assert sorted(set(told)) == list(range(steps + 1))  # the steps that are done, each told before its layers compute
    assert found == judged(kind, epochs=1)
    passes = 900 // TRAINING[kind].batch + 1  # the last of them is the test
    assert whole % passes == 0
    for last in (1, whole):
        looks = 0
        with pytest.raises(InterruptedError):
            judged(kind, epochs=1, look=look)
        assert looks == last


@pytest.mark.parametrize("empty", ["train", "test"])
def test_nothing_to_train_or_test_on_is_refused(empty):
    with pytest.raises(ValueError, match="at least one"):
        judged("cnn", **{empty: (TRAIN[0][:0], TRAIN[1][:0])})


@pytest.mark.parametrize("n", [1, 2, 7])
def test_a_handful_of_images_is_enough_to_run(n):
    assert 0 <= judged("cnn", (TRAIN[0][:n], TRAIN[1][:n]), epochs=1).accuracy <= 1


def test_colour_images_are_judged():
    train, test = ((images.repeat(1, 3, 1, 1), labels) for images, labels in (TRAIN, TEST))
    assert judged("cnn", train, test=test, epochs=10).accuracy > 0.9


def test_side_by_side_each_learns_what_it_learns_alone():
    seeds, threads = range(4), torch.get_num_threads()
    meaningless = TRAIN[0], torch.randint(0, CLASSES, TRAIN[1].shape, generator=torch.Generator().manual_seed(5))

    def learned(seed: int) -> Utility:
        return judged("cnn", meaningless, seed=seed, epochs=6)

    torch.set_num_threads(1)
    try:
        alone = [learned(seed) for seed in seeds]
        with ThreadPoolExecutor(len(seeds)) as pool:
            together = list(pool.map(learned, seeds))
    finally:
        torch.set_num_threads(threads)
    assert together == alone
    assert len({each.confusion for each in alone}) > 1


@pytest.mark.parametrize("rate", [0.2, 0.4])
def test_dropout_leaves_out_its_share_and_keeps_the_mean(rate):
    layer, numbers = Dropout(rate), torch.ones(400, 1003, requires_grad=True)
    layer.stream = torch.Generator().manual_seed(0)
    left = layer(numbers)
    left.sum().backward()
    assert left.unique().tolist() == pytest.approx([0.0, 1 / (1 - rate)], rel=1e-4)
    assert float((left == 0).double().mean()) == pytest.approx(rate, abs=0.003)  # four deviations
    assert float((left == 0).double().mean(dim=0).max()) < rate + 0.15  # in no place of four is it another
    assert torch.equal(numbers.grad, left.detach())
    assert not torch.equal(layer(numbers.detach()), left)
    assert torch.equal(layer.eval()(numbers), numbers)


def test_a_classifier_that_knows_only_the_large_class_is_not_balanced():
    large = Utility(0.9, ((90, 0, 0), (10, 0, 0), (0, 0, 0)))
    assert large.balanced_accuracy == 0.5  # of the two classes that have images
    assert accuracy_by_class(large.confusion) == [1.0, 0.0, None]
    assert are_uneven(large.confusion)
    assert not are_uneven(((7, 3), (9, 6)))


@pytest.mark.parametrize(
    ("size", "seen"),
    [((28, 28), (28, 28)), ((64, 64), (64, 64)), ((128, 128), (64, 64)), ((200, 100), (64, 32)), ((1, 1000), (1, 64))],
)
def test_classifiers_see_at_most_64_pixels_a_side(size, seen):
    images = torch.randint(0, 256, (70, 3, *size), dtype=torch.uint8)
    found = as_seen(images)
    assert found.shape == (70, 3, *seen)
    assert found is images if size == seen else found.dtype == torch.uint8
    assert (found.double().mean((1, 2, 3)) - images.double().mean((1, 2, 3))).abs().max() < 4


def test_large_images_are_averaged_over_areas_and_teach_as_much(monkeypatch):
    large = [images.repeat_interleave(20, 2).repeat_interleave(20, 3) for images in (TRAIN[0], TEST[0])]  # 240 x 160
    assert torch.equal(as_seen(large[0][:, :, :, :120]), as_seen(as_seen(large[0][:, :, :, :120])))
    monkeypatch.setattr(utility, "SIDE_MAX", 12)
    assert (as_seen(large[0]) - TRAIN[0]).abs().max() < 1e-4
    small = judged("cnn", epochs=2)
    assert judged("cnn", (as_seen(large[0]), TRAIN[1]), epochs=2, test=(large[1], TEST[1])) == small
