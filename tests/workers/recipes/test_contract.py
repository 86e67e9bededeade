"""What every recipe keeps to, whatever it trains: it pays its plan, goes on where it was cut off, and ends in order."""

import dataclasses
import itertools
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import privacy.plans
import workers.recipes
from obscura.wire.words import ReleaseKind
from privacy.errors import ContributionUnbounded, InvalidParameter
from privacy.mechanisms.noise import SecureNoise
from privacy.plans.dp_diffusion import CENTRAL
from privacy.plans.plan import Plan
from privacy.plans.private_steps import STEPS, StepsConfig
from privacy.plans.registry import RECIPES, build_plan, plan_from_json, useful_from_nano
from tests.workers import small_trainings as small
from workers.recipes import private_steps
from workers.recipes.interface import Cancelled, NothingUseful, Piece, TrainingData, load_checkpoint
from workers.recipes.registry import TRAINERS, work_of

FEW = dataclasses.replace(small.FACTS, records_declared=300)
STEPWISE = ("dp_classifier", "dp_diffusion", "dpgan")
FEWER: dict[str, dict[str, Any]] = {"dp_classifier": {"epochs": 0.1}, "dpgan": {"epochs": 0.5}}
PLANNED_STEPS = {"dp_classifier": 5, "dp_diffusion": 6, "dpgan": 5}
ADAPTIVE = {"accuracy_floor": 1.0, "patience": 2}
LONGER: dict[str, dict[str, Any]] = {  # trainings with a middle
    "dp_classifier": {"epochs": 0.4},
    "dp_diffusion": {"central_images": 2},
    "dpgan": {"epochs": 2.0, "ema": 0.9, **ADAPTIVE},
    "moments": {"guide": True},
}
STOPPED_AT = {"dp_classifier": 13, "dp_diffusion": 4, "dpgan": 13, "moments": 13}
ESTIMATORS: list[dict[str, Any]] = [
    {"estimator": "dpsgd"},
    {"estimator": "topagg", "freeze": "random"},
    {"estimator": "gep"},
    {"estimator": "bgep", "freeze": "ranked", "freeze_cooling": 0.0},
    {"estimator": "rgp", "warm_up_fraction": 0.3},
    {"estimator": "rgp_random"},
]
MORE: list[dict[str, Any]] = [  # on the quickest recipe alone
    {"estimator": "topagg"},
    {"estimator": "bgep", "freeze": "random", "freeze_rate": 0.6},
    {"estimator": "dpsgd", "freeze": "ranked", "freeze_cooling": 0.0},
    {"estimator": "dpsgd", "freeze": "posterior", "freeze_cooling": 0.0},
    {"estimator": "dpsgd", "optimiser": "adam", "learning_rate": 0.01, "ema": 0.9},
]
NETWORKS = ("linear", "kernel", "convolutional")
EVERY = [
    *((recipe, options) for recipe in STEPWISE for options in ESTIMATORS),
    *(("dp_classifier", options) for options in MORE),
    *(("datalens", {"teacher_network": network, "teacher_hidden": 4}) for network in NETWORKS),
    *((recipe, {}) for recipe in RECIPES if recipe not in (*STEPWISE, "datalens")),
]
CUT_OFF = [
    *((recipe, ESTIMATORS[index]) for recipe in ("dp_diffusion", "dpgan") for index in (0, 2, 3, 4)),
    *(("dp_classifier", options) for options in (*(ESTIMATORS[index] for index in (0, 2, 4)), *MORE[2:4])),
    ("moments", {}),
]
STARTS: list[tuple[str, dict[str, Any]]] = [  # trainings with releases that are kept one by one
    ("moments", {}),
    ("select_public", {}),
    ("dp_diffusion", {"central_images": 2}),
    ("dp_diffusion", {"moments_fraction": 0.3, "moments_steps": 3, "moments_batch": 20, "start_sigma": 0.5}),
]


def learned(recipe: str, outcome: Any) -> torch.Tensor:
    if recipe == "class_histogram":
        return torch.tensor(outcome.noisy_counts)
    return small.weights(outcome.head if recipe == "dp_classifier" else outcome)


def watch_noise(patch: pytest.MonkeyPatch, purse: small.Purse) -> dict[SecureNoise, bytes]:
    """Note what each source of noise draws first, and see that as many releases are paid for by then."""
    draw, seen = SecureNoise.discrete_gaussian, dict[SecureNoise, bytes]()

    def watched(noise: SecureNoise, shape: Any, stddev: float) -> Any:
        found = draw(noise, shape, stddev)
        seen.setdefault(noise, np.asarray(found).tobytes())
        assert len(seen) <= sum(event.count for event in purse.events)
        return found

    patch.setattr(SecureNoise, "discrete_gaussian", watched)
    return seen


def assert_paid_once(purse: small.Purse, plan: Plan) -> None:
    assert {stage.name: purse.releases(stage.name) for stage in plan.stages} == {
        stage.name: stage.event.count for stage in plan.stages
    }


@pytest.mark.parametrize(("recipe", "options"), EVERY, ids=str)
def test_every_training_pays_for_noise_before_it_is_drawn_and_repeats_with_its_secret(recipe, options, monkeypatch):
    """Each release has noise of its own, and a training that draws samples pays before it draws one."""
    plan, purse, samples = small.small_plan(recipe, **{**options, **FEWER.get(recipe, {})}), small.Purse(), list[Any]()
    sample, reported = private_steps.poisson_sample, set[tuple[str, int]]()

    def report(*, stage: str, step: int, steps: int) -> None:
        reported.add((stage, steps))

    def watched(*given: Any) -> Any:
        samples.append(given)
        assert len(samples) <= purse.releases(STEPS)
        return sample(*given)

    with monkeypatch.context() as patched:
        noises = watch_noise(patched, purse)
        patched.setattr(private_steps, "poisson_sample", watched)
        first = learned(recipe, small.train(plan, small.digits(300), budget=purse, progress=report))
    pieces = work_of(plan, small.FACTS)  # from declared numbers
    assert {(piece.stage, piece.steps) for piece in pieces} == reported
    assert all(piece.work > 0 for piece in pieces)
    assert len(set(noises.values())) == len(noises) > 0
    assert len(samples) == PLANNED_STEPS.get(recipe, 0)
    assert all(plan.stage(stage).announces(event) for stage, event in purse.paid)
    assert [stage for stage, _ in itertools.groupby(stage for stage, _ in purse.paid)] == [s.name for s in plan.stages]
    assert_paid_once(purse, plan)
    assert torch.isfinite(first).all()
    small.untried(monkeypatch)
    assert torch.equal(learned(recipe, small.train(plan, small.digits(300))), first)
    if options in (ESTIMATORS[0], {}):
        assert not torch.equal(learned(recipe, small.train(plan, small.digits(300), attempt=2)), first)


def steps_in(checkpoint: dict[str, Any]) -> dict[str, Any]:
    return checkpoint["discriminator" if "discriminator" in checkpoint else "steps"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(("recipe", "options"), CUT_OFF, ids=str)
def test_a_training_that_was_cut_off_goes_on_to_the_same_weights(recipe, options, monkeypatch):
    facts = FEW if recipe == "moments" else small.FACTS
    plan = small.small_plan(recipe, facts, **{**options, **LONGER[recipe]})
    train, folder, purse = partial(small.train, plan, small.digits(300), facts), small.Memory(), small.Purse()
    with monkeypatch.context() as patched:
        small.untried(patched)
        whole = learned(recipe, train())
    with pytest.raises(Cancelled):
        train(checkpoints=folder, budget=purse, progress=small.stop_at(STOPPED_AT[recipe], STEPS))
    saved = load_checkpoint(folder)
    assert steps_in(saved)["step"] == STOPPED_AT[recipe] - 1
    if recipe == "dpgan":  # what is hard to go on from
        assert saved["generator"]["discriminator_steps"] > 1, "the test should cross a change of n_D"
        assert saved["generator"]["waited"] > 0, "and stop between two generator steps"
    assert torch.equal(learned(recipe, train(checkpoints=folder, budget=purse)), whole)
    for stage in plan.stages:  # one step was done again, and no release before the steps
        assert purse.releases(stage.name) == stage.event.count + (stage.name == STEPS)
    assert purse.releases(CENTRAL) == LONGER[recipe].get("central_images", 0)


@pytest.mark.parametrize(("recipe", "options"), STARTS, ids=str)
def test_what_was_kept_is_neither_paid_nor_drawn_again(recipe, options, monkeypatch):
    """Cut off after every charge before the steps, the attempts pay the plan once, and use no noise twice."""
    plan, folder, purse = small.small_plan(recipe, **options), small.Memory(), small.Purse()
    noises = watch_noise(monkeypatch, purse)
    releases = sum(stage.event.count for stage in plan.stages if stage.name != STEPS)
    for attempt in range(1, releases + 1):

        def cut_off(*, stage: str, step: int, steps: int, paid: int = attempt) -> None:
            if len(purse.paid) == paid:
                raise Cancelled

        with pytest.raises(Cancelled):
            small.train(plan, small.digits(300), budget=purse, checkpoints=folder, attempt=attempt, progress=cut_off)
    made = learned(recipe, small.train(plan, small.digits(300), budget=purse, checkpoints=folder, attempt=releases + 1))
    assert_paid_once(purse, plan)
    assert len(set(noises.values())) == len(noises) == sum(stage.event.count for stage in plan.stages)
    again = small.train(plan, small.digits(300), budget=small.Purse(0), checkpoints=folder, attempt=releases + 2)
    assert torch.equal(learned(recipe, again), made)


@pytest.mark.parametrize(
    ("recipe", "unit", "options"),
    [
        ("dp_classifier", "subject", {}),
        ("dp_diffusion", "record", {"multiplicity": 1}),
        ("dp_diffusion", "record", {"multiplicity": 5}),
        ("dp_diffusion", "subject", {"multiplicity": 2}),
        ("dpgan", "record", {}),  # beside generated images
        ("dpgan", "subject", {}),
    ],
    ids=str,
)
def test_one_unit_moves_a_step_by_no_more_than_its_clip(recipe, unit, options, silent, monkeypatch):
    """Noise left out, every coin heads: at most C / expected batch, and nearly that, however many rows a unit has."""
    subjects = 30 if unit == "subject" else None
    facts = dataclasses.replace(small.FACTS, records_declared=30, unit=unit, subjects_declared=subjects)
    options = {**options, "expected_batch": 30, "epochs": 1.0, "clip": 0.01, "optimiser": "sgd", "learning_rate": 1.0}
    plan = small.small_plan(recipe, facts, momentum=0.0, **options)
    assert plan.stages[0].event.count == 1
    # Coins of the other units (noise levels, records) must be the same in both, so each unit has a pass of its own.
    monkeypatch.setattr(private_steps, "poisson_sample", lambda units, _probability, _coins: np.arange(units))
    monkeypatch.setattr(private_steps, "pass_size", lambda *_: 1)
    data, owners = small.digits(29), np.concatenate([np.arange(18), np.full(11, 18)])

    def step(count: int) -> torch.Tensor:
        chosen = TrainingData(data.private_images[:count], data.private_labels[:count], data.classes, owners[:count])
        folder = small.Memory()
        small.train(plan, chosen, facts, checkpoints=folder)
        return torch.cat([value.flatten() for value in steps_in(load_checkpoint(folder))["model"].values()])

    moved = float((step(29) - step(18 if unit == "subject" else 28)).norm())
    assert 0.8 * 0.01 / 30 < moved <= 0.01 / 30 * (1 + 1e-2)  # weights are rounded to float32


GAN = {"features": 8, "latent": 8, "generator_batch": 128, "learning_rate": 2e-3, "generator_learning_rate": 2e-3}
DIFFUSION = {"features": 8, "learning_rate": 0.01, "sampling_steps": 10, "multiplicity": 1, "expected_batch": 50}
LEARNED = [  # epochs with the labels and without, and the most that is drawn like its class without them
    pytest.param("dp_diffusion", small.TWO, DIFFUSION, (12.0, 2.0), 0.7, marks=pytest.mark.slow),
    ("dpgan", small.FACTS, GAN, (15.0, 5.0), 0.35),
]


@pytest.mark.parametrize(("recipe", "facts", "options", "epochs", "most"), LEARNED)
def test_it_draws_each_class_when_noise_is_small_and_none_when_labels_say_nothing(
    recipe, facts, options, epochs, most, monkeypatch
):
    small.untried(monkeypatch)
    data = small.zeros_and_ones() if facts is small.TWO else small.digits()
    learns, shuffled = (
        small.nearly_without_noise(small.small_plan(recipe, facts, **options, epochs=each)) for each in epochs
    )
    assert small.share_nearest_to_own_class(small.train(learns, data, facts), classes=len(facts.classes)) > 0.7
    np.random.default_rng(1).shuffle(data.private_labels)
    assert small.share_nearest_to_own_class(small.train(shuffled, data, facts), classes=len(facts.classes)) < most


@pytest.mark.parametrize(
    ("recipe", "epochs", "releases"), [("dp_classifier", 0.4, 7), ("dp_diffusion", 0.12, 4), ("dpgan", 2.0, 7)]
)
def test_it_ends_with_what_it_has_when_the_hold_is_used_up(recipe, epochs, releases):
    plan, purse = small.small_plan(recipe, epochs=epochs), small.Purse(releases)
    ended = learned(recipe, small.train(plan, small.digits(300), budget=purse))
    assert purse.releases(STEPS) == releases
    assert not torch.equal(ended, learned(recipe, small.train(plan, small.digits(300), budget=small.Purse(1))))
    with pytest.raises(NothingUseful):
        small.train(plan, small.digits(300), budget=small.Purse(0))


@pytest.mark.parametrize("recipe", STEPWISE)
def test_an_empty_dataset_is_trained_on_like_any_other(recipe):
    plan = small.small_plan(recipe, **({"central_images": 1} if recipe == "dp_diffusion" else {}))
    assert torch.isfinite(learned(recipe, small.train(plan, small.digits(0)))).all()


@pytest.mark.parametrize("recipe", STEPWISE)
def test_an_estimator_that_does_not_fit_is_refused_before_anything_is_paid(recipe):
    plan, purse = small.small_plan(recipe, estimator="gep"), small.Purse()
    unfit = dataclasses.replace(plan, config=plan.config_of(StepsConfig).with_values(basis_size=1))
    with pytest.raises(InvalidParameter, match="basis_size"):
        small.train(unfit, small.digits(100), budget=purse)
    assert purse.paid == []


@pytest.mark.parametrize("recipe", RECIPES)
def test_subject_accounts_refuse_records_of_nobody(recipe):
    facts, purse = dataclasses.replace(small.FACTS, unit="subject", subjects_declared=200), small.Purse()
    with pytest.raises(ContributionUnbounded):
        small.train(small.small_plan(recipe, facts), small.digits(50), facts, budget=purse)
    assert purse.paid == []


# --- as a job -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        ("dpgan", {"estimator": "topagg", "freeze": "random"}),
        ("dp_diffusion", {"estimator": "gep", "freeze": "random", "central_images": 2, "guidance": 0.5}),
    ],
    ids=["dpgan", "dp_diffusion"],
)
def test_a_paid_job_becomes_a_generator_that_can_be_drawn_from_again(workshop, recipe, options):
    job_id = workshop.train(recipe=recipe, epsilon=8.0, evaluate=True, **{**small.SMALL[recipe], **options})
    published = small.published_by(workshop, job_id)
    assert published.kind is ReleaseKind.GENERATOR
    directory = workshop.settings.data_dir / published.artifact_dir
    assert {path.name for path in directory.iterdir()} >= {"generator.safetensors", "grid.png", "report.json"}
    assert published.card["epsilon"] <= 8.0
    assert published.card["accounting"]["stages"] == [stage["name"] for stage in workshop.job(job_id).plan["stages"]]
    assert {event["type"] for event in published.card["accounting"]["events"]} == {"poisson_gaussian"}
    assert set(small.evaluated(workshop, published)["accuracy"]) == {"logistic_regression", "mlp", "cnn"}
    assert len(np.unique(small.drawn_twice(workshop, published), axis=0)) == 30


# --- how to add one -------------------------------------------------------------------------------------------------


def test_a_new_recipe_is_two_files_of_its_own_and_its_name(monkeypatch):
    """The name is all that planning, reading stored plans, the trainers and the estimate of the time left need."""
    for package in (privacy.plans, workers.recipes):
        toys = Path(__file__).parent / "toys" / package.__name__.rpartition(".")[2]
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(toys)])
    monkeypatch.setitem(RECIPES, "toy", import_module("privacy.plans.toy").RECIPE)
    plan = build_plan("toy", {"rounds": 3}, small.ACCOUNT, small.ACCOUNT.capacity_nano, small.FACTS)
    assert plan_from_json(plan.to_json()) == plan
    assert useful_from_nano(plan) == -(-plan.cost_nano // 3)
    assert work_of(plan, small.FACTS) == (Piece("sums", 3, 3.0),)
    monkeypatch.setitem(TRAINERS, "toy", import_module("workers.recipes.toy").train)  # type: ignore[index]
    purse = small.Purse()
    assert len(small.train(plan, small.digits(20), budget=purse).sums) == 3
    assert purse.releases("sums") == 3
