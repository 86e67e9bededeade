"""Benchmarks that need a test or two: their measurements on small inputs."""

import gzip
import struct

import numpy as np
import pytest
import torch

from benchmarks import drawing, gradient_memory, membership_inference
from benchmarks.float_safety import COLLECTIONS, collection, distance, measure, neighbours
from benchmarks.membership_inference import row_of
from benchmarks.small_data import Folder
from models.portable.textured import TexturedConfig, TexturedGenerator
from models.public_images import fashion_mnist
from tests.models.checks import stream as random_stream


def test_the_idx_files_of_fashion_mnist_are_read(tmp_path, monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28)).astype(np.uint8)
    labels = np.array([3, 1, 4, 1, 5], dtype=np.uint8)
    header = struct.pack(">HBB4I", 0, 8, 3, 5, 28, 28, 0)[:16]
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + images.tobytes()))
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(header[:8] + labels.tobytes()))
    monkeypatch.setenv("OBSCURA_FASHION_MNIST", str(tmp_path))
    read, truth = fashion_mnist("test")[:2]
    np.testing.assert_array_equal(read, images)
    np.testing.assert_array_equal(truth, labels)
    assert (read.dtype, truth.dtype) == (np.uint8, np.int64)
    with pytest.raises(FileNotFoundError, match="dataset-fashion-mnist"):
        fashion_mnist("train")[:2]


def test_a_distance_is_that_of_integers_which_no_float_holds():
    first, second = torch.tensor([2**61 + 3, 0]), torch.tensor([2**61, 4])
    assert distance(first, second) == 5


@pytest.mark.parametrize("kind", COLLECTIONS)
def test_neighbours_have_one_unit_more(kind):
    units = collection(kind, 100)
    assert [len(one) for one in neighbours(units)] == [101] * 3
    assert [np.flatnonzero(one == 1023).tolist() for one in neighbours(units)] == [[0], [51], [100]]
    assert all(np.delete(one, np.flatnonzero(one == 1023)).tolist() == units.tolist() for one in neighbours(units))


def test_a_row_of_the_table_of_neighbours_distances():
    row = measure("topagg", 100, 1e-6)
    assert (row["estimator"], row["units"], row["clip"]) == ("topagg", 100, 1e-6)
    assert 0.9 < row["distance"] <= 1


def test_live_and_peak_bytes_are_those_of_the_tensors_that_exist():
    with gradient_memory.LiveBytes() as counter:
        kept = torch.zeros(100)  # 400 bytes
        passing = torch.ones(1000) * 2  # 4,000 bytes twice
        assert counter.now == 4400
        kept[:50].add_(1)  # a view and an operation in place make nothing new
        del passing
        assert counter.now == 400
    assert counter.peak == 8400
    assert kept.sum() == 50


def test_explicit_gradients_take_every_parameter_once_for_each_record_and_carriers_far_less():
    model = gradient_memory.network(depth=10, widen=2)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    found = gradient_memory.measure(model, records=3, rank=2)
    assert 1 <= found["dpsgd"]["per_sample_bytes"] / (4 * 3 * parameters) < 1.01
    assert found["rgp"]["per_sample_bytes"] < found["dpsgd"]["per_sample_bytes"] / 4
    for figures in found.values():
        assert figures["peak_bytes"] >= figures["per_sample_bytes"]


def test_without_privacy_members_are_told_apart_and_with_it_they_are_not(monkeypatch):
    """On images and labels without any pattern: whatever is right about them was learned by heart."""

    stream = np.random.default_rng(0)
    images, labels = stream.integers(0, 256, (400, 28, 28)).astype(np.uint8), stream.integers(0, 10, 400)
    folder = Folder(images[:200], labels[:200], images[200:], labels[200:], tuple("0123456789"))
    monkeypatch.setattr(membership_inference, "fashion", lambda: folder)
    monkeypatch.setitem(membership_inference.PRIVATE, "epochs", 2.0)
    monkeypatch.setitem(membership_inference.PRIVATE, "expected_batch", 50)
    bare = row_of(None, [0, 1], members=120, epochs=60)
    assert bare["accuracy_members"] > bare["accuracy_others"] + 0.4
    assert bare["success_rate"] - 4 * bare["standard_error"] > 0.6
    private = row_of(1.0, [0, 1], members=120, epochs=60)
    assert abs(private["success_rate"] - 0.5) < 4 * max(private["standard_error"], 0.02)
    assert private["accuracy_members"] < 0.3


def test_drawing_is_seeded_and_every_batch_is_timed() -> None:
    made = TexturedGenerator(TexturedConfig(2, 1, 8, 8, components=3))
    made.mean += torch.rand(made.mean.shape, generator=random_stream(0))
    made.factor += torch.rand(made.factor.shape, generator=random_stream(1)) / 10
    pixels, labels, milliseconds = drawing.draw(made, 2, 300, seed=1)
    assert labels.bincount().tolist() == [150, 150]
    assert len(milliseconds) == 2
    assert min(milliseconds) > 0
    assert torch.equal(drawing.draw(made, 2, 300, seed=1)[0], pixels)
