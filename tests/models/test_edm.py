"""The diffusion model: preconditioning, training rows, and a sampler that is right where the answer is known."""

import dataclasses

import pytest
import torch

from models.portable import edm
from models.portable.layers import plane, with_planes
from models.portable.unet import halvings_of
from privacy.gradients.per_sample import check_model
from tests.models.checks import assert_gradients_are_autograds, stream

CONFIG = edm.EdmConfig(3, 1, 8, 8, features=8, blocks=1, sampling_steps=20, churn=0.0, guidance=0.0)


def stirred(config: edm.EdmConfig = CONFIG) -> edm.EdmDenoiser:
    """A denoiser whose zero-initialised layers say something."""
    denoiser = edm.EdmDenoiser(config)
    with torch.no_grad():
        for parameter in denoiser.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=stream(parameter.numel()))
    return denoiser


class Gaussian(edm.EdmDenoiser):
    """The best denoiser of images whose every pixel is N(mean of the label, 0.2^2)."""

    def denoise(self, noisy: torch.Tensor, sigma: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        variance = sigma.square()[:, None, None, None]
        mean = (labels.float() * 0.3 - 0.3)[:, None, None, None]
        return (0.2**2 * noisy + variance * mean) / (0.2**2 + variance)


@pytest.mark.parametrize("churn", [0.0, 25.0])
def test_the_sampler_draws_from_a_distribution_whose_denoiser_is_known(churn):
    config = dataclasses.replace(CONFIG, sampling_steps=400, churn=churn)
    labels = torch.arange(600) % 3
    images = Gaussian(config).sample(labels, stream()) * 2 - 1
    for label in range(3):
        pixels = images[labels == label]
        assert float(pixels.mean()) == pytest.approx(0.3 * label - 0.3, abs=0.01)
        assert float(pixels.std()) == pytest.approx(0.2, rel=0.06)


@pytest.mark.parametrize(("churn", "draws"), [(0.0, 1), (5.0, 21)])
def test_churn_draws_fresh_noise_in_every_step_and_none_draws_the_start_alone(churn, draws):
    used, counted = stream(), stream()
    Gaussian(dataclasses.replace(CONFIG, churn=churn)).sample(torch.zeros(4, dtype=torch.int64), used)
    for _ in range(draws):
        torch.randn(4, 1, 8, 8, generator=counted)
    assert torch.equal(used.get_state(), counted.get_state())


def test_noise_levels_fall_from_end_to_end_and_then_to_zero():
    levels = edm.noise_levels(18)
    assert (len(levels), levels[-1]) == (19, 0)
    assert (levels[0], levels[-2]) == (pytest.approx(edm.SIGMA_MAX), pytest.approx(edm.SIGMA_MIN))
    assert levels == sorted(levels, reverse=True)


def test_a_new_denoiser_returns_an_image_without_noise_and_nothing_of_pure_noise():
    denoiser, labels = edm.EdmDenoiser(CONFIG), torch.zeros(2, dtype=torch.int64)
    images = torch.rand(2, 1, 8, 8, generator=stream())
    torch.testing.assert_close(denoiser.denoise(images, torch.full((2,), 1e-4), labels), images, rtol=1e-3, atol=1e-3)
    assert denoiser.denoise(80 * images, torch.full((2,), 80.0), labels).abs().max() < 0.02


def test_what_a_row_asks_for_is_what_gives_the_clean_image():
    images = torch.rand(500, 1, 8, 8, generator=stream()) * 2 - 1
    labels = torch.arange(500) % 3
    rows, targets = edm.noisy_rows(images, labels, any_class=3, drop=0.2, stream=stream(1))
    sigma = plane(rows, 1)

    class Perfect(edm.EdmDenoiser):
        def forward(self, _packed: torch.Tensor) -> torch.Tensor:
            return targets

    # float32 rounds x + sigma n for large sigma
    torch.testing.assert_close(Perfect(CONFIG).denoise(rows[:, :1], sigma, labels), images, rtol=0, atol=1e-4)
    assert float(sigma.log().mean()) == pytest.approx(edm.P_MEAN, abs=0.2)
    assert float(sigma.log().std()) == pytest.approx(edm.P_STD, rel=0.1)
    found = plane(rows, 2).long()
    assert torch.equal(found[found < 3], labels[found < 3])
    assert 0.1 < float((found == 3).float().mean()) < 0.3
    kept = plane(edm.noisy_rows(images, labels, any_class=3, drop=0.0, stream=stream(1))[0], 2)
    assert torch.equal(kept.long(), labels)


def test_the_loss_weighs_a_denoiser_as_the_paper_does():
    denoiser, labels = stirred(), torch.tensor([0, 1, 2])
    images = torch.rand(3, 1, 8, 8, generator=stream()) * 2 - 1
    rows, targets = edm.noisy_rows(images, labels, any_class=3, drop=0.0, stream=stream(2))
    sigma = plane(rows, 1)
    weight = (sigma.square() + edm.SIGMA_DATA**2) / (sigma * edm.SIGMA_DATA).square()
    errors = (denoiser.denoise(rows[:, :1], sigma, labels) - images).square().flatten(1).mean(dim=1)
    torch.testing.assert_close(edm.losses(denoiser(rows), targets), weight * errors, rtol=1e-3, atol=1e-4)


def test_guidance_moves_away_from_images_of_any_class():
    plain, labels = stirred(), torch.tensor([0, 1])
    x, sigma = 0.7 * torch.randn(2, 1, 8, 8, generator=stream()), torch.full((2,), 0.7)
    own, any_class = plain.denoise(x, sigma, labels), plain.denoise(x, sigma, torch.tensor([3, 3]))
    assert (own - any_class).abs().max() > 1e-4
    for guidance, expected in ((0.0, own), (2.0, 3 * own - 2 * any_class)):
        one_step = dataclasses.replace(CONFIG, sampling_steps=1, start_sigma=0.7, guidance=guidance)
        guided = edm.EdmDenoiser(one_step)
        guided.load_state_dict(plain.state_dict())
        drawn = guided.sample(labels, stream())
        torch.testing.assert_close(drawn, ((expected + 1) / 2).clamp(0, 1).detach(), rtol=1e-4, atol=1e-5)


# --- the U-Net ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("channels", "height", "width"), [(1, 28, 28), (3, 15, 29), (1, 3, 4)])
def test_the_denoiser_takes_every_size_and_no_image_knows_its_neighbours(channels, height, width):
    denoiser = stirred(dataclasses.replace(CONFIG, channels=channels, height=height, width=width))
    check_model(denoiser)
    x = torch.randn(3, channels, height, width, generator=stream())
    rows = with_planes(x, torch.tensor([0.1, 1.0, 10.0]), torch.tensor([0, 3, 1]))
    together = denoiser(rows)
    assert together.shape == x.shape
    assert together.abs().max() > 0
    alone = torch.cat([denoiser(row[None]) for row in rows])
    torch.testing.assert_close(together, alone, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("patch", [1, 2])
def test_traced_gradients_of_a_record_are_the_mean_over_its_noise_levels(patch):
    denoiser = stirred(dataclasses.replace(CONFIG, height=14, width=14, patch=patch))
    images = (torch.rand(2, 1, 14, 14, generator=stream()) * 2 - 1).repeat_interleave(3, 0)
    rows, targets = edm.noisy_rows(images, torch.tensor([0, 0, 0, 1, 1, 1]), any_class=3, drop=0.3, stream=stream(3))
    assert_gradients_are_autograds(denoiser, edm.losses, rows, targets, repeats=3, atol=1e-5)


def test_the_network_of_fashion_mnist_has_about_the_papers_size():
    denoiser = edm.EdmDenoiser(dataclasses.replace(CONFIG, height=28, width=28, features=32, blocks=2))
    assert sum(parameter.numel() for parameter in denoiser.parameters()) == pytest.approx(1.75e6, rel=0.15)
    assert halvings_of(28, 28) == 2
    assert [halvings_of(size, size) for size in (7, 13, 14, 64, 1000)] == [0, 0, 1, 3, 4]
