"""The GAN recipe: only its discriminator sees private records, and its generator steps when it should."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch

from models.portable.dcgan import DcganConfig, DcganGenerator
from models.portable.layers import with_planes
from privacy.plans.dpgan import DpGanConfig
from tests.workers.small_trainings import SMALL, Memory, digits, nearly_without_noise, small_plan, train, weights
from workers.recipes.dpgan import Discriminator, GeneratorSide, losses
from workers.recipes.interface import load_checkpoint

OPTIONS = SMALL["dpgan"]
gan_plan = partial(small_plan, "dpgan")


def flat(state: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([value.flatten() for value in state.values()])


@pytest.mark.parametrize("wiped", ["before the generator's step", "before the discriminator's"])
def test_the_generators_step_is_the_same_without_private_data(wiped, monkeypatch):
    """One step of each network. If the private images vanish between the two, the generator does not notice."""
    plan = nearly_without_noise(gan_plan(expected_batch=1500))
    assert plan.stages[0].event.count == 1
    untouched = weights(train(plan, digits(300)))
    data, step = digits(300), GeneratorSide.after_step

    def wipe() -> None:
        data.private_images[:] = 255
        data.private_labels[:] = 0

    def after_wiping(self: GeneratorSide) -> None:
        wipe()
        step(self)

    if wiped == "before the discriminator's":
        wipe()
    monkeypatch.setattr(GeneratorSide, "after_step", after_wiping)
    assert torch.equal(weights(train(plan, data)), untouched) == (wiped == "before the generator's step")
    assert int(data.private_images.min()) == 255


def test_generated_images_move_no_frozen_coordinate():
    options = {"freeze": "random", "freeze_rate": 0.9, "freeze_cooling": 0.0, "optimiser": "sgd", "momentum": 0.0}
    plan = gan_plan(**options)
    shape = DcganConfig(10, 1, 8, 8, OPTIONS["latent"], OPTIONS["features"])
    folder = Memory()
    train(plan, digits(300), checkpoints=folder)
    end = load_checkpoint(folder)["discriminator"]["model"]
    rested = flat(end) == weights(Discriminator(shape, 0))
    assert float(rested.float().mean()) == pytest.approx(0.9, abs=0.005)


def side(**options: Any) -> GeneratorSide:
    config = DpGanConfig(features=4, latent=4, generator_batch=16, **options)
    shape = DcganConfig(3, 1, 8, 8, 4, 4)
    return GeneratorSide(config, DcganGenerator(shape), Discriminator(shape))


def test_the_generator_steps_after_so_many_of_the_discriminators():
    found, made = side(discriminator_steps=3, accuracy_floor=0.0), []
    for _ in range(10):
        found.after_step()
        made.append(found.steps)
    assert made == [0, 0, 1, 1, 1, 2, 2, 2, 3, 3]


def test_a_discriminator_that_falls_behind_gets_more_steps():
    found = side(patience=3, accuracy_floor=0.6, discriminator_steps_max=3)
    rates = []
    for _ in range(12):
        found._adapt(0.0)
        rates.append(found.discriminator_steps)
    assert rates == [1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3]
    ahead, fixed = side(patience=1, accuracy_floor=0.6), side(patience=1, accuracy_floor=0.0)
    for _ in range(12):
        ahead._adapt(0.9)
        fixed._adapt(0.0)
    assert ahead.discriminator_steps == fixed.discriminator_steps == 1


def test_how_far_behind_it_is_is_an_average_over_generated_images():
    found = side(patience=1000)
    found._adapt(0.5)
    assert found.accuracy == 0.5
    found._adapt(1.0)
    assert found.accuracy == pytest.approx(0.505)
    with torch.no_grad():
        found.discriminator.of_image.bias.fill_(-100.0)
    assert found._step() == 1.0, "it calls every generated image generated"
    with torch.no_grad():
        found.discriminator.of_image.bias.fill_(100.0)
    assert found._step() == 0.0


def test_a_generators_step_makes_its_images_look_real_and_leaves_the_discriminator_alone():
    found = side(generator_learning_rate=0.01)
    latents, labels = found._latents(200, 1, 0)

    def loss() -> float:
        with torch.no_grad():
            logits = found.discriminator(with_planes(found.generator(latents, labels), labels))
            return float(losses(logits, torch.ones(200)).mean())

    before, judge = loss(), weights(found.discriminator)
    for _ in range(10):
        found.after_step()
    assert loss() < before
    assert torch.equal(weights(found.discriminator), judge)
    assert all(parameter.grad is None for parameter in found.discriminator.parameters())


def test_the_average_of_the_generator_is_what_is_released():
    found = side(ema=0.5)
    expected = weights(found.generator)
    for step in range(1, 6):
        found.after_step()
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weights(found.generator)
    torch.testing.assert_close(flat(found.average), expected)
    folder = Memory()
    released = weights(train(gan_plan(ema=0.5), digits(300), checkpoints=folder))
    kept = load_checkpoint(folder)["generator"]
    assert torch.equal(released, flat(kept["average"]))
    assert not torch.equal(released, flat(kept["weights"]))
