"""One rank of several small trainings: `python -m tests.workers.recipes.training_ranks KIND RANK RANKS OUT`.

Writes to `OUT/RANK.pt`, for every scenario, what was released, what was paid, who drew noise and who kept checkpoints.
"""

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed

from models.closed_form_teachers import LinearTeachers
from models.shards import ShardBatch, Shards
from privacy.gradients import gep, rgp
from privacy.gradients.dpsgd import DpSgd
from privacy.mechanisms.noise import SecureNoise
from privacy.plans.datalens import TopAggConfig
from privacy.plans.plan import PublicFacts
from tests.workers.planted_faults import forward_fault
from tests.workers.small_trainings import SECRET, Memory, Pupil, Purse, noise_shards, plan_of, train, weights
from workers.recipes.datalens import TeacherStageConfig, TeacherStageState, run_teacher_stage
from workers.recipes.interface import TrainingData, TrustedCurator, load_checkpoint, save_checkpoint
from workers.recipes.private_steps import PrivateSteps
from workers.recipes.ranks import object_from_first, privatise_once, rank, share

CLASSES = ("a", "b", "c")
FACTS = PublicFacts(CLASSES, 8, 8, 1, 240, "record")
INPUTS, TEACHERS = 9, 21  # an odd number: ranks have shares of different sizes


class SeeingTeachers(LinearTeachers):
    """Linear teachers with a state: each adds up the records that it has seen."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards, len(CLASSES), share(TEACHERS))
        self.seen = torch.zeros(self.teachers, INPUTS)

    def update(self, real: ShardBatch, fake: torch.Tensor, fake_labels: torch.Tensor) -> None:  # noqa: ARG002
        records, _ = real.read(slice(0, self.teachers))
        self.seen += records.sum(1)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"seen": self.seen}

    def load_state_dict(self, state: Any) -> None:
        self.seen.copy_(state["seen"])


def images(n: int = 240) -> TrainingData:
    stream = np.random.default_rng(0)
    labels = stream.integers(0, len(CLASSES), n)
    shown = stream.integers(0, 90, (n, 8, 8)) + 60 * labels[:, None, None]
    return TrainingData(shown.astype(np.uint8), labels.astype(np.int64), CLASSES)


def paid(purse: Purse) -> list[int]:
    return [event.count for event in purse.events]


def training(recipe: str, options: Mapping[str, Any], **given: Any) -> dict[str, Any]:
    """Train, and return the weights of the outcome, and what it took."""
    given = {"data": images(), "budget": Purse(), "checkpoints": Memory(), **given}
    outcome = train(plan_of(recipe, dict(options), FACTS), facts=FACTS, **given)
    kept, network = given["checkpoints"], outcome.head if recipe == "dp_classifier" else outcome
    learned = torch.tensor(outcome.noisy_counts) if recipe == "class_histogram" else weights(network)
    return {"weights": learned, "paid": paid(given["budget"]), "writes": kept.writes, "reads": kept.reads}


def train_classifier(estimator: str, **given: Any) -> dict[str, Any]:
    options = {"architecture": "cnn", "expected_batch": 60, "epochs": 2.0, "learning_rate": 1.0, "clip": 0.5}
    options |= {"anchors": 20, "basis_size": 10, "rank": 2, "estimator": estimator}
    return training("dp_classifier", options, **given)


def run_votes(left: int = 10**9) -> dict[str, Any]:
    aggregation = TopAggConfig(k=4, c=1e-5, stddev=3.0, beta=0.2, teachers=TEACHERS, dimension=INPUTS)
    cfg = TeacherStageConfig(aggregation, classes=3, images=6, iterations=4, charge_iterations=2)
    shards = noise_shards(TEACHERS)
    purse, kept = Purse(left), list[dict[str, Any]]()
    means = TrustedCurator(budget=purse, secret=SECRET)
    state = TeacherStageState(SeeingTeachers(shards))

    def keep(reached: TeacherStageState) -> None:
        saved = reached.tensors()
        teachers = {name: value.clone() for name, value in saved["teachers"].items()}
        kept.append({"iteration": saved["iteration"], "teachers": teachers})
        again = TeacherStageState(SeeingTeachers(shards))
        again.restore(object_from_first(kept[-1]))
        restored = again.tensors()["teachers"]
        kept[-1]["survived"] = all(torch.equal(restored[name], value) for name, value in teachers.items())

    pupil = Pupil(step=0.1)
    run_teacher_stage(cfg, shards, pupil, state, means, keep)
    return {
        "sums": [release.released_sums for release in pupil.lessons],
        "inputs": [release.released_inputs for release in pupil.lessons],
        "paid": paid(purse),
        "kept": kept,
        "own_teachers": state.ensemble.teachers,
    }


def train_generator(**options: Any) -> dict[str, Any]:
    # Without the teachers' coins, which each rank draws for itself, both trainings are the same.
    return training("datalens", {**options, "teachers": 20, "images": 20, "use_stochastic_sign": False})


def release_noise() -> dict[str, Any]:
    """An empty sample: what is released is noise, with a fresh secret on rank 0 and others elsewhere."""
    means = TrustedCurator(budget=Purse(), secret=bytes(32))
    shapes = {"w": torch.Size([40_000])}
    estimator = DpSgd(shapes, clip=2.0, noise_multiplier=1.5, expected_batch=10.0, curator=means)
    return {"released": estimator.privatise(SecureNoise.derive(os.urandom(32), "noise"))["w"]}


def add_integers() -> dict[str, Any]:
    """Sums that no float holds; released as they are."""
    own = torch.tensor([2**60 + 1 + rank(), -(2**40) - 3, 0])
    return {"sum": privatise_once(own, lambda total: total)}


def train_with_directions_of_its_own(estimator: str) -> dict[str, Any]:
    """As where rounding differs between devices: what rank 1 finds by itself is another basis of the same space."""
    found = gep.orthonormal_basis, gep.basis_of_combinations, rgp.carriers_of
    if rank() == 1:
        gep.orthonormal_basis = lambda *given: found[0](*given).flip(0)
        gep.basis_of_combinations = lambda *given: found[1](*given).flip(0)
        rgp.carriers_of = lambda *given: tuple(-part for part in found[2](*given))
    try:
        return train_classifier(estimator)
    finally:
        gep.orthonormal_basis, gep.basis_of_combinations, rgp.carriers_of = found


def train_with_a_fault_of_rank_1() -> dict[str, Any]:
    """As where one of several machines computes a record a little otherwise in some places."""
    make, sizes = PrivateSteps.make, list[int]()

    def watched(steps: PrivateSteps, checkpoint: Any) -> Any:
        if rank() == 1:
            forward_fault(next(steps.task.model.children()))
        try:
            return make(steps, checkpoint)
        finally:
            sizes.append(steps._size)

    PrivateSteps.make = watched  # type: ignore[method-assign]
    try:
        return {**train_classifier("dpsgd"), "sizes": sizes}
    finally:
        PrivateSteps.make = make  # type: ignore[method-assign]


def train_denoiser(left: int = 10**9) -> dict[str, Any]:
    options = {"features": 8, "blocks": 1, "multiplicity": 2, "expected_batch": 60, "epochs": 0.5, "ema": 0.0}
    options |= {"central_images": 3, "central_batch": 100, "central_steps": 3, "sampling_steps": 2}
    return training("dp_diffusion", options, budget=Purse(left))


def select_pictures() -> dict[str, Any]:
    data = dataclasses.replace(images(), public_anchors=images(30).private_images)
    return training("select_public", {"public_dataset_id": "ds_public", "choices": 4}, data=data)


def load_onto_a_device() -> dict[str, Any]:
    memory = Memory()
    save_checkpoint(memory, {"step": 7, "value": torch.ones(2)})
    saved = load_checkpoint(memory, device="meta")
    return {"step": saved["step"], "device": saved["value"].device.type, "reads": memory.reads}


def train_in_two_attempts() -> dict[str, Any]:
    """The first attempt's budget ends after 5 steps; the second goes on from its checkpoint."""
    memory = Memory()
    first = train_classifier("dpsgd", budget=Purse(5), checkpoints=memory)
    second = train_classifier("dpsgd", checkpoints=memory, attempt=2)
    return {**second, "first_weights": first["weights"], "first_paid": first["paid"]}


SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {
    **{name: partial(train_classifier, name) for name in ("dpsgd", "topagg")},
    **{name: partial(train_with_directions_of_its_own, name) for name in ("gep", "rgp")},
    "two attempts": train_in_two_attempts,
    "votes": run_votes,
    "votes of a poor purse": partial(run_votes, left=12),
    "generator of convolutional teachers": partial(
        train_generator, teacher_network="convolutional", teacher_features=2, teacher_hidden=4, top_k=3
    ),
    "generator from pixels": partial(train_generator, preset="published"),
    "generator of kernel teachers": partial(train_generator, preset="kernel"),
    "noise": release_noise,
    "integers": add_integers,
    "fault of rank 1": train_with_a_fault_of_rank_1,
    "denoiser": train_denoiser,
    "central images alone": partial(train_denoiser, left=3),
    "histogram": partial(training, "class_histogram", {}),
    "public pictures": select_pictures,
    "device": load_onto_a_device,
}


def main() -> None:
    """Run every scenario, or with "death" lose rank 1 before the first."""
    kind, number, together, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    draws = 0
    draw = SecureNoise.discrete_gaussian

    def counted(self: SecureNoise, shape: Any, stddev: float) -> Any:
        nonlocal draws
        draws += 1
        return draw(self, shape, stddev)

    SecureNoise.discrete_gaussian = counted  # type: ignore[method-assign]
    if together > 1:
        distributed.init_process_group("gloo", init_method=f"file://{out}/meet", rank=number, world_size=together)
    if kind == "death" and number == 1:
        os._exit(3)
    found = {}
    for name, work in SCENARIOS.items():
        draws = 0
        found[name] = {**work(), "draws": draws}
    torch.save(found, out / f"{number}.pt")
    if together > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
