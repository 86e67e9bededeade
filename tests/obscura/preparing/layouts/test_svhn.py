"""SVHN on small copies of its .mat files, as MATLAB writes them: zero is 10, and pictures lie along the last axis."""

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from obscura.preparing import Choices, PackingError, prepare
from tests.obscura.preparing.layouts.received import received


@pytest.fixture
def images() -> np.ndarray:
    """(n, h, w, 3)"""
    return np.random.default_rng(6).integers(0, 255, (12, 32, 32, 3), dtype=np.uint8)


@pytest.fixture
def root(tmp_path: Path, images: np.ndarray) -> Path:
    """A training part of twelve and a test part of five."""
    labels = np.array([10, *range(1, 10), 10, 1], np.uint8)
    for part, count in (("train", 12), ("test", 5)):
        content = {"X": images[:count].transpose(1, 2, 3, 0), "y": labels[:count, None]}
        savemat(tmp_path / f"{part}_32x32.mat", content, do_compression=True)
    return tmp_path


def test_parts_and_digits(root, images):
    package = prepare(root)
    assert package.classes == tuple("0123456789")
    assert package.summary == "SVHN, train (not test; --split chooses): 12 pictures: as they are."
    found = received(package)
    assert [label for label, _ in found] == [*"0123456789", "0", "1"]
    assert (np.stack([pixels for _, pixels in found]) == images).all()
    assert prepare(root, Choices(split="test")).private_records == 5
    assert prepare(root / "test_32x32.mat").private_records == 5
    with pytest.raises(PackingError, match="test, train"):
        prepare(root, Choices(split="extra"))
    with pytest.raises(PackingError, match="does not say whose"):
        prepare(root, subjects=True)


@pytest.mark.parametrize(
    "content",
    [
        {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1]])},
        {"X": np.zeros((32, 32, 3, 1), np.uint8), "y": np.array([[11]])},
        {"X": np.zeros((32, 32, 3, 1)), "y": np.array([[1]])},
        {"Z": np.zeros(3)},
        None,
    ],
)
def test_other_files(root, content):
    path = root / "train_32x32.mat"
    if content is None:
        path.write_bytes(path.read_bytes()[:500])
    else:
        savemat(path, content)
    with pytest.raises(PackingError, match="part of SVHN"):
        prepare(root)
