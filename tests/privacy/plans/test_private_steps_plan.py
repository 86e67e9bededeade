"""Plans of the DP-SGD family: noise that follows from budget and steps, what they say, and what is refused."""

import dataclasses
from typing import Any

import dp_accounting.pld
import pytest
from torch import nn

from models.portable.dcgan import DcganConfig
from models.portable.edm import EdmConfig, EdmDenoiser
from models.private_classifier import PRETRAINED, ClassifierConfig, PrivateClassifier
from privacy.accounting.events import PoissonGaussianEvent, dp_event
from privacy.accounting.filter import noise_multiplier_for, open_filter
from privacy.errors import InvalidParameter
from privacy.gradients.estimator import shapes_of
from privacy.gradients.gep import Gep
from privacy.plans import dp_diffusion, dpgan
from privacy.plans.dp_classifier import ARCHITECTURES
from privacy.plans.dp_diffusion import DpDiffusionConfig
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.private_steps import ESTIMATORS, STEPS, StepsConfig
from privacy.plans.registry import RECIPES, build_plan, plan_from_json
from tests.models.small_extractors import extractor
from workers.recipes.dpgan import Discriminator

FACTS = PublicFacts(("a", "b", "c"), 28, 28, 1, 60_000, "record")
ACCOUNT = open_filter(3.0, 1e-5)


def plan(recipe: str = "dp_classifier", facts: PublicFacts = FACTS, **options: Any) -> Plan:
    return build_plan(recipe, options, ACCOUNT, ACCOUNT.capacity_nano, facts)


SAMPLED = [(1.0, 1), (0.9, 3), (0.137, 293), (0.1, 50), (0.01, 2000), (512 / 60_000, 352), (0.0001, 10)]


@pytest.mark.parametrize(("probability", "steps"), SAMPLED)
def test_the_multiplier_is_the_smallest_that_the_budget_pays_for(probability: float, steps: int) -> None:
    found = noise_multiplier_for(ACCOUNT, probability, steps, ACCOUNT.capacity_nano)
    assert ACCOUNT.cost_nano(PoissonGaussianEvent(probability, found, steps)) <= ACCOUNT.capacity_nano
    assert ACCOUNT.cost_nano(PoissonGaussianEvent(probability, found * 0.999, steps)) > ACCOUNT.capacity_nano


def test_what_a_crash_makes_necessary_is_paid_for_beforehand() -> None:
    (stage,) = plan(expected_batch=600, epochs=5.0).stages
    assert (stage.event.count, stage.repeats, stage.paid_as_whole) == (500, 5, 505)
    priced = dataclasses.replace(stage.event, count=505)
    assert stage.cost_nano == ACCOUNT.cost_nano(priced) > ACCOUNT.cost_nano(stage.event)
    (certain,) = plan(facts=dataclasses.replace(FACTS, records_declared=100), expected_batch=600, epochs=3.0).stages
    assert (certain.repeats, certain.paid_as_whole) == (0, None)
    assert certain.price_of(2) * 3 == certain.cost_nano * 2


def test_people_read_where_sampling_saves_nothing() -> None:
    cautious = open_filter(3.0, 1e-14)
    made = build_plan("dp_classifier", {"epochs": 1.0}, cautious, cautious.capacity_nano, FACTS)
    (event,) = [stage.event for stage in made.stages]
    assert any("no saving from sampling can be proven" in note for note in made.notes)
    assert event.noise_multiplier > 5 * plan(epochs=1.0).stages[0].event.noise_multiplier
    assert not any("can be proven" in note for note in plan(epochs=1.0).notes)
    whole = "the first step spends the whole cost"
    certain = plan(facts=dataclasses.replace(FACTS, records_declared=100), expected_batch=600)
    assert [any(whole in note for note in each.notes) for each in (plan(), certain)] == [True, False]


def test_steps_follow_from_declared_numbers() -> None:
    made = plan(expected_batch=600, epochs=2.5)
    event = made.stages[0].event
    assert (event.sampling_probability, event.count) == (0.01, 250)
    assert made.stages[0].name == STEPS
    assert plan_from_json(made.to_json()) == made
    of_subjects = PublicFacts(FACTS.classes, 28, 28, 1, 60_000, "subject", 1200)
    event = plan(facts=of_subjects, expected_batch=600, epochs=2.5).stages[0].event
    assert (event.sampling_probability, event.count) == (0.5, 5)
    small = dataclasses.replace(FACTS, records_declared=100)
    event = plan(facts=small, expected_batch=600, epochs=3.0).stages[0].event
    assert (event.sampling_probability, event.count) == (1.0, 3)


def test_few_epochs_reach_the_last_rate_in_time_and_people_read_the_total_density() -> None:
    """Three passes of 117 steps, as in the benchmark: the last one is all at r*."""
    options: dict[str, Any] = {"expected_batch": 512, "epochs": 3.0, "freeze": "random", "freeze_rate": 0.7}
    config = StepsConfig(**options, freeze_cooling=0.65)
    schedule = config.freeze_schedule(FACTS)
    assert [schedule.at(step) for step in (0, 116, 117, 234, 351)] == pytest.approx([0, 0, 0.358, 0.7, 0.7], abs=1e-3)
    assert plan(**options, freeze_cooling=0.65).facts["total_density"] == pytest.approx(schedule.density(352))
    by_step = config.with_values(freeze_every="step").freeze_schedule(FACTS)
    assert by_step.at(100) == pytest.approx(0.7 * 100 / (0.65 * 352))
    assert "total_density" not in plan().facts


def test_rates_drop_after_equal_parts_and_residuals_get_a_fifth() -> None:
    once = StepsConfig(learning_rate=2.0, rate_drops=1)
    assert [once.rate_at(step, 10) for step in (0, 4, 5, 9)] == pytest.approx([2.0, 2.0, 0.2, 0.2])
    thrice = StepsConfig(learning_rate=1.0, rate_drops=3, rate_decay=0.2)
    assert [thrice.rate_at(step, 8) for step in range(8)] == pytest.approx([1, 1, 0.2, 0.2, 0.04, 0.04, 0.008, 0.008])
    assert StepsConfig(clip=10.0).residual_bound == 2.0
    assert StepsConfig(clip=10.0, clip_residual=1.0).residual_bound == 1.0


def test_scattering_needs_room_and_an_extractor_a_name_that_is_no_path() -> None:
    with pytest.raises(InvalidParameter, match="scattering"):
        plan(facts=dataclasses.replace(FACTS, height=4, width=4))
    for name in ("../keys", "a.b", "a\n"):
        with pytest.raises(InvalidParameter, match="name of an extractor"):
            plan(architecture="pretrained_linear", extractor=name)


def network(recipe: str, facts: PublicFacts, options: dict[str, Any]) -> nn.Module:
    sizes = (facts.channels, facts.height, facts.width)
    if recipe == "dpgan":
        return Discriminator(DcganConfig(len(facts.classes), *sizes, 4, 4))
    if recipe == "dp_diffusion":
        patch = options.get("patch", 1)
        return EdmDenoiser(EdmConfig(len(facts.classes), *sizes, 4, options["blocks"], 2, 0.0, 0.0, patch=patch))
    architecture = options["architecture"]
    shape = ClassifierConfig(architecture, facts.classes, *sizes)
    return PrivateClassifier(shape, 0, extractor() if architecture == PRETRAINED else None).head


def fits(model: nn.Module, basis_size: int) -> bool:
    given: dict[str, Any] = {"clip": 1.0, "clip_residual": 1.0, "noise_multiplier": 1.0, "expected_batch": 1.0}
    try:
        Gep(shapes_of(model), lambda *_: {}, basis_size=basis_size, **given)
    except InvalidParameter:
        return False
    return True


OF_EACH_ARCHITECTURE: list[tuple[str, dict[str, Any], tuple[int, int]]] = [
    *(("dp_classifier", {"architecture": name}, (28, 32)) for name in ARCHITECTURES),
    *(("dpgan", {}, size) for size in ((1, 1), (8, 8), (13, 100), (17, 17), (28, 28), (29, 29), (64, 48), (256, 256))),
    *(("dp_diffusion", {"blocks": 1}, size) for size in ((1, 1), (13, 40), (14, 14), (28, 28), (56, 64), (112, 112))),
    *(("dp_diffusion", {"blocks": blocks}, (28, 28)) for blocks in (2, 8)),
    *(("dp_diffusion", {"blocks": 1, "patch": 2}, size) for size in ((13, 40), (28, 28))),
    ("dp_diffusion", {"blocks": 2}, (250, 250)),
]


@pytest.mark.parametrize(("recipe", "options", "size"), OF_EACH_ARCHITECTURE, ids=str)
def test_a_basis_that_no_training_takes_is_no_plan(recipe: str, options: dict[str, Any], size: tuple[int, int]) -> None:
    """Of images in colour: how many layers there are does not depend on the channels."""
    facts = dataclasses.replace(FACTS, height=size[0], width=size[1], channels=3)
    model = network(recipe, facts, options)
    needed = next(count for count in range(1, 1000) if fits(model, count))
    chosen = {**options, "estimator": "gep"}
    if options.get("architecture") == PRETRAINED:
        chosen["extractor"] = "tiny"

    def build(**more: Any) -> Plan:
        return build_plan(recipe, {**chosen, **more}, ACCOUNT, ACCOUNT.capacity_nano, facts)

    assert build(basis_size=needed).config_of(StepsConfig).basis_size == needed
    if needed > 1:
        for estimator in ("gep", "bgep"):
            with pytest.raises(InvalidParameter, match=f"give {needed} or more") as refusal:
                build(estimator=estimator, basis_size=needed - 1)
            assert refusal.value.name == "basis_size"
        build(estimator="rgp", basis_size=1)


# --- generators ---


PRESETS = [("dpgan", name) for name in dpgan.PRESETS] + [("dp_diffusion", name) for name in dp_diffusion.PRESETS]


@pytest.mark.parametrize(("recipe", "preset"), PRESETS)
def test_a_preset_keeps_to_its_epsilon_by_an_accountant_of_others(recipe: str, preset: str) -> None:
    account, digits = open_filter(1.0, 1e-5), dataclasses.replace(FACTS, classes=tuple("0123456789"))
    made = build_plan(recipe, {"preset": preset}, account, account.capacity_nano, digits)
    assert made.cost_nano == sum(stage.cost_nano for stage in made.stages) <= account.capacity_nano
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=2e-5)
    for stage in made.stages:
        priced = dataclasses.replace(stage.event, count=stage.event.count + stage.repeats)
        assert account.cost_nano(priced) == stage.cost_nano
        if stage.event.is_sampled:
            assert stage.paid_as_whole == priced.count > stage.event.count
        accountant.compose(dp_event(priced))
    assert 0.95 < accountant.get_epsilon(1e-5) <= 1.0
    assert plan_from_json(made.to_json()) == made


@pytest.mark.parametrize("recipe", ["dpgan", "dp_diffusion"])
def test_they_publish_generators_bound_subjects_and_name_every_estimator(recipe: str) -> None:
    assert RECIPES[recipe].publishes == "generator"
    subjects = dataclasses.replace(FACTS, unit="subject", subjects_declared=10_000)
    assert any("subject" in note for note in plan(recipe, subjects).notes)
    for estimator in ESTIMATORS:
        made = plan(recipe, estimator=estimator)
        assert made.facts["estimator"] == estimator
        assert made.stages == plan(recipe).stages


def test_the_bound_of_a_central_image_grows_with_its_pixels() -> None:
    config = DpDiffusionConfig(central_clip=0.5)
    assert config.half_size(FACTS) == (14, 14)
    assert config.central_bound(FACTS) == 0.5 * 14
    odd = dataclasses.replace(FACTS, height=7, width=9, channels=3)
    assert config.half_size(odd) == (4, 5)
    assert config.central_bound(odd) == pytest.approx(0.5 * 60**0.5)
