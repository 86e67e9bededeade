"""Votes on images, of pixels or of latents: who votes, how loud the noise is, and how a training goes on with them.

The loop is `workers.recipes.datalens.teacher_stage`, line by line. Shards are by keyed hash, where the authors' code
deals classes in turn: there a record that is added moves others to other teachers, so that its epsilon holds only for
records that are replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.convolutional_teachers import ConvolutionalConfig, ConvolutionalTeachers
from models.kernel_teachers import KernelTeachers
from models.linear_teachers import LinearTeachers
from models.shards import Shards
from models.teacher_ensemble import TeacherConfig
from privacy.mechanisms.partition import shard_members
from privacy.plans.datalens.options import DataLensConfig
from privacy.plans.datalens.plan import VOTES, planned_iterations
from privacy.plans.plan import Plan, PublicFacts
from workers.recipes.datalens.student import LatentStudent, PixelStudent
from workers.recipes.datalens.teacher_stage import (
    Release,
    TeacherStageConfig,
    TeacherStageState,
    run_teacher_stage,
    start_teacher_stage,
)
from workers.recipes.interface import Piece, Run, save_checkpoint
from workers.recipes.ranks import share
from workers.recipes.units import teacher_of_each

_CHARGED_TOGETHER = 5  # iterations that are paid, run and checkpointed together
_VOTE_SECONDS, _LATENT_SECONDS = 1e-5, 2e-6  # of one teacher on one image of 28 x 28, and on one latent
_SHOWN = 500  # images of all classes alike that kernel teachers see of the student; one of each at least


def vote(
    run: Run,
    private_records: Tensor,
    student: PixelStudent | LatentStudent,
    saved: Mapping[str, Any] | None,
    with_votes: Callable[[dict[str, Any]], dict[str, Any]],
) -> list[Release]:
    """Let teachers vote on what a student proposes, as long as the budget pays, and return all releases.

    Args:
        run: pays group by group, and is told of each iteration.
        private_records: (n, d), each record as the student proposes images. PRIVATE.
        student: learns from the releases.
        saved: what a checkpoint has of the votes; None at the beginning.
        with_votes: returns the state of a checkpoint, from what it is to have of the votes.
    """
    config = run.plan.config_of(DataLensConfig)
    private_shards = shards_of(run, config.teachers, private_records)
    stage = stage_config(run.plan, run.facts)
    state = _NETWORKS[config.teacher_network].begin(run, stage, private_shards)
    if saved is not None:
        state.restore(saved["stage"])
        student.restore(saved["student"])

    def checkpoint(reached: TeacherStageState) -> None:
        votes = {"stage": reached.tensors(), "student": student.state()}
        save_checkpoint(run.checkpoints, step=reached.iteration, state=with_votes(votes))

    return run_teacher_stage(stage, private_shards, student, state, run, checkpoint)


def shards_of(run: Run, teachers: int, private_records: Tensor) -> Shards:
    """Give every teacher its records, (n, d) of all of them. PRIVATE."""
    assigned = teacher_of_each(run.facts, run.data, run.secret, teachers)
    members = shard_members(assigned, teachers)
    private_labels = torch.from_numpy(np.array(run.data.private_labels, dtype=np.int64))  # torch takes no read-only map
    return Shards(private_records, private_labels, members, device=run.device)


def stage_config(plan: Plan, facts: PublicFacts) -> TeacherStageConfig:
    """Return the parameters of Algorithm 1."""
    config = plan.config_of(DataLensConfig)
    aggregation = config.topagg(facts, plan.noise_stddev[VOTES])
    steps_max = _NETWORKS[config.teacher_network].steps_max
    return TeacherStageConfig(
        aggregation=aggregation,
        teacher=_teacher(config, facts, aggregation.dimension),
        images=config.images_per_iteration,
        iterations=planned_iterations(plan),
        teacher_steps=min(config.teacher_steps, steps_max),
        first_steps=min(config.pretraining_steps, steps_max),
        shard_batch=max(1, facts.records_declared // config.teachers),
        shown=max(_SHOWN, len(facts.classes)) if config.teacher_network == "kernel" else 0,
        gamma=config.step,
        charge_iterations=_CHARGED_TOGETHER,
        stage=VOTES,
    )


def _teacher(config: DataLensConfig, facts: PublicFacts, inputs: int) -> TeacherConfig | ConvolutionalConfig:
    classes = len(facts.classes)
    if config.teacher_network == "convolutional":
        sizes = (classes, facts.channels, facts.height, facts.width)
        return ConvolutionalConfig(*sizes, config.teacher_features, config.teacher_hidden, config.teacher_learning_rate)
    return TeacherConfig(
        inputs=inputs,
        classes=classes,
        hidden=config.teacher_hidden,
        learning_rate=config.teacher_learning_rate,
        weight_decay=config.teacher_weight_decay,
        instance_noise=config.instance_noise,
        label_smoothing=config.label_smoothing,
        zero_head=True,
    )


def _linear(run: Run, stage: TeacherStageConfig, private_shards: Shards) -> TeacherStageState:
    mine = share(private_shards.teachers)
    return TeacherStageState(LinearTeachers(private_shards, stage.teacher.classes, mine, device=run.device))


def _kernel(run: Run, stage: TeacherStageConfig, private_shards: Shards) -> TeacherStageState:
    bandwidth = run.plan.config_of(DataLensConfig).teacher_bandwidth * run.facts.size**0.5
    mine = share(private_shards.teachers)
    made = KernelTeachers(private_shards, stage.teacher.classes, bandwidth, mine, device=run.device)
    return TeacherStageState(made)


def _convolutional(run: Run, stage: TeacherStageConfig, private_shards: Shards) -> TeacherStageState:
    assert isinstance(stage.teacher, ConvolutionalConfig)
    stream, mine = run.generator("teachers"), share(private_shards.teachers)
    made = ConvolutionalTeachers(stage.teacher, private_shards, mine, generator=stream, device=run.device)
    return TeacherStageState(made)


class Network(NamedTuple):
    """A network of teachers: what makes those of this rank, and what is known of their steps of learning."""

    begin: Callable[[Run, TeacherStageConfig, Shards], TeacherStageState]
    step_seconds: float  # of one teacher, for one image of 28 x 28
    steps_max: int = sys.maxsize  # more change nothing where they are taken in closed form


_NETWORKS = {
    "linear": Network(_linear, 0.0, steps_max=0),
    "kernel": Network(_kernel, 1e-5, steps_max=1),
    "dense": Network(lambda run, stage, _: start_teacher_stage(stage, run), 1e-5),
    "convolutional": Network(_convolutional, 3e-4),
}


def votes_work(plan: Plan, facts: PublicFacts) -> Piece:
    """Return the piece of a training that such votes are."""
    config, iterations = plan.config_of(DataLensConfig), planned_iterations(plan)
    votes, network = iterations * config.teachers * config.images_per_iteration, _NETWORKS[config.teacher_network]
    if config.votes_on == "latents":
        return Piece(VOTES, iterations, _LATENT_SECONDS * votes * (1 + config.teacher_steps))
    each = _VOTE_SECONDS + min(config.teacher_steps, network.steps_max) * network.step_seconds
    return Piece(VOTES, iterations, each * votes * facts.size)
