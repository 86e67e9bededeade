"""Generators: both DCGANs and that of the moments; no released image depends on the others of its batch."""

import pytest
import torch

from models.portable.conditional_dcgan import ConditionalDcganConfig, ConditionalDcganGenerator
from models.portable.dcgan import DcganConfig, DcganGenerator
from models.portable.generator import Generator, GeneratorConfig
from models.portable.layers import plane, with_planes
from privacy.gradients.per_sample import check_model
from tests.models.checks import assert_gradients_are_autograds, stream
from workers.recipes.dpgan import Discriminator, losses

CONFIG = DcganConfig(classes=3, channels=1, height=8, width=8, latent=5, features=8)


def packed(config: DcganConfig, n: int = 4) -> torch.Tensor:
    images = torch.rand(n, config.channels, config.height, config.width, generator=stream()) * 2 - 1
    return with_planes(images, torch.arange(n) % config.classes)


@pytest.mark.parametrize(("channels", "height", "width"), [(1, 28, 28), (3, 10, 17), (1, 8, 8), (3, 64, 64), (1, 3, 5)])
def test_both_networks_take_every_size_and_no_image_knows_its_neighbours(channels, height, width):
    config = DcganConfig(3, channels, height, width, 5, 8)
    discriminator, generator = Discriminator(config), DcganGenerator(config)
    check_model(discriminator)
    rows = packed(config)
    together, alone = discriminator(rows), torch.cat([discriminator(row[None]) for row in rows])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    latents, labels = torch.randn(4, 5, generator=stream()), torch.tensor([0, 1, 2, 0])
    images = generator(latents, labels)
    assert images.shape == (4, channels, height, width)
    assert images.abs().max() <= 1
    torch.testing.assert_close(images[2:3], generator(latents[2:3], labels[2:3]), rtol=1e-4, atol=1e-5)


def test_halving_stops_at_four_pixels():
    assert DcganConfig(3, 1, 28, 28, 5, 8).sizes() == [(28, 28), (14, 14), (7, 7), (4, 4)]
    assert DcganConfig(3, 1, 8, 8, 5, 8).sizes() == [(8, 8), (4, 4)]
    assert len(DcganConfig(3, 1, 512, 512, 5, 8).sizes()) == 5


def test_planes_carry_whole_numbers_exactly():
    labels = torch.tensor([0, 999, 2**24 - 1])
    rows = with_planes(torch.rand(3, 2, 4, 5), labels, torch.tensor([0.5, 1.5, 2.5]))
    assert rows.shape == (3, 4, 4, 5)
    assert torch.equal(plane(rows, 2).long(), labels)
    assert plane(rows, 3).tolist() == [0.5, 1.5, 2.5]


def test_both_networks_listen_to_the_label():
    discriminator, generator = Discriminator(CONFIG), DcganGenerator(CONFIG)
    image = torch.rand(1, 1, 8, 8, generator=stream())
    logits = [discriminator(with_planes(image, torch.tensor([label]))).item() for label in range(3)]
    assert len(set(logits)) == 3
    latents = torch.randn(1, 5, generator=stream())
    first, second = (generator(latents, torch.tensor([label])) for label in (0, 1))
    assert (first - second).abs().max() > 1e-3


def test_traced_gradients_of_the_discriminator_are_those_of_autograd():
    targets = torch.tensor([1.0, 0.0, 1.0, 0.0])
    assert_gradients_are_autograds(Discriminator(CONFIG), losses, packed(CONFIG), targets)


# --- with BatchNorm ---


def small(channels: int = 1, height: int = 8, width: int = 8) -> ConditionalDcganGenerator:
    return ConditionalDcganGenerator(ConditionalDcganConfig(3, channels, height, width, 5, 4, 16), seed=3)


@pytest.mark.parametrize(("channels", "height", "width"), [(1, 28, 28), (3, 10, 17), (1, 3, 5)])
def test_settled_it_draws_an_image_whatever_stands_beside_it(channels, height, width):
    made = small(channels, height, width)
    latents, labels = made.latents(4, stream()), torch.tensor([0, 1, 2, 0])
    assert not torch.allclose(made(latents, labels)[:2], made(latents[:2], labels[:2]), atol=1e-3)  # as it learns
    made.settle()
    images = made(latents, labels)
    assert (images[0] - made(latents[:1], torch.tensor([1]))[0]).abs().max() > 1e-4, "it listens to the label"
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


# --- the generator of the moments -------------------------------------------------------------------------------------


MOMENTS = GeneratorConfig(classes=3, channels=3, height=4, width=5, components=6)


def filled() -> Generator:
    generator = Generator(MOMENTS)
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
    generator = Generator(MOMENTS)
    generator.mean.uniform_(generator=stream())
    labels = torch.tensor([1, 1, 0])
    assert torch.equal(generator.sample(labels, stream()).flatten(1), generator.mean[labels])


def test_images_are_in_the_unit_interval():
    far = filled().decode(torch.randn(60, 6, generator=stream()) * 1e4, torch.arange(60) % 3)
    assert (far.shape, far.dtype) == ((60, 3, 4, 5), torch.float32)
    assert (far.min(), far.max()) == (0.0, 1.0)


def test_of_no_labels_no_images_are_drawn():
    assert filled().sample(torch.zeros(0, dtype=torch.int64), stream()).shape == (0, 3, 4, 5)
