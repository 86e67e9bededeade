"""Reading the IDX files."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fashion_mnist import load_split


def test_images_and_labels_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28)).astype(np.uint8)
    labels = np.array([3, 1, 4, 1, 5], dtype=np.uint8)
    header = struct.pack(">HBB4I", 0, 8, 3, 5, 28, 28, 0)[:16]
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + images.tobytes()))
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(header[:8] + labels.tobytes()))
    monkeypatch.setenv("OBSCURA_FASHION_MNIST", str(tmp_path))
    read, truth = load_split("test")
    np.testing.assert_array_equal(read, images)
    np.testing.assert_array_equal(truth, labels)
    assert (read.dtype, truth.dtype) == (np.uint8, np.int64)
    with pytest.raises(FileNotFoundError, match="dataset-fashion-mnist"):
        load_split("train")
