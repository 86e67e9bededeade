"""Draw docs/images/real_and_synthetic.png: real clothes of Fashion-MNIST beside synthetic ones at ε = 10, 3 and 1.

    python -m scripts.readme_image

The recipe `moments` trains with its defaults on all 60,000 images, once for each ε. Nothing is selected: the
file shows the first images of each class.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from benchmarks.runs import MOMENTS, draw, tiled, trained
from benchmarks.small_data import channels_first, fashion

FILE = Path(__file__).resolve().parents[1] / "docs" / "images" / "real_and_synthetic.png"
EPSILONS = (10.0, 3.0, 1.0)
CLASSES, EACH = (0, 1, 3, 5, 7, 8), 3  # T-shirt, trousers, dress, sandal, sneaker, bag; images of a class in a block
SCALE, GAP = 2, 12


def block(images: torch.Tensor, labels: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return one image (h, w) uint8 with the first images of each shown class, one row per class."""
    kept = torch.cat([torch.nonzero(labels == label)[:EACH, 0] for label in CLASSES])
    rows = torch.arange(len(CLASSES)).repeat_interleave(EACH)
    return tiled(images[kept], rows, len(CLASSES)).squeeze(2).repeat(SCALE, 0).repeat(SCALE, 1)


def main() -> None:
    folder = fashion()
    blocks = [block(channels_first(folder.images), torch.from_numpy(folder.labels))]
    for epsilon in EPSILONS:
        generator, _, _ = trained(folder, *MOMENTS, epsilon)
        blocks.append(block(*draw(generator, len(folder.classes), EACH * len(folder.classes), seed=0)))
    gap = np.full((len(blocks[0]), GAP), 255, np.uint8)
    parts = [part for each in blocks for part in (gap, each)][1:]
    Image.fromarray(np.concatenate(parts, axis=1)).save(FILE, optimize=True)


if __name__ == "__main__":
    main()
