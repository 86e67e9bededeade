"""The benchmark of drawing: what it draws is what its seed says, and every batch is timed."""

import torch

from benchmarks import drawing
from models.portable.textured import TexturedConfig, TexturedGenerator
from tests.models.checks import stream


def test_drawing_is_seeded_and_every_batch_is_timed() -> None:
    made = TexturedGenerator(TexturedConfig(2, 1, 8, 8, components=3, features=0))
    made.mean += torch.rand(made.mean.shape, generator=stream(0))
    made.factor += torch.rand(made.factor.shape, generator=stream(1)) / 10
    pixels, labels, milliseconds = drawing.draw(made, 2, 300, seed=1)
    assert labels.bincount().tolist() == [150, 150]
    assert len(milliseconds) == 2
    assert min(milliseconds) > 0
    assert torch.equal(drawing.draw(made, 2, 300, seed=1)[0], pixels)
