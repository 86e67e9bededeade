"""The benchmarks of drawing: both variants draw the same latents, and rows say what was measured."""

import numpy as np
import torch

from benchmarks import drawing, former_rendering, large_images
from models.portable.textured import TexturedConfig, TexturedGenerator
from tests.models.checks import stream


def generator() -> TexturedGenerator:
    made = TexturedGenerator(TexturedConfig(2, 1, 8, 8, components=3, features=0))  # steps as they always were
    made.mean += torch.rand(made.mean.shape, generator=stream(0))
    made.factor += torch.rand(made.factor.shape, generator=stream(1)) / 10
    return made


def test_old_and_new_draw_the_same_latents_in_turn():
    variants = drawing.both(generator())
    assert type(variants[drawing.OLD]) is former_rendering.FormerGenerator
    drawn, labels = drawing.draw_in_turn(variants, 300, seed=1)
    assert labels.bincount().tolist() == [150, 150]
    old, new = (torch.cat(drawn[name].pixels).int() for name in (drawing.OLD, drawing.NEW))
    assert (old - new).abs().max() <= 2  # ten steps each, rounded otherwise
    assert all(len(each.milliseconds) == 2 and min(each.milliseconds) > 0 for each in drawn.values())
    again, _ = drawing.draw_in_turn({drawing.NEW: variants[drawing.NEW]}, 300, seed=1)
    assert torch.equal(torch.cat(again[drawing.NEW].pixels).int(), new)


def test_pictures_of_a_seed_are_mapped_and_an_evaluation_is_measured(tmp_path):
    first, second = (large_images.pictures(tmp_path / f"{number}.npy", 130, 16) for number in range(2))
    assert np.array_equal(first, second)
    assert first.shape == (130, 16, 16, 3)
    assert len(np.unique(first[:, ::8, ::8].reshape(130, -1), axis=0)) == 130
    row = large_images.measured(16)
    assert row["cnn_ms_per_image"] > 0
    assert row["evaluation_minutes_extrapolated"] > 0
