"""The diffusion recipe: noise multiplicity, central images, and moments from which drawing may begin."""

from functools import partial
from typing import Any

import pytest
import torch

from models.portable.edm import SIGMA_MAX, EdmConfig, EdmDenoiser, noisy_rows
from privacy.accounting.filter import open_filter
from privacy.plans.dp_diffusion import CENTRAL, DpDiffusionConfig
from privacy.plans.plan import PublicFacts
from privacy.plans.private_steps import STEPS
from privacy.plans.registry import build_plan
from privacy.plans.warm_start import BY_CLASS, MEANS, POOLED
from tests.workers.small_trainings import (
    SMALL,
    Memory,
    Purse,
    digits,
    nearly_without_noise,
    small_plan,
    stop_at,
    train,
    weights,
)
from workers.recipes import dp_diffusion
from workers.recipes.dp_diffusion import WARM_UP, drawn_examples, warm_up
from workers.recipes.interface import Cancelled, load_checkpoint

OPTIONS = SMALL["dp_diffusion"]


diffusion_plan = partial(small_plan, "dp_diffusion")


# --- noise multiplicity ---------------------------------------------------------------------------------------------


def test_the_rows_of_a_record_differ_in_noise_alone(monkeypatch):
    seen, original = [], dp_diffusion.noisy_rows

    def watched(images: torch.Tensor, *more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        made = original(images, *more)
        seen.append((images, made[0][:, 1, 0, 0]))
        return made

    monkeypatch.setattr(dp_diffusion, "noisy_rows", watched)
    train(diffusion_plan(multiplicity=3), digits(300))
    images, sigma = seen[-1]  # the first are public rows
    assert len(images) % 3 == 0
    records = images.reshape(-1, 3, 64)
    assert torch.equal(records[:, 0], records[:, 2])
    assert len(torch.unique(sigma)) == len(sigma)


# --- central images -------------------------------------------------------------------------------------------------


def test_warm_up_alone_already_draws_the_classes():
    released = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    released[0, 0, :2] = released[1, 0, 6:] = 255
    config = DpDiffusionConfig(**{**OPTIONS, "central_steps": 120, "central_learning_rate": 5e-3})
    denoiser = EdmDenoiser(EdmConfig(2, 1, 8, 8, 8, 1, 20, 0.0, 0.0))
    warm_up(denoiser, config, released, torch.arange(2), lambda **_: None)
    labels = torch.arange(20) % 2
    images = denoiser.sample(labels, torch.Generator().manual_seed(1))
    above = images[:, 0, :4].mean(dim=(1, 2)) > images[:, 0, 4:].mean(dim=(1, 2))
    assert float((above == (labels == 0)).float().mean()) >= 0.9


def test_each_central_image_is_kept_as_soon_as_it_is_there_and_fewer_are_enough():
    """What a crash takes away is paid for again, once; after that the training goes on with the images it has."""
    plan, folder = diffusion_plan(central_images=3), Memory()
    assert plan.stages[0].repeats == 1
    with pytest.raises(Cancelled):
        train(plan, digits(300), budget=Purse(), checkpoints=folder, progress=stop_at(2, CENTRAL))
    assert len(load_checkpoint(folder)["start"]) == 2
    poor = Purse(closed=(CENTRAL,))
    train(plan, digits(300), budget=poor, checkpoints=folder, attempt=2)
    assert poor.releases(CENTRAL) == 0
    assert poor.releases(STEPS) == plan.stages[1].event.count


def test_central_images_change_where_the_steps_start():
    plan = nearly_without_noise(diffusion_plan(central_images=2))
    first, second = (train(plan, digits(300), budget=Purse(2), attempt=attempt) for attempt in (1, 2))
    assert not torch.equal(weights(first), weights(second)), "other noise, other central images, no step"


# --- moments ----------------------------------------------------------------------------------------------------------

MOMENTS: dict[str, Any] = {"moments_fraction": 0.3, "moments_steps": 3, "moments_batch": 20, "start_sigma": 0.5}


@pytest.mark.parametrize("start_sigma", [0.0, 0.05])
def test_drawing_may_begin_at_an_image_of_the_classes_gaussian(start_sigma):
    plan = diffusion_plan(**{**MOMENTS, "start_sigma": start_sigma})
    denoiser = train(nearly_without_noise(plan), digits(1500), budget=Purse(2))
    labels = torch.arange(200) % 10
    begun = denoiser.first.sample(labels, torch.Generator().manual_seed(0))
    drawn = denoiser.sample(labels, torch.Generator().manual_seed(0))
    own = [float((drawn[labels == a].mean(0) - begun[labels == a].mean(0)).square().mean()) for a in range(10)]
    assert (max(own) < 0.02) == (start_sigma > 0), "an untrained denoiser leaves an image nearly as it is"


def test_moments_have_texture_where_the_recipe_has_it_at_their_price():
    facts = PublicFacts(tuple("0123456789"), 28, 28, 1, 60_000, "record")
    names = []
    for epsilon in (0.1, 10.0):
        privacy_filter = open_filter(epsilon, 1e-5)
        options = {"preset": "fashion_mnist_moments"}
        plan = build_plan("dp_diffusion", options, privacy_filter, privacy_filter.capacity_nano, facts)
        moments, _ = plan.config_of(DpDiffusionConfig).moments(plan.budget_nano, facts)
        names.append(([stage.name for stage in plan.stages], moments.texture))
    assert names == [([MEANS, POOLED, BY_CLASS, STEPS], False), ([MEANS, POOLED, BY_CLASS, STEPS], True)]


def test_examples_are_of_all_classes_and_within_their_bounds():
    config = DpDiffusionConfig(**{**OPTIONS, **MOMENTS, "moments_steps": 5})
    denoiser = EdmDenoiser(EdmConfig(3, 1, 8, 8, 8, 1, 20, 0.0, 0.0, start_latent=2))
    denoiser.first.mean += torch.tensor([0.2, 0.5, 0.8])[:, None]
    seen: list[int] = []
    images, labels = drawn_examples(denoiser, config, lambda **_: seen.append(1), at_once=30)
    assert (images.shape, images.dtype, len(seen)) == ((100, 1, 8, 8), torch.uint8, 4)
    assert torch.equal(images[:, 0, 0, 0], torch.tensor([51, 128, 204], dtype=torch.uint8)[labels])
    assert len(drawn_examples(denoiser, config, lambda **_: None, bytes_max=640)[0]) == 10
    with pytest.raises(Cancelled):
        drawn_examples(denoiser, config, stop_at(0, WARM_UP))


def test_noise_levels_above_the_start_are_not_learned():
    images, labels = torch.zeros(500, 1, 4, 4), torch.zeros(500, dtype=torch.int64)
    for largest in (0.1, 1.0, SIGMA_MAX):
        rows, _ = noisy_rows(images, labels, 1, 0.0, torch.Generator().manual_seed(0), largest)
        sigma = rows[:, 1, 0, 0]
        assert float(sigma.max()) <= largest
        assert float(sigma.max()) > min(largest, 5.0) * 0.9
        assert float(sigma.min()) < 0.02
