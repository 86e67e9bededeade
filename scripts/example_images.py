"""Draw the example images of the plan page, one for each band of detail.

    python -m scripts.example_images

`moments` trains with its defaults on Fashion-MNIST and on CIFAR-10, at the budget whose signal is typical of the band.
Nothing is selected: each file shows the first generated images of each class. No original image is shown.
"""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from benchmarks.runs import DELTA, MOMENTS, draw, tiled, trained
from benchmarks.small_data import Folder, cifar10, facts_of, fashion
from privacy.accounting.gaussian import gaussian_epsilon
from privacy.plans.moments import SEEN

FOLDER = Path(__file__).resolve().parents[1] / "service" / "dashboard" / "static"
ROWS, COLOURS = 2, 32  # images of a class; colours of a file
CLOTHES, PHOTOGRAPHS = (0, 1, 3, 7, 8, 9), (0, 1, 4, 7, 8, 9)  # T-shirt to ankle boot; airplane to truck
SIGNALS = {
    "grey": {"noise": 4.0, "outlines": 60.0, "shapes": 500.0, "detail": 5000.0},
    "colour": {"noise": 4.0, "colours": 100.0, "outlines": 1500.0},
}


def example(folder: Folder, classes: tuple[int, ...], band: str, q: float) -> Image.Image:
    """Return generated images at signal q, one column per class. Raise AssertionError if the plan expects less."""
    epsilon = gaussian_epsilon(q / facts_of(folder).units_per_class, DELTA)
    generator, plan, _ = trained(folder, *MOMENTS, epsilon)
    assert plan.facts["expected_detail"] == band in SEEN, (plan.facts, band)
    images, labels = draw(generator, len(folder.classes), ROWS * len(folder.classes), seed=0)
    chosen = torch.stack([torch.nonzero(labels == label)[:ROWS, 0] for label in classes], dim=1)
    shown = tiled(images[chosen.flatten()], torch.arange(ROWS).repeat_interleave(len(classes)), ROWS)
    return Image.fromarray(shown if folder.colour else shown.squeeze(2)).quantize(COLOURS)


def main() -> None:
    for colours, folder, classes in (("grey", fashion(), CLOTHES), ("colour", cifar10(), PHOTOGRAPHS)):
        for band, q in SIGNALS[colours].items():
            example(folder, classes, band, q).save(FOLDER / f"{band}_{colours}.png", optimize=True)


if __name__ == "__main__":
    main()
