"""The diffusion recipe: noise multiplicity, central images, resuming, and digits that look like their class."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from models.edm import EdmConfig, EdmDenoiser
from privacy.errors import BudgetExceeded, ContributionUnbounded, InvalidParameter
from privacy.mechanisms.noise import SecureNoise
from privacy.plans.dp_diffusion import CENTRAL, DpDiffusionConfig
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.private_steps import STEPS
from service.db.words import ReleaseKind
from tests.workers.small_trainings import (
    CUT_OFF,
    EVERY_ESTIMATOR,
    FACTS,
    TWO,
    Memory,
    Purse,
    assert_it_pays_its_plan_and_repeats_with_its_secret,
    digits,
    drawn_twice,
    evaluated,
    named,
    nearly_without_noise,
    plan_of,
    published_by,
    share_nearest_to_own_class,
    silence,
    stop_at,
    train,
    weights,
    with_basis_of_one,
    zeros_and_ones,
)
from workers.recipes import dp_diffusion, private_steps
from workers.recipes.dp_diffusion import WARM_UP, warm_up
from workers.recipes.interface import Cancelled, NothingUseful, TrainingData, load_checkpoint

OPTIONS: dict[str, Any] = {
    "features": 4,
    "blocks": 1,
    "expected_batch": 50,
    "epochs": 0.2,
    "multiplicity": 2,
    "learning_rate": 1e-3,
    "sampling_steps": 3,
    "ema": 0.9,
    "anchors": 20,
    "basis_size": 60,
    "rank": 2,
    "central_batch": 300,
    "central_steps": 3,
    "evaluation_samples": 100,
}


def diffusion_plan(facts: PublicFacts = FACTS, **options: Any) -> Plan:
    return plan_of("dp_diffusion", {**OPTIONS, **options}, facts)


@pytest.mark.slow
def test_it_draws_each_class_when_noise_is_small_and_none_when_labels_say_nothing() -> None:
    options = {"features": 8, "learning_rate": 0.01, "sampling_steps": 10, "multiplicity": 1, "epochs": 12.0}
    plan = nearly_without_noise(diffusion_plan(TWO, **options))
    assert share_nearest_to_own_class(train(plan, zeros_and_ones(), TWO), classes=2) > 0.8
    shuffled = zeros_and_ones()
    np.random.default_rng(1).shuffle(shuffled.private_labels)
    assert share_nearest_to_own_class(train(plan, shuffled, TWO), classes=2) < 0.7


@pytest.mark.parametrize("options", EVERY_ESTIMATOR, ids=named)
def test_every_estimator_pays_its_plan_and_repeats_with_its_secret(options: dict[str, Any]) -> None:
    plan = diffusion_plan(**options)
    assert plan.stages[0].event.count == 6
    assert_it_pays_its_plan_and_repeats_with_its_secret(plan)


@pytest.mark.parametrize("options", CUT_OFF, ids=named)
def test_a_training_that_was_cut_off_goes_on_to_the_same_weights(options: dict[str, Any]) -> None:
    plan = diffusion_plan(**{**options, "central_images": 2})
    whole = weights(train(plan, digits(300)))
    folder, purse = Memory(), Purse()
    with pytest.raises(Cancelled):
        train(plan, digits(300), checkpoints=folder, budget=purse, progress=stop_at(4, STEPS))
    saved = load_checkpoint(folder)
    assert saved is not None
    assert saved.step == 3
    assert torch.equal(weights(train(plan, digits(300), checkpoints=folder, budget=purse)), whole)
    assert purse.releases(CENTRAL) == 2, "central images were paid for once"
    assert purse.releases(STEPS) == 7, "one step was done again"


def test_it_ends_with_what_it_has_when_the_hold_is_used_up() -> None:
    plan, purse = diffusion_plan(), Purse(releases=4)
    ended = train(plan, digits(300), budget=purse)
    assert purse.releases(STEPS) == 4
    assert not torch.equal(weights(ended), weights(train(plan, digits(300), budget=Purse(releases=1))))
    with pytest.raises(NothingUseful):
        train(plan, digits(300), budget=Purse(releases=0))


def test_an_empty_dataset_is_trained_on_like_any_other() -> None:
    assert torch.isfinite(weights(train(diffusion_plan(central_images=1), digits(0)))).all()


def test_an_estimator_that_does_not_fit_is_refused_before_a_step_is_paid() -> None:
    purse = Purse()
    with pytest.raises(InvalidParameter, match="basis_size"):
        train(with_basis_of_one(diffusion_plan(estimator="gep")), digits(100), budget=purse)
    assert purse.paid == []


def test_subject_accounts_refuse_records_of_nobody() -> None:
    facts, purse = dataclasses.replace(FACTS, unit="subject", subjects_declared=100), Purse()
    with pytest.raises(ContributionUnbounded):
        train(diffusion_plan(facts), digits(50), facts, budget=purse)
    assert purse.paid == []


# --- noise multiplicity ---------------------------------------------------------------------------------------------


def step_of(plan: Plan, data: TrainingData, facts: PublicFacts) -> torch.Tensor:
    """The weights after the plan's one step, before any average."""
    folder = Memory()
    train(plan, data, facts, checkpoints=folder)
    saved = load_checkpoint(folder)
    assert saved is not None
    return torch.cat([value.flatten() for value in saved.state["steps"]["model"].values()])


ONE_STEP = {
    "expected_batch": 100,
    "epochs": 1.0,
    "optimiser": "sgd",
    "learning_rate": 1.0,
    "momentum": 0.0,
    "clip": 0.01,
}


@pytest.mark.parametrize(("unit", "multiplicity"), [("record", 1), ("record", 5), ("subject", 2)])
def test_one_unit_moves_a_step_no_further_than_its_clip(
    unit: Any, multiplicity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise left out, every coin heads: C / expected batch at most, and nearly that, however many rows a unit has."""
    subjects = 100 if unit == "subject" else None
    facts = dataclasses.replace(FACTS, records_declared=100, unit=unit, subjects_declared=subjects)
    plan = diffusion_plan(facts, multiplicity=multiplicity, **ONE_STEP)
    assert plan.stages[0].event.count == 1
    monkeypatch.setattr(SecureNoise, "discrete_gaussian", silence)
    # The noise levels of the other units must be the same in both, so coins go to noise levels alone, unit by unit.
    monkeypatch.setattr(private_steps, "poisson_sample", lambda units, _probability, _coins: np.arange(units))
    monkeypatch.setattr(private_steps, "pass_size", lambda *_: 1)
    data, owners = digits(99), np.concatenate([np.arange(60), np.full(39, 60)])

    def step(count: int) -> torch.Tensor:
        chosen = TrainingData(data.private_images[:count], data.private_labels[:count], data.classes, owners[:count])
        return step_of(plan, chosen, facts)

    moved = float((step(99) - step(60 if unit == "subject" else 98)).norm())
    assert 0.9e-4 < moved <= 1e-4 * (1 + 1e-2)  # weights are rounded to float32


def test_the_rows_of_a_record_differ_in_noise_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    original = dp_diffusion.noisy_rows

    def watched(images: torch.Tensor, labels: torch.Tensor, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        made = original(images, labels, **more)
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


def test_warm_up_alone_already_draws_the_classes() -> None:
    central = torch.zeros(1, 2, 1, 4, 4)
    central[0, 0, 0, 0] = 1.0
    central[0, 1, 0, 3] = 1.0
    config = DpDiffusionConfig(**{**OPTIONS, "central_steps": 120, "central_learning_rate": 5e-3})
    denoiser = EdmDenoiser(EdmConfig(2, 1, 8, 8, 8, 1, 20, 0.0, 0.0))
    warm_up(denoiser, config, central, lambda **_: None)
    labels = torch.arange(20) % 2
    images = denoiser.sample(labels, torch.Generator().manual_seed(1))
    above = images[:, 0, :4].mean(dim=(1, 2)) > images[:, 0, 4:].mean(dim=(1, 2))
    assert float((above == (labels == 0)).float().mean()) >= 0.9


def test_central_images_are_paid_before_they_are_drawn_and_kept_before_they_are_learned() -> None:
    plan, purse, folder = diffusion_plan(central_images=3), Purse(), Memory()
    with pytest.raises(Cancelled):
        train(plan, digits(300), budget=purse, checkpoints=folder, progress=stop_at(0, CENTRAL))
    assert purse.paid == []
    assert folder.kept is None
    with pytest.raises(Cancelled):
        train(plan, digits(300), budget=purse, checkpoints=folder, progress=stop_at(1, WARM_UP))
    assert purse.releases(CENTRAL) == 3
    saved = load_checkpoint(folder)
    assert saved is not None
    assert saved.state["central"].shape == (3, 10, 1, 4, 4)
    train(plan, digits(300), budget=purse, checkpoints=folder)
    assert purse.releases(CENTRAL) == 3
    assert purse.releases(STEPS) == plan.stages[1].event.count
    with pytest.raises(BudgetExceeded):
        train(plan, digits(300), budget=Purse(releases=2))


def test_central_images_change_where_the_steps_start() -> None:
    plan = nearly_without_noise(diffusion_plan(central_images=2))
    first, second = (train(plan, digits(300), budget=Purse(2), attempt=attempt) for attempt in (1, 2))
    assert not torch.equal(weights(first), weights(second)), "other noise, other central images, no step"
    with pytest.raises(NothingUseful):  # without them there is nothing before the first step
        train(diffusion_plan(), digits(300), budget=Purse(0))


# --- as a job -------------------------------------------------------------------------------------------------------


def test_a_paid_job_becomes_a_generator_that_can_be_drawn_from_again(rdp_workshop: Any) -> None:
    workshop = rdp_workshop
    options = {**OPTIONS, "estimator": "gep", "freeze": "random", "central_images": 2, "guidance": 0.5}
    job_id = workshop.train(recipe="dp_diffusion", epsilon=8.0, evaluate=True, **options)
    published = published_by(workshop, job_id)
    assert published.kind is ReleaseKind.GENERATOR
    directory = workshop.settings.data_dir / published.artifact_dir
    assert {path.name for path in directory.iterdir()} >= {"generator.safetensors", "grid.png", "report.html"}
    assert published.card["epsilon"] <= 8.0
    assert published.card["stages"] == [CENTRAL, STEPS]
    assert set(evaluated(workshop, published)["accuracy"]) == {"logistic_regression", "mlp", "cnn"}
    assert len(np.unique(drawn_twice(workshop, published), axis=0)) == 30
