"""Texture: what its numbers say about an image, and images that are made to have given ones."""

import pytest
import torch
from torch import Tensor

from models.portable.textured import FILTER_UNIT, ORIENTATIONS, TextureGradient, filters, render, texture
from models.sizes import TEXTURE_MAPS, texture_size
from tests.models.checks import stream


def stripes(turn: int, length: float) -> Tensor:
    """Waves of a length in pixels that run along the direction of that number, (1, 1, 32, 32)."""
    angle = torch.tensor(torch.pi * turn / ORIENTATIONS)
    row, column = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    return (0.5 + 0.4 * torch.sin(2 * torch.pi / length * (column * angle.cos() + row * angle.sin())))[None, None]


@pytest.mark.parametrize("turn", range(ORIENTATIONS))
@pytest.mark.parametrize(("first", "length"), [(0, 2 * torch.pi / 2.2), (ORIENTATIONS, 4 * torch.pi / 1.3)])
def test_stripes_are_strongest_in_the_map_of_their_direction_and_length(first, turn, length):
    found = texture(stripes(turn, length))[0, :, 2:-2, 2:-2].mean((1, 2))  # borders have waves of their own
    assert found[first : first + ORIENTATIONS].argmax() == turn
    assert found.argmax() == first + turn


def test_even_brightness_has_no_texture():
    inside = texture(torch.full((1, 1, 32, 32), 0.7))[..., 2:-2, 2:-2]
    least = texture(torch.zeros(1, 1, 32, 32)).min()
    torch.testing.assert_close(inside, torch.full_like(inside, least.item()), atol=2e-3, rtol=0)


def test_filters_are_integers_of_mean_zero_and_large_enough_to_tell_waves():
    for bank in filters():
        assert torch.equal(bank, bank.round())
        assert bank.shape[:2] == (TEXTURE_MAPS, 1)
        assert (bank.sum((1, 2, 3)).abs() * FILTER_UNIT < 4e-3).all()
        assert (bank.flatten(1).norm(dim=1) * FILTER_UNIT > 0.09).all()


def test_filters_are_even_and_odd_in_turn():
    for bank in filters():
        turned = bank.flip(2, 3)
        assert torch.equal(bank[0::2], turned[0::2])
        assert torch.equal(bank[1::2], -turned[1::2])


@pytest.mark.parametrize("count", [1, 3])
def test_the_written_gradient_is_that_of_automatic_differentiation(count):
    x = torch.rand(8, 12, count, generator=stream(1), dtype=torch.float64, requires_grad=True)
    wanted = torch.randn(TEXTURE_MAPS, 2, 3, count, generator=stream(2), dtype=torch.float64)
    found = texture(x.permute(2, 0, 1)[:, None]).permute(1, 2, 3, 0)
    ((found - wanted).square().sum() / 2).backward()  # type: ignore[no-untyped-call]
    gradient = TextureGradient(2, 3, count, wanted)
    with torch.no_grad():
        half = torch.nn.functional.avg_pool2d(x.permute(2, 0, 1), 2).permute(1, 2, 0)
        for _ in range(2):  # nothing of a call is left in the next one
            at_full, at_half = gradient(x, half, wanted.flatten(1))
        doubled = at_half.repeat_interleave(2, 0).repeat_interleave(2, 1)
    torch.testing.assert_close(at_full + doubled / 4, x.grad)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_rendered_image_has_the_wanted_texture_and_keeps_the_coarse_picture(channels):
    sharp = stripes(2, 8.0).repeat(1, channels, 1, 1)
    wanted = texture(sharp.mean(1, keepdim=True)).flatten(1)
    blurred = torch.full_like(sharp, 0.4)
    blurred[..., :16] = 0.6
    with torch.inference_mode():
        found = render(blurred, wanted)
    assert found.shape == sharp.shape
    assert 0 < found.min() < found.max() < 1
    far = (texture(blurred.mean(1, keepdim=True)).flatten(1) - wanted).norm()
    assert (texture(found.mean(1, keepdim=True)).flatten(1) - wanted).norm() < far / 2
    assert found[..., :16].mean() - found[..., 16:].mean() > 0.1


def test_an_image_is_rendered_alike_whatever_is_rendered_with_it():
    images = torch.rand(5, 1, 8, 8, generator=stream(3)) * 1.4 - 0.2  # drawn values may lie outside [0, 1]
    wanted = torch.randn(5, texture_size(8, 8), generator=stream(4))
    together = render(images, wanted)
    for index in range(5):
        torch.testing.assert_close(render(images[index, None], wanted[index, None])[0], together[index])


def test_equal_numbers_are_rendered_to_equal_bits():
    images, wanted = torch.rand(70, 1, 28, 28, generator=stream(7)), torch.randn(70, 784, generator=stream(8))
    first, second = render(images, wanted), render(images.clone(), wanted.clone())
    assert torch.equal(first, second)
    assert not torch.equal(first, render(images, wanted, 10, 0.35))
