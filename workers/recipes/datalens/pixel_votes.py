"""DataLens as published: teachers on disjoint shards vote on pixels (Wang et al. 2021, arXiv:2103.11109).

Algorithms 1 to 3 from nothing: no start, the authors' generator, and thresholded votes on each synthetic image. The
loop is `workers.recipes.datalens.teacher_stage`, line by line; this is who teaches and who learns in it. Shards are by
keyed hash, where the authors' code deals classes in turn: there a record that is added moves others to other teachers,
so that its epsilon holds for records that are replaced alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.convolutional_teachers import ConvolutionalConfig, ConvolutionalTeachers
from models.kernel_teachers import KernelTeachers
from models.linear_teachers import LinearTeachers
from models.portable.conditional_dcgan import ConditionalDcganConfig, ConditionalDcganGenerator
from models.shards import Shards
from models.teacher_ensemble import TeacherConfig
from privacy.mechanisms.partition import shard_members
from privacy.plans.datalens.options import DataLensConfig
from privacy.plans.datalens.plan import VOTES, planned_iterations
from privacy.plans.plan import Plan, PublicFacts
from workers.recipes.datalens.teacher_stage import (
    Release,
    TeacherStageConfig,
    TeacherStageState,
    run_teacher_stage,
    start_teacher_stage,
)
from workers.recipes.interface import NothingUseful, Piece, Run, load_checkpoint, save_checkpoint
from workers.recipes.ranks import share
from workers.recipes.units import teacher_of_each

_BETAS = (0.5, 0.999)  # of the generator's Adam
_CHARGED_TOGETHER = 5  # iterations that are paid, run and checkpointed together
_VOTE_SECONDS = 1e-5  # of one teacher on one image of 28 x 28
_STEP_SECONDS = {"linear": 0.0, "kernel": 1e-5, "dense": 1e-5, "convolutional": 3e-4}  # the same, of a step of learning
_STEPS_MAX = {"linear": 0, "kernel": 1}  # the steps of these are taken in closed form
_SHOWN = 500  # images of all classes alike that kernel teachers see of the student; one of each at least


class PixelStudent:
    """The generator and its optimiser: one Adam step towards x + gamma g_bar for each release (line 18 of Algorithm 1).

    Everything here is post-processing of releases.
    """

    def __init__(self, network: ConditionalDcganGenerator, learning_rate: float, latents: torch.Generator) -> None:
        self.network, self._stream = network, latents
        self._optimiser = torch.optim.Adam(network.parameters(), lr=learning_rate, betas=_BETAS, fused=True)
        self._z = torch.zeros(0)

    def propose(self, labels: Tensor) -> Tensor:
        """Draw images (m, d) for labels (m,)."""
        self._z = self.network.latents(len(labels), self._stream).to(labels.device)
        with torch.no_grad():
            images: Tensor = self.network(self._z, labels)
        return images.flatten(1)

    def learn(self, releases: list[Release]) -> None:
        """Descend the squared distance to the last release's targets."""
        last = releases[-1]
        loss = (self.network(self._z, last.released_labels).flatten(1) - last.released_targets).square().sum()
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs to go on."""
        return {
            "network": self.network.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "stream": self._stream.get_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self.network.load_state_dict(state["network"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._stream.set_state(state["stream"])


def train_on_pixels(run: Run) -> ConditionalDcganGenerator:
    """Train and return the released generator; see `workers.recipes.interface.Trainer`.

    Privacy:
        Add or remove one unit: a record, or all records of a subject. All of a unit's records lie in one teacher's
        shard, so one teacher's votes change: each image's vote sum has sensitivity 2 sqrt(k) and is one Gaussian event,
        charged before its noise is drawn. The generator is computed from these releases and public randomness alone;
        the statistics that its BatchNorm draws with are measured on public latents.

    Raises:
        NothingUseful: the budget ended before the first iteration.
        ContributionUnbounded: a unit could reach two teachers; raised before anything is charged.
    """
    cfg, facts = run.plan.config_of(DataLensConfig), run.facts
    sizes = (len(facts.classes), facts.channels, facts.height, facts.width)
    seed = int(torch.randint(1 << 62, (1,), generator=run.generator("generator weights")))
    network = ConditionalDcganGenerator(ConditionalDcganConfig(*sizes), seed).to(run.device)
    student = PixelStudent(network, cfg.generator_learning_rate, run.generator("latents"))
    stage = stage_config(run.plan, cfg, facts)
    private_shards = _shards(run, cfg.teachers)
    state = _teachers(run, cfg, stage, private_shards)
    saved = load_checkpoint(run.checkpoints)
    if saved is not None:
        state.restore(saved.state["stage"])
        student.restore(saved.state["student"])

    def checkpoint(reached: TeacherStageState) -> None:
        kept = {"stage": reached.tensors(), "student": student.state()}
        save_checkpoint(run.checkpoints, step=reached.iteration, state=kept)

    if not run_teacher_stage(stage, private_shards, student, state, run, checkpoint):
        raise NothingUseful
    network.settle()
    return network.cpu()


def pixel_votes_work(plan: Plan, facts: PublicFacts) -> Piece:
    """Return the one piece of such a training."""
    cfg, iterations = plan.config_of(DataLensConfig), planned_iterations(plan)
    steps = min(cfg.teacher_steps, _STEPS_MAX.get(cfg.teacher_network, cfg.teacher_steps))
    each = _VOTE_SECONDS + steps * _STEP_SECONDS[cfg.teacher_network]
    return Piece(VOTES, iterations, each * iterations * cfg.teachers * cfg.images_per_iteration * facts.size)


def stage_config(plan: Plan, cfg: DataLensConfig, facts: PublicFacts) -> TeacherStageConfig:
    """Return the parameters of Algorithm 1, for votes on pixels or on latents."""
    aggregation = cfg.topagg(facts, plan.noise_stddev[VOTES])
    steps_max = _STEPS_MAX.get(cfg.teacher_network, max(cfg.teacher_steps, cfg.pretraining_steps))
    return TeacherStageConfig(
        aggregation=aggregation,
        teacher=_teacher(cfg, facts, aggregation.dimension),
        images=cfg.images_per_iteration,
        iterations=planned_iterations(plan),
        teacher_steps=min(cfg.teacher_steps, steps_max),
        first_steps=min(cfg.pretraining_steps, steps_max),
        shard_batch=max(1, facts.records_declared // cfg.teachers),
        shown=max(_SHOWN, len(facts.classes)) if cfg.teacher_network == "kernel" else 0,
        gamma=cfg.step,
        charge_iterations=_CHARGED_TOGETHER,
        stage=VOTES,
    )


def _teacher(cfg: DataLensConfig, facts: PublicFacts, inputs: int) -> TeacherConfig | ConvolutionalConfig:
    classes = len(facts.classes)
    if cfg.teacher_network == "convolutional":
        sizes = (classes, facts.channels, facts.height, facts.width)
        return ConvolutionalConfig(*sizes, cfg.teacher_features, cfg.teacher_hidden, cfg.teacher_learning_rate)
    return TeacherConfig(
        inputs=inputs,
        classes=classes,
        hidden=cfg.teacher_hidden,
        learning_rate=cfg.teacher_learning_rate,
        weight_decay=cfg.teacher_weight_decay,
        instance_noise=cfg.instance_noise,
        label_smoothing=cfg.label_smoothing,
        zero_head=True,
    )


def _teachers(run: Run, cfg: DataLensConfig, stage: TeacherStageConfig, private_shards: Shards) -> TeacherStageState:
    mine = share(cfg.teachers)
    if cfg.teacher_network == "linear":
        return TeacherStageState(LinearTeachers(private_shards, stage.teacher.classes, mine, device=run.device))
    if cfg.teacher_network == "kernel":
        bandwidth = cfg.teacher_bandwidth * run.facts.size**0.5
        made = KernelTeachers(private_shards, stage.teacher.classes, bandwidth, mine, device=run.device)
        return TeacherStageState(made)
    if isinstance(stage.teacher, ConvolutionalConfig):
        stream = run.generator("teachers")
        return TeacherStageState(
            ConvolutionalTeachers(stage.teacher, private_shards, mine, generator=stream, device=run.device)
        )
    return start_teacher_stage(stage, run)


def _shards(run: Run, teachers: int) -> Shards:
    """Give every teacher its records as pixels, channels first."""
    assigned = teacher_of_each(run.facts, run.data, run.secret, teachers)
    private_images = np.asarray(run.data.private_images)
    if private_images.ndim == 4:
        private_images = np.moveaxis(private_images, 3, 1)
    rows = torch.from_numpy(np.array(private_images, order="C")).flatten(1)  # copied: torch takes no read-only map
    labels = torch.from_numpy(np.array(run.data.private_labels, dtype=np.int64))
    return Shards(rows, labels, shard_members(assigned, teachers), device=run.device)
