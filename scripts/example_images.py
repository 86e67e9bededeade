"""Draw the example images of the plan page, one for each band of detail, and the image of the README.

    python -m scripts.example_images

`moments` trains with its defaults. Nothing is selected: each file shows the first images of each class. The plan page
has synthetic images alone, each at the budget whose signal is typical of its band. The README has real clothes of
Fashion-MNIST beside synthetic ones.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from benchmarks.runs import DELTA, MOMENTS, draw, tiled, trained
from benchmarks.small_data import Folder, channels_first, cifar10, facts_of, fashion
from privacy.accounting.gaussian import gaussian_epsilon
from privacy.plans.moments import SEEN
from privacy.plans.registry import RECIPES
from scripts import images

ROOT = Path(__file__).resolve().parents[1]
ROWS, COLOURS = 2, 32  # images of a class; colours of a file
CLOTHES, PHOTOGRAPHS = (0, 1, 3, 7, 8, 9), (0, 1, 4, 7, 8, 9)  # T-shirt to ankle boot; airplane to truck
SIGNALS = {
    "grey": {"noise": 4.0, "outlines": 60.0, "shapes": 500.0, "detail": 5000.0},
    "colour": {"noise": 4.0, "colours": 100.0, "outlines": 1500.0},
}
README_CLASSES, README_EPSILONS = (0, 1, 3, 5, 7, 8), (10.0, 3.0, 1.0)  # T-shirt, trousers, dress, sandal, sneaker, bag
README_EACH, SCALE, GAP = 3, 2, 12


def first_of_each(samples: torch.Tensor, labels: torch.Tensor, classes: tuple[int, ...], each: int) -> torch.Tensor:
    """Return the first images of each class, (classes, each, c, h, w)."""
    return torch.stack([samples[labels == label][:each] for label in classes])


def example(folder: Folder, classes: tuple[int, ...], band: str, q: float) -> Image.Image:
    """Return generated images at signal q, one column per class. Raise AssertionError if the plan expects less."""
    epsilon = gaussian_epsilon(q / facts_of(folder).units_per_class, DELTA)
    generator, plan, _ = trained(folder, *MOMENTS, epsilon)
    assert plan.facts["expected_detail"] == band in SEEN, (plan.facts, band)
    drawn = draw(generator, len(folder.classes), ROWS * len(folder.classes), seed=0)
    rows = first_of_each(*drawn, classes, ROWS).transpose(0, 1).flatten(0, 1)
    shown = tiled(rows, torch.arange(ROWS).repeat_interleave(len(classes)), ROWS)
    return Image.fromarray(shown if folder.colour else shown.squeeze(2)).quantize(COLOURS)


def readme_block(samples: torch.Tensor, labels: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return one image (h, w) uint8 of grey images, one row per class."""
    chosen = first_of_each(samples, labels, README_CLASSES, README_EACH).flatten(0, 1)
    rows = torch.arange(len(README_CLASSES)).repeat_interleave(README_EACH)
    return tiled(chosen, rows, len(README_CLASSES)).squeeze(2).repeat(SCALE, 0).repeat(SCALE, 1)


def main() -> None:
    clothes = fashion()
    for colours, folder, classes in (("grey", clothes, CLOTHES), ("colour", cifar10(), PHOTOGRAPHS)):
        for band, q in SIGNALS[colours].items():
            path = ROOT / "service" / "dashboard" / "static" / f"{band}_{colours}.png"
            example(folder, classes, band, q).save(path, optimize=True)
    blocks = [readme_block(channels_first(clothes.images), torch.from_numpy(clothes.labels))]
    for epsilon in README_EPSILONS:
        generator, _, _ = trained(clothes, *MOMENTS, epsilon)
        blocks.append(readme_block(*draw(generator, len(clothes.classes), README_EACH * len(clothes.classes), seed=0)))
    gap = np.full((len(blocks[0]), GAP), 255, np.uint8)
    parts = [part for each in blocks for part in (gap, each)][1:]
    images.save(Image.fromarray(np.concatenate(parts, axis=1)), "real_and_synthetic.png", RECIPES["moments"].defaults)


if __name__ == "__main__":
    main()
