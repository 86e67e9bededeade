"""The DCGAN generator with BatchNorm: what is released draws every image by itself."""

import pytest
import torch

from models.portable.conditional_dcgan import ConditionalDcganConfig, ConditionalDcganGenerator
from tests.models.checks import assert_drawn_from_seed_and_labels, stream


def small(channels: int = 1, height: int = 8, width: int = 8) -> ConditionalDcganGenerator:
    return ConditionalDcganGenerator(ConditionalDcganConfig(3, channels, height, width, 5, 4, 16), seed=3)


@pytest.mark.parametrize(("channels", "height", "width"), [(1, 28, 28), (3, 10, 17), (1, 3, 5)])
def test_settled_it_draws_an_image_whatever_stands_beside_it(channels, height, width):
    made = small(channels, height, width)
    latents, labels = made.latents(4, stream()), torch.tensor([0, 1, 2, 0])
    assert not torch.allclose(made(latents, labels)[:2], made(latents[:2], labels[:2]), atol=1e-3)  # as it learns
    made.settle()
    images = made(latents, labels)
    assert images.shape == (4, channels, height, width)
    torch.testing.assert_close(images[2:3], made(latents[2:3], labels[2:3]))


def test_settled_statistics_are_those_of_many_public_latents():
    made = small().train()
    latents, labels = made.latents(2048, stream(9)), torch.arange(2048) % 3
    with torch.no_grad():
        learning = made(latents, labels)
        made.settle()
        assert (learning - made(latents, labels)).abs().max() < 0.02
    once = made.norms[0].running_mean.clone()
    made.settle()
    assert torch.equal(once, made.norms[0].running_mean)


def test_it_listens_to_the_label_and_draws_from_the_seed():
    made = small()
    made.settle()
    latents = made.latents(1, stream())
    first, second = (made(latents, torch.tensor([label])) for label in (0, 1))
    assert (first - second).abs().max() > 1e-4
    assert_drawn_from_seed_and_labels(made, torch.arange(300) % 3, 256)
