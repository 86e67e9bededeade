"""Faults of a machine are planted, as small as a rounding, and the trial before the first step finds each of them."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from models.private_classifier import ClassifierConfig, PrivateClassifier
from privacy.gradients import places
from privacy.gradients.arithmetic import exact_arithmetic, is_aligned
from privacy.gradients.per_sample import Traces, trainable
from privacy.plans.dp_classifier import ARCHITECTURES, DpClassifierConfig
from privacy.plans.moments import MomentsConfig
from privacy.plans.plan import Plan, PublicFacts
from tests.models.small_extractors import extractor
from tests.workers.planted_faults import backward_fault, by_place, forward_fault
from tests.workers.recipes.conftest import noise_images, toy_steps
from tests.workers.small_trainings import DIGITS, FACTS, Purse, plan_of, small_plan, train
from workers.recipes import coefficients, private_steps
from workers.recipes import records as blocks
from workers.recipes.coefficients import SeparableWaves
from workers.recipes.dp_classifier import features_of
from workers.recipes.interface import TrainingData, TrustedCurator
from workers.recipes.private_steps import PrivateSteps

GRAY_28 = PublicFacts(DIGITS, 28, 28, 1, 60_000, "record")
COLOUR_9 = PublicFacts(DIGITS, 9, 10, 3, 1500, "record")
FEW, FEW_COLOUR = (dataclasses.replace(each, records_declared=60) for each in (FACTS, COLOUR_9))  # features: two blocks
Plant = Callable[[PrivateSteps], None]


class Made(Exception):
    def __init__(self, steps: PrivateSteps) -> None:
        super().__init__()
        self.steps = steps


def first_step(monkeypatch: pytest.MonkeyPatch, network: str, plant: Plant = lambda _: None) -> PrivateSteps:
    """Train a network on noise until its first step is made, on a machine with a fault or with none."""

    def make(steps: PrivateSteps, _checkpoint: Any = None) -> None:
        plant(steps)
        steps.step()
        raise Made(steps)

    monkeypatch.setattr(PrivateSteps, "make", make)
    plan, facts = plan_for(network)
    shape = (24, facts.height, facts.width) if facts.channels == 1 else (24, facts.height, facts.width, 3)
    stream = np.random.default_rng(0)
    labels = stream.integers(0, len(facts.classes), 24)
    data = TrainingData(stream.integers(0, 256, shape).astype(np.uint8), labels, facts.classes)
    if isinstance(plan.config, DpClassifierConfig) and plan.config.extractor:
        data = dataclasses.replace(data, public_extractor=extractor())
    with pytest.raises(Made) as made:
        train(plan, data, facts)
    return made.value.steps


def layers(steps: PrivateSteps) -> list[nn.Module]:
    modules = steps.task.model.modules()
    return [layer for layer in modules if any(each.requires_grad for each in layer.parameters(recurse=False))]


def forward_at_first(steps: PrivateSteps) -> None:
    forward_fault(layers(steps)[0])


def forward_at_last(steps: PrivateSteps) -> None:
    forward_fault(layers(steps)[-1])


def backward_of_losses(steps: PrivateSteps) -> None:
    """The gradient of the loss, of which the last layer is given its own."""
    losses = steps.task.losses

    def faulty(outputs: Tensor, targets: Tensor) -> Tensor:
        copy = outputs.clone()
        copy.register_hook(lambda gradient: gradient * by_place(gradient))
        return losses(copy, targets)

    steps.task = dataclasses.replace(steps.task, losses=faulty)


def backward_at_first(steps: PrivateSteps) -> None:
    first = layers(steps)[0]
    if is_aligned(first):
        backward_fault(first)
    else:  # there is no other layer: what comes back to it is the gradient of the loss
        backward_of_losses(steps)


FAULTS = (forward_at_first, forward_at_last, backward_at_first, backward_of_losses)
DIFFUSION: dict[str, Any] = {"expected_batch": 64, "epochs": 0.1, "multiplicity": 2}
NETWORKS: dict[str, tuple[str, dict[str, Any], PublicFacts]] = {
    "default diffusion": ("dp_diffusion", DIFFUSION, GRAY_28),
    "patches": ("dp_diffusion", {"features": 8, "patch": 2, "expected_batch": 64}, COLOUR_9),
    "discriminator": ("dpgan", {}, FACTS),
    **{name: ("dp_classifier", {"architecture": name}, FACTS) for name in ("cnn", "resnet20")},
    **{
        name: ("dp_classifier", {"architecture": name}, FEW)
        for name in ("scatter_linear", "scatter_cnn", "pretrained_linear")
    },
}


OTHERS: dict[str, tuple[str, dict[str, Any], PublicFacts]] = {
    "one block": ("dp_diffusion", {"features": 4, "blocks": 1}, COLOUR_9),
    "central images": ("dp_diffusion", {"central_images": 1}, FACTS),
    "moments": ("dp_diffusion", {"moments_fraction": 0.3, "moments_steps": 2}, FACTS),
    "start": ("dp_diffusion", {"moments_fraction": 0.3, "moments_steps": 2, "start_sigma": 1.0}, FACTS),
    "wide discriminator": ("dpgan", {"features": 16}, GRAY_28),
    "colour discriminator": ("dpgan", {}, COLOUR_9),
    "colour scattering": ("dp_classifier", {"architecture": "scatter_cnn"}, FEW_COLOUR),
    "colour cnn": ("dp_classifier", {"architecture": "cnn"}, COLOUR_9),
}


def plan_for(network: str) -> tuple[Plan, PublicFacts]:
    architecture = ("dp_classifier", {"architecture": network}, FACTS)
    recipe, options, facts = {**NETWORKS, **OTHERS}.get(network, architecture)
    if network == "pretrained_linear":
        options = {**options, "extractor": extractor().config.name}
    if network == "default diffusion":
        return plan_of(recipe, options, facts), facts
    return small_plan(recipe, facts, **options), facts


ONE_LAYER = ("scatter_linear", "pretrained_linear")  # where one layer learns, the last is the first
FAULTY = [
    (network, fault)
    for network in NETWORKS
    for fault in FAULTS
    if not (network in ONE_LAYER and fault in (forward_at_last, backward_at_first))
]


@pytest.mark.parametrize(("network", "fault"), FAULTY, ids=lambda given: getattr(given, "__name__", given))
def test_a_fault_of_a_hundred_thousandth_is_found_before_the_first_step(network, fault, monkeypatch):
    assert first_step(monkeypatch, network, fault)._size == 1


@pytest.mark.parametrize("network", NETWORKS)
def test_a_machine_without_faults_keeps_passes_that_are_quick(network, monkeypatch):
    assert first_step(monkeypatch, network)._size > 1


@pytest.mark.parametrize("network", sorted({*NETWORKS, *OTHERS, *ARCHITECTURES} - {"wrn28_4"}))  # wrn16_4, but deeper
def test_every_tensor_gets_a_gradient_in_the_trial(network, monkeypatch):
    """Through layers that start at zero none would come: of the default diffusion network, 151 tensors of 153."""
    traced: list[set[str]] = []
    numbers = places._numbers

    def watched(traces: Traces) -> Any:
        shares = traces.shares()
        traced.append({name for name, share in shares.items() if bool((share != 0).flatten(1).any(dim=1).all())})
        return numbers(traces)

    monkeypatch.setattr(places, "_numbers", watched)
    monkeypatch.setattr(private_steps, "pass_size", lambda *_: 4)  # the networks are large
    steps = first_step(monkeypatch, network)
    assert traced == [set(trainable(steps.task.model))] * 3  # in all passes of the moved network


def test_whoever_stands_beside_is_another_in_every_pass_of_a_trial():
    stream = torch.Generator().manual_seed(0)
    first, second, third = places.trial_passes(64, 40, stream)
    assert set(first.tolist()) == {0, 1, 2, 3}
    assert len(set(second.tolist()) - {0, 1, 2, 3}) > 10
    assert set(third.tolist()) == {0}
    assert all(int((first == record).sum()) == 16 for record in range(4))
    assert [bool((second == record).any()) for record in range(4)] == [False, True, True, True]
    assert [chosen.tolist() for chosen in places.trial_passes(2, 1, stream)] == [[0, 0]] * 3


def test_a_fault_that_shows_later_is_found_on_the_way_and_when_a_training_goes_on():
    def faulty_from(step: int) -> PrivateSteps:
        made = toy_steps(count=80)
        made.task.model.register_forward_hook(
            lambda _model, _given, output: output * by_place(output) if made.done >= step else None
        )
        return made

    made, sizes = faulty_from(3), []
    for _ in range(24):
        made.step()
        sizes.append(made._size)
    assert sizes == [128] * 20 + [1] * 4
    again = faulty_from(0)
    again.restore({**made.checkpoint_state(), "step": 25})
    again.step()
    assert again._size == 1


def test_a_training_that_goes_on_is_tried_as_it_stands_too(monkeypatch):
    """Its weights are released, and may be where no moved copy of them is."""
    made, tried = toy_steps(count=80), []
    alike = PrivateSteps._places_alike

    def watched(steps: PrivateSteps, network: nn.Module, size: int) -> bool:
        tried.append(network is steps.task.model)
        return alike(steps, network, size)

    monkeypatch.setattr(PrivateSteps, "_places_alike", watched)
    for _ in range(21):
        made.step()
    assert tried == [False, True]
    again = toy_steps(count=80)
    again.restore(made.checkpoint_state())
    again.step()
    assert tried[2:] == [True, False]


def test_a_trial_moves_no_stream_of_the_training():
    """Estimators draw from streams of their own: what they draw afterwards is what they would have drawn."""
    for options in (
        {"estimator": "gep", "basis_size": 10},
        {"estimator": "rgp", "rank": 1},
        {"estimator": "rgp_random", "rank": 1},
    ):
        made = toy_steps(count=8, options=options)
        state = made.estimator.state()
        weights = {name: value.clone() for name, value in made.task.model.state_dict().items()}
        before, own = torch.get_rng_state(), state["generator"].clone()
        with exact_arithmetic():
            made._try_places()
        assert made._size > 1
        assert torch.equal(made.estimator.state()["generator"], own)
        assert torch.equal(torch.get_rng_state(), before)
        assert all(torch.equal(value, weights[name]) for name, value in made.task.model.state_dict().items())


def test_one_unit_more_moves_no_other_to_another_rank(monkeypatch):
    """Of several machines each may round as it likes: a unit's is that of its own coin."""

    def rank_of_each(units: int) -> list[int]:
        found = {}
        monkeypatch.setattr(private_steps, "ranks", lambda: 2)
        for number in (0, 1):
            monkeypatch.setattr(private_steps, "rank", lambda number=number: number)
            made = toy_steps(units=units, expected=4096.0)
            rows = made.task.rows

            def watched(drawn: Any, coins: Any, number: int = number, rows: Any = rows) -> Any:
                found.update({int(unit): number for unit in drawn if unit >= 0})
                return rows(drawn, coins)

            made.task = dataclasses.replace(made.task, rows=watched)
            made._size = 64
            with exact_arithmetic():
                made._add_sample()
        assert set(found) == set(range(units))
        return [found[unit] for unit in range(units)]

    first = rank_of_each(4096)
    assert 1500 < sum(first) < 2600
    for more in (1, 30, 65, 129):
        assert rank_of_each(4096 + more)[:4096] == first


# --- fixed features -------------------------------------------------------------------------------------------------


pictures = partial(noise_images, 70, 16, 16, seed=1)


@pytest.mark.parametrize("architecture", ["scatter_linear", "pretrained_linear"])
def test_a_fault_of_fixed_features_is_found(architecture, monkeypatch):
    """Each image's features are those of a block of its own, where a place would change them."""
    facts = PublicFacts(DIGITS, 16, 16, 1, 70, "record")
    given = extractor() if architecture == "pretrained_linear" else None
    classifier = PrivateClassifier(ClassifierConfig(architecture, DIGITS, 1, 16, 16), 0, given)
    means = TrustedCurator(budget=Purse(), secret=bytes(32))
    with torch.no_grad(), exact_arithmetic():
        alone = torch.cat([classifier.features(torch.from_numpy(one)[None, None] / 255).half() for one in pictures()])
    forward = classifier.transform.forward

    def faulty(found: Tensor) -> Tensor:
        return found * by_place(found) ** 1000  # what is kept is kept in half precision

    monkeypatch.setattr(classifier.transform, "forward", lambda images: faulty(forward(images)))
    found = features_of(classifier, pictures(), facts, means)(np.arange(70))
    assert torch.equal(found, alone.float())


class FaultyProducts(TorchFunctionMode):
    """As a machine whose matrix products round by the row's place."""

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found * by_place(found) if func is torch.Tensor.matmul else found


@pytest.mark.parametrize("kind", ["coefficients", "coefficients of large images", "texture"])
def test_a_machine_that_is_not_exact_computes_features_one_by_one(kind, monkeypatch):
    facts = PublicFacts(("a", "b"), 16, 16, 1, 100, "record")
    config = MomentsConfig(texture=True, texture_waves=30, frequencies=6)
    basis, of_texture = coefficients.image_basis(config, facts), coefficients.texture_basis(config, facts)

    def compute() -> npt.NDArray[Any]:
        if kind == "texture":
            return coefficients.texture_coefficients(pictures(), of_texture)
        if kind == "coefficients of large images":
            return large.of(pictures(), 0.5)
        return coefficients.MatrixWaves(basis).of(pictures(), 0.25)

    large = SeparableWaves(config, facts)
    honest, product, sums = compute(), coefficients.RoundedMatrix.exact_product, SeparableWaves._integers

    def faulty(matrix: Any, rows: Any, largest: float) -> Any:
        return product(matrix, rows, largest) * by_place(torch.from_numpy(rows)).numpy()

    def faulty_sums(waves: SeparableWaves, images: Any) -> Any:
        found = sums(waves, images)
        return found * by_place(torch.from_numpy(found)).numpy()

    monkeypatch.setattr(coefficients.RoundedMatrix, "exact_product", faulty)
    monkeypatch.setattr(SeparableWaves, "_integers", faulty_sums)
    with FaultyProducts():
        found = compute()
    assert np.array_equal(found, honest)


def test_of_no_images_features_have_their_shape_and_blocks_are_of_one_size():
    sizes = []

    def compute(images: npt.NDArray[np.uint8]) -> Tensor:
        sizes.append(len(images))
        return torch.from_numpy(images[:, :2, 0].astype(np.float32))

    assert blocks.computed_alike(pictures()[:0], compute, 32).shape == (0, 2)
    assert torch.equal(blocks.computed_alike(pictures(), compute, 32), torch.from_numpy(pictures()[:, :2, 0]).float())
    assert set(sizes) == {32}
