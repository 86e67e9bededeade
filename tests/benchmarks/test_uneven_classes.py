"""The benchmark of uneven classes: few records of one class, and variants in what is made of the released counts."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import uneven_classes
from benchmarks.small_data import Folder
from benchmarks.uneven_classes import EACH, main, ridge, with_rare


def blobs(count: int = 2 * EACH) -> Folder:
    """Ten classes of 8 x 8 pictures, each with one bright row or column."""
    stream = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), count)
    images = stream.integers(0, 60, (len(labels), 8, 8)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[label % 5 if label < 5 else slice(None), slice(None) if label < 5 else label % 5] += 180
    order = stream.permutation(len(labels))
    images, labels = images[order], labels[order]
    return Folder(images, labels, images[:500], labels[:500], tuple(map(str, range(10))))


def test_one_class_is_rare_and_the_others_are_not() -> None:
    counts = np.bincount(with_rare(blobs(), 3, 7).labels)
    assert counts.tolist() == [EACH] * 3 + [7] + [EACH] * 6


def test_a_linear_classifier_learns_what_is_linear() -> None:
    folder = blobs(20)
    images, labels = torch.from_numpy(folder.images)[:, None], torch.from_numpy(folder.labels)
    assert (ridge(images, labels, images) == labels).double().mean() > 0.95


def test_each_row_is_made_once_and_says_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uneven_classes, "fashion", blobs)
    monkeypatch.setattr(uneven_classes, "RARE", (3,))
    monkeypatch.setattr(uneven_classes, "SAMPLES", 200)
    file = tmp_path / "rows.json"
    monkeypatch.setattr(sys, "argv", ["x", "--json", str(file), "--epsilons", "8", "--counts", "30"])
    main()
    first = file.read_text()
    rows = json.loads(first)["rows"]
    assert [row["variant"] for row in rows] == ["today", "exact"]
    assert all((row["rare"], row["count"], row["epsilon"]) == (3, 30, 8.0) for row in rows)
    assert all(0 <= row[name] <= 1 for row in rows for name in ("recall", "precision", "others", "balanced"))
    main()
    assert file.read_text() == first
