"""DataLens: teachers on disjoint shards vote on how synthetic images should change (Wang et al. 2021).

`workers.recipes.teacher_stage` is Algorithm 1 (arXiv:2103.11109). The generator and its step size are the authors'.
Records are assigned to shards by a keyed hash. The authors' code deals out each class's records in turn, so one more
record moves others to other teachers. The authors' epsilon therefore holds only under replacement of records.
"""

from __future__ import annotations

import os
import sys

import numpy as np
import torch
from torch import Tensor

from models.closed_form_teachers import KernelTeachers, LinearTeachers
from models.convolutional_teachers import ConvolutionalConfig, ConvolutionalTeachers
from models.portable.conditional_dcgan import ConditionalDcganConfig, ConditionalDcganGenerator
from models.shards import Shards
from privacy.mechanisms.partition import shard_members
from privacy.plans.datalens import TEACHER_BYTES, VOTES, DataLensConfig, planned_iterations
from privacy.plans.plan import Plan, PublicFacts
from workers.recipes.interface import NothingUseful, Piece, Run, load_checkpoint, save_checkpoint
from workers.recipes.ranks import share
from workers.recipes.records import teacher_of_each
from workers.recipes.teacher_stage import (
    PixelStudent,
    Teachers,
    TeacherStageConfig,
    TeacherStageState,
    run_teacher_stage,
)

_CHARGED_TOGETHER = 5  # iterations paid, run and checkpointed together
_VOTE_SECONDS = 1e-5  # seconds of one teacher on one 28 x 28 image
_STEP_SECONDS = {"linear": 0.0, "kernel": 1e-5, "convolutional": 3e-4}  # likewise, for one update
_STEPS_MAX = {"linear": 0, "kernel": 1}  # for closed-form teachers, because more updates change nothing
_SHOWN = 500  # the student's images, evenly by class, shown to kernel teachers; at least one per class


def train(run: Run) -> ConditionalDcganGenerator:
    """Train and return the released generator.

    Raise MemoryError, before anything is charged, if the teachers do not fit into memory.

    Privacy:
        Adjacency: add or remove one unit (a record, or all records of a subject). The only releases are the aggregated
        images of the stage `votes`, each charged before its noise is drawn. The generator is computed from them and
        public parameters alone; its BatchNorm statistics are measured on public latents. All records of a subject are
        in one teacher's shard, so every sensitivity is that of a record.
    """
    config = run.plan.config_of(DataLensConfig)
    _require_memory(run, config)
    sizes = (len(run.facts.classes), run.facts.channels, run.facts.height, run.facts.width)
    seed = int(torch.randint(1 << 62, (1,), generator=run.generator("generator weights")))
    network = ConditionalDcganGenerator(ConditionalDcganConfig(*sizes), seed).to(run.device)
    student = PixelStudent(network, config.generator_learning_rate, run.generator("latents"))
    images = np.asarray(run.data.private_images)
    images = np.moveaxis(images, 3, 1) if images.ndim == 4 else images
    private_records = torch.from_numpy(np.array(images, order="C")).flatten(1)  # torch rejects read-only maps
    private_shards = shards_of(run, config.teachers, private_records)
    stage = stage_config(run.plan, run.facts)
    state = TeacherStageState(_teachers(run, stage, private_shards))
    saved = load_checkpoint(run.checkpoints)
    if saved:
        state.restore(saved["stage"])
        student.restore(saved["student"])
    run_teacher_stage(
        stage,
        private_shards,
        student,
        state,
        run,
        lambda reached: save_checkpoint(run.checkpoints, {"stage": reached.tensors(), "student": student.state()}),
    )
    if not state.iteration:
        raise NothingUseful
    del private_shards, state, saved  # their memory may be needed below
    network.settle()
    return network.cpu()


def work(plan: Plan, facts: PublicFacts) -> tuple[Piece, ...]:
    config, iterations = plan.config_of(DataLensConfig), planned_iterations(plan)
    steps = min(config.teacher_steps, _STEPS_MAX.get(config.teacher_network, sys.maxsize))
    each = _VOTE_SECONDS + steps * _STEP_SECONDS[config.teacher_network]
    votes = iterations * config.teachers * config.images_per_iteration
    return (Piece(VOTES, iterations, each * votes * facts.size),)


def stage_config(plan: Plan, facts: PublicFacts) -> TeacherStageConfig:
    """Return a plan's parameters of Algorithm 1."""
    config = plan.config_of(DataLensConfig)
    aggregation = config.topagg(facts, plan.noise_stddev[VOTES])
    steps_max = _STEPS_MAX.get(config.teacher_network, sys.maxsize)
    return TeacherStageConfig(
        aggregation=aggregation,
        classes=len(facts.classes),
        images=config.images_per_iteration,
        iterations=planned_iterations(plan),
        teacher_steps=min(config.teacher_steps, steps_max),
        first_steps=min(config.pretraining_steps, steps_max),
        shard_batch=max(1, facts.records_declared // config.teachers),
        shown=max(_SHOWN, len(facts.classes)) if config.teacher_network == "kernel" else 0,
        gamma=config.step,
        charge_iterations=_CHARGED_TOGETHER,
    )


def shards_of(run: Run, teachers: int, private_records: Tensor) -> Shards:
    """Assign the records (n, d) to the teachers' shards. PRIVATE."""
    assigned = teacher_of_each(run.facts, run.data, run.secret, teachers)
    members = shard_members(assigned, teachers)
    private_labels = torch.from_numpy(np.array(run.data.private_labels, dtype=np.int64))  # torch rejects read-only maps
    return Shards(private_records, private_labels, members, device=run.device)


def _require_memory(run: Run, config: DataLensConfig) -> None:
    """Raise MemoryError unless the teachers fit into the GPU's free memory, or the machine's."""
    mine = share(config.teachers)
    needed = TEACHER_BYTES * config.parameters_per_teacher(run.facts) * (mine.stop - mine.start)
    if run.device.type == "cuda":
        available = torch.cuda.mem_get_info(run.device)[0]
    else:
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        raise MemoryError


def _teachers(run: Run, stage: TeacherStageConfig, private_shards: Shards) -> Teachers:
    config, facts, mine = run.plan.config_of(DataLensConfig), run.facts, share(private_shards.teachers)
    if config.teacher_network == "linear":
        return LinearTeachers(private_shards, stage.classes, mine, device=run.device)
    if config.teacher_network == "kernel":
        bandwidth = config.teacher_bandwidth * facts.size**0.5
        return KernelTeachers(private_shards, stage.classes, bandwidth, mine, device=run.device)
    sizes = stage.classes, facts.channels, facts.height, facts.width
    shape = ConvolutionalConfig(*sizes, config.teacher_features, config.teacher_hidden, config.teacher_learning_rate)
    return ConvolutionalTeachers(shape, private_shards, mine, generator=run.generator("teachers"), device=run.device)
