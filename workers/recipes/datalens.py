"""DataLens: teachers on disjoint shards vote on how images should change (Wang et al. 2021, arXiv:2103.11109).

Teachers learn to distinguish the records of their shards from the student's images. Only their noisy votes (TopAgg) are
released, one release per synthetic image. A student's use of a release is post-processing: the student may read the raw
noisy sums, store every release, and train on them without limit. `run_teacher_stage` is Algorithm 1. The generator and
its step size are the authors'.

Records are assigned to shards by a keyed hash. The authors' code deals out each class's records in turn, so one more
record moves others to other teachers. The authors' epsilon therefore holds only under replacement of records.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.closed_form_teachers import KernelTeachers, LinearTeachers
from models.convolutional_teachers import ConvolutionalConfig, ConvolutionalTeachers
from models.portable.conditional_dcgan import ConditionalDcganConfig, ConditionalDcganGenerator
from models.shards import Shards
from privacy.errors import BudgetExceeded, InvalidParameter
from privacy.mechanisms import topagg
from privacy.mechanisms.partition import shard_members
from privacy.plans.datalens import TEACHER_BYTES, VOTES, DataLensConfig, TopAggConfig, planned_iterations
from privacy.plans.plan import Plan, PublicFacts
from workers.recipes.interface import NothingUseful, Piece, Run, TrustedCurator, load_checkpoint, save_checkpoint
from workers.recipes.ranks import join_on_first, rank, share
from workers.recipes.records import teacher_of_each

_VOTE_SECONDS = 1e-5  # seconds of one teacher on one 28 x 28 image
_STEP_SECONDS = {"linear": 0.0, "kernel": 1e-5, "convolutional": 3e-4}  # likewise, for one update
_STEPS_MAX = {"linear": 0, "kernel": 1}  # for closed-form teachers, because more updates change nothing
_SHOWN = 500  # the student's images, evenly by class, shown to kernel teachers; at least one per class
_BETAS = (0.5, 0.999)  # of the generator's Adam
Teachers = LinearTeachers | KernelTeachers | ConvolutionalTeachers  # of one rank. PRIVATE


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
    config, stage = plan.config_of(DataLensConfig), stage_config(plan, facts)
    each = _VOTE_SECONDS + stage.teacher_steps * _STEP_SECONDS[config.teacher_network]
    return (Piece(VOTES, stage.iterations, each * stage.iterations * config.teachers * stage.images * facts.size),)


def stage_config(plan: Plan, facts: PublicFacts) -> TeacherStageConfig:
    config = plan.config_of(DataLensConfig)
    steps_max = _STEPS_MAX.get(config.teacher_network, sys.maxsize)
    return TeacherStageConfig(
        aggregation=config.topagg(facts, plan.noise_stddev[VOTES]),
        classes=len(facts.classes),
        images=config.images_per_iteration,
        iterations=planned_iterations(plan),
        teacher_steps=min(config.teacher_steps, steps_max),
        first_steps=min(config.pretraining_steps, steps_max),
        shard_batch=max(1, facts.records_declared // config.teachers),
        shown=max(_SHOWN, len(facts.classes)) if config.teacher_network == "kernel" else 0,
        gamma=config.step,
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


@dataclass(frozen=True)
class TeacherStageConfig:
    """Public parameters of the stage, validated by the plan. Single letters are the paper's symbols.

    Attributes:
        aggregation: N, k, c, sigma, beta and the ablation switches.
        images: m, synthetic images per iteration: each is one paid release.
        iterations: T.
        teacher_steps: updates of each teacher per iteration; 0 for teachers in closed form.
        first_steps: updates of each teacher in the first iteration.
        shard_batch: records of each teacher per update.
        shown: number of synthetic images that all teachers see in an update; 0: as many as they vote on.
        gamma: factor of the votes g_bar in the targets x + gamma g_bar.
        charge_iterations: iterations paid together, before any of their noise is drawn.
    """

    aggregation: TopAggConfig
    classes: int
    images: int
    iterations: int
    teacher_steps: int = 2
    first_steps: int = 10
    shard_batch: int = 15
    shown: int = 0
    gamma: float = 0.1
    charge_iterations: int = 5


@dataclass(frozen=True)
class Release:
    """The public outcome of one iteration.

    Attributes:
        released_inputs: x, (m, d) the student's images (or their features).
        released_labels: y, (m,) int64.
        released_sums: (m, d) float32, sum_i g_tilde_i + N_Z(0, sigma^2): the votes before the threshold.
        released_direction: g_bar, (m, d) after the threshold, in {-1, 0, 1}; without a threshold, the noisy mean vote.
        released_targets: x_hat = x + gamma g_bar, (m, d).
    """

    released_inputs: Tensor
    released_labels: Tensor
    released_sums: Tensor
    released_direction: Tensor
    released_targets: Tensor


class PixelStudent:
    """The generator and its optimiser: one Adam step towards x + gamma g_bar for each release (Algorithm 1, line 18).

    It has no access to private data: everything here is post-processing of releases.
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

    def learn(self, release: Release) -> None:
        """Take one Adam step that reduces the squared distance to the release's targets."""
        loss = (self.network(self._z, release.released_labels).flatten(1) - release.released_targets).square().sum()
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()

    def state(self) -> dict[str, Any]:
        return {
            "network": self.network.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "stream": self._stream.get_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._stream.set_state(state["stream"])


@dataclass
class TeacherStageState:
    """The stage's progress. `tensors()` contains private weights: store them only in the job's checkpoint."""

    ensemble: Teachers
    iteration: int = 0

    def tensors(self) -> dict[str, Any]:
        """Return the state for `restore` (PRIVATE). Every rank calls it; rank 0's result holds all teachers."""
        teachers = self.ensemble.state_dict()
        return {
            "iteration": self.iteration,
            "teachers": {name: join_on_first(value) if value.dim() else value for name, value in teachers.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        teachers: Mapping[str, Tensor] = state["teachers"]
        own = {name: value[share(len(value))] if value.dim() else value for name, value in teachers.items()}
        self.ensemble.load_state_dict(own)
        self.iteration = int(state["iteration"])


def run_teacher_stage(
    cfg: TeacherStageConfig,
    private_shards: Shards,
    student: PixelStudent,
    state: TeacherStageState,
    curator: TrustedCurator,
    checkpoint: Callable[[TeacherStageState], None] = lambda _: None,
) -> None:
    """Run Algorithm 1 from `state.iteration` to the end, or to the end of the budget.

    The state is new or restored, and advances in place. The curator pays for up to `charge_iterations` iterations
    before the first of them draws noise; `checkpoint` is called after each such group.

    Privacy:
        Adjacency: add or remove one unit. It is in one of the `private_shards`, which are disjoint by keyed hash, so
        one teacher's votes change. Each image's vote sum has L2 sensitivity 2 sqrt(k) (Lemma 1,
        `TopAggConfig.sensitivity`) and gets discrete Gaussian noise: one event per image, m T in all. Teachers keep
        learning between releases, which adaptive composition covers. The student sees only releases.
    """
    agg, ensemble = cfg.aggregation, state.ensemble
    if private_shards.teachers != agg.teachers:
        raise InvalidParameter("shards", "(hidden)", f"there must be one shard for each of the {agg.teachers} teachers")
    labels = curator.generator("labels")  # a separate stream, because labels are released
    rows = curator.generator("shard rows")
    coins = curator.generator("vote coins", *(("rank", rank()) if rank() else ()))  # each rank draws its own
    mine = share(agg.teachers)  # the teachers of this rank; all teachers if there is one rank
    active = private_shards.active[mine]

    paid_until = state.iteration
    while state.iteration < cfg.iterations:
        if state.iteration == paid_until:
            ahead = min(cfg.charge_iterations, cfg.iterations - paid_until)
            try:
                curator.pay(agg.event(cfg.images * ahead), VOTES)
            except BudgetExceeded:
                break
            paid_until += ahead
        y = uniform_labels(cfg.images, cfg.classes, labels).to(ensemble.device)
        for _ in range(cfg.teacher_steps if state.iteration else cfg.first_steps):
            shown = uniform_labels(cfg.shown, cfg.classes, labels).to(ensemble.device) if cfg.shown else y
            fake = student.propose(shown).detach()  # (m, d)
            real = private_shards.batch(cfg.shard_batch, rows, mine)
            ensemble.update(real, fake, shown)  # descend the loss of Gamma_i
        x = curator.agree(student.propose(y).detach())  # (m, d) = Psi(z, y); all vote on the same images
        votes = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
        for block, g in ensemble.image_gradients(x, y):  # (n, m, d), d log Gamma_i / d x_j
            votes += topagg.count_votes(g, agg, coins, active[block])  # TopkStoSignGrad, summed
        g_star = curator.privatise(  # Phase II, paid above
            votes, lambda total: topagg.noisy_sum(total, agg, curator.noise("votes", VOTES, state.iteration))
        )
        g_bar = topagg.threshold(g_star, agg)
        student.learn(Release(x, y, g_star.float(), g_bar, x + cfg.gamma * g_bar))
        state.iteration += 1
        if state.iteration == paid_until:
            checkpoint(state)
        curator.progress(stage=VOTES, step=state.iteration, steps=cfg.iterations)


def uniform_labels(count: int, classes: int, generator: torch.Generator) -> Tensor:
    """Draw labels as evenly as the count allows, in random order: the uniform prior over declared classes."""
    order = torch.randperm(classes, generator=generator).repeat(-(-count // classes))[:count]
    return order[torch.randperm(count, generator=generator)]
