"""The released generator: its formula, and images that depend on public seeds only."""

import torch

from models.portable.generator import Generator, GeneratorConfig
from tests.models.checks import stream

CONFIG = GeneratorConfig(classes=3, channels=3, height=4, width=5, components=6)


def filled() -> Generator:
    """A generator with something in every buffer."""
    generator = Generator(CONFIG)
    generator.mean.uniform_(generator=stream(1))
    generator.factor.normal_(generator=stream(2)).mul_(0.1)
    return generator.eval()


def test_an_image_follows_the_formula():
    generator, labels = filled(), torch.tensor([2, 0, 1, 2])
    images = generator.sample(labels, stream(5))
    for image, z, label in zip(images, torch.randn(4, 6, generator=stream(5)), labels.tolist(), strict=True):
        pixels = (generator.mean[label] + generator.factor[label] @ z).clamp(0, 1)
        torch.testing.assert_close(image, pixels.view(3, 4, 5))


def test_a_new_generator_draws_its_means():
    generator = Generator(CONFIG)
    generator.mean.uniform_(generator=stream())
    labels = torch.tensor([1, 1, 0])
    assert torch.equal(generator.sample(labels, stream()).flatten(1), generator.mean[labels])


def test_images_are_in_the_unit_interval():
    far = filled().decode(torch.randn(60, 6, generator=stream()) * 1e4, torch.arange(60) % 3)
    assert (far.shape, far.dtype) == ((60, 3, 4, 5), torch.float32)
    assert (far.min(), far.max()) == (0.0, 1.0)


def test_of_no_labels_no_images_are_drawn():
    assert filled().sample(torch.zeros(0, dtype=torch.int64), stream()).shape == (0, 3, 4, 5)
