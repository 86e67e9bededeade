"""Public image sets on a machine: Fashion-MNIST from Debian's package, or from OBSCURA_FASHION_MNIST."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

FASHION_CLASSES = (
    "T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_PREFIX = {"train": "train", "test": "t10k"}


FashionMnist = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], tuple[str, ...]]


def fashion_mnist(split: Literal["train", "test"], folder: Path | None = None) -> FashionMnist:
    """Return images (n, 28, 28), labels (n,) and the names of the ten classes.

    Raises:
        FileNotFoundError: the files are missing; the message explains how to get them.
    """
    folder = folder or Path(os.environ.get("OBSCURA_FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
    images, labels = (folder / f"{_PREFIX[split]}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
    if not images.exists() or not labels.exists():
        raise FileNotFoundError(
            "Fashion-MNIST was not found: install Debian's package dataset-fashion-mnist, or set "
            "OBSCURA_FASHION_MNIST to a folder with its four .gz files"
        )
    return _read(images, 16).reshape(-1, 28, 28), _read(labels, 8).astype(np.int64), FASHION_CLASSES


def _read(path: Path, header_bytes: int) -> npt.NDArray[Any]:
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), np.uint8, offset=header_bytes).copy()
