"""DataLens: teachers on disjoint shards vote on how synthetic images should change (Wang et al. 2021).

The loop is Algorithm 1 (arXiv:2103.11109) with two additions of ours, both switchable: a warm start paid from the
same budget, and votes on *latents* instead of pixels. In a class's latent space every direction has unit variance, so
the few coordinates for which a teacher may vote are the ones that matter, and few coordinates mean little noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.generator import Generator, GeneratorConfig
from models.shards import Shards
from models.teacher_ensemble import TeacherConfig
from privacy.mechanisms.noise import SecureNoise
from privacy.mechanisms.partition import shard_members
from privacy.plans.datalens import BY_CLASS, MEANS, POOLED, VOTES, warm_start_event
from privacy.plans.datalens_config import DataLensConfig
from privacy.plans.moment_votes import planned_rounds
from privacy.plans.plan import Plan, PublicFacts
from workers.distribution import from_first, rank
from workers.planned_work import WARM_START
from workers.recipes.interface import (
    Budget,
    CheckpointFolder,
    NothingUseful,
    Progress,
    TrainingData,
    load_checkpoint,
    save_checkpoint,
)
from workers.recipes.moment_votes import cosine_features, run_moment_votes
from workers.recipes.student import LatentStudent, vote_stddev
from workers.recipes.teacher_stage import (
    TeacherStageConfig,
    TeacherStageState,
    private_generator,
    run_teacher_stage,
    start_teacher_stage,
)
from workers.recipes.units import records_to_sum, teacher_of_each
from workers.recipes.warm_start import ClassGaussians, NoiseScales, exact_product, prior, warm_start

_LATENT_CLIP = 4.0  # public: a record further out than four standard deviations is moved there before teachers see it
_CHARGED_TOGETHER = 5  # iterations that are paid, run and checkpointed together
_BLOCK = 4096


def train(
    plan: Plan,
    facts: PublicFacts,
    data: TrainingData,
    *,
    budget: Budget,
    secret: bytes,
    attempt: int,
    progress: Progress,
    checkpoint_dir: CheckpointFolder,
    device: torch.device,
) -> Generator:
    """Train and return the released generator; see `workers.recipes.interface.Trainer`.

    Privacy:
        Add or remove one unit: a record, or all records of a subject. The releases are those of the plan's stages: at
        most one of each warm start statistic and one per aggregated image, each charged before its noise is drawn.
        The generator is computed from them and public parameters alone. A subject's records all lie in one teacher's
        shard, and one of them stands for the subject in the warm start, so every sensitivity is that of a record.

    Raises:
        BudgetExceeded: the budget ended before the start was paid for, or a statistic was paid for and lost in a crash
            before it was kept, more often than the rest of the hold can make up for.
        NothingUseful: there is neither a start nor a vote.
        ContributionUnbounded: a unit could change a release by more than was priced; raised before it is charged.
        Cancelled: from `progress`.
    """
    cfg = DataLensConfig(**plan.config)
    saved = load_checkpoint(checkpoint_dir)
    state = {} if saved is None else saved.state
    generator = Generator(_shape(cfg, facts))
    if "generator" in state:
        generator.load_state_dict(state["generator"])
    else:

        def keep(released: Mapping[str, Any]) -> None:
            save_checkpoint(checkpoint_dir, step=0, state={"start": dict(released)})

        if rank() == 0:  # seconds of work: one process does it
            gaussians = _start(
                plan,
                cfg,
                facts,
                data,
                budget=budget,
                secret=secret,
                attempt=attempt,
                progress=progress,
                released=state.get("start", {}),
                keep=keep,
            )
            generator.mean.copy_(torch.from_numpy(gaussians.mean))
            generator.factor.copy_(torch.from_numpy(gaussians.factor))
        generator.mean.copy_(from_first(generator.mean))
        generator.factor.copy_(from_first(generator.factor))
        save_checkpoint(checkpoint_dir, step=0, state={"generator": generator.state_dict(), "votes": None})
    generator.to(device)
    if plan.stage(VOTES) is not None:
        _vote(
            plan,
            cfg,
            facts,
            data,
            generator,
            state.get("votes"),
            budget=budget,
            secret=secret,
            attempt=attempt,
            progress=progress,
            checkpoint_dir=checkpoint_dir,
            device=device,
        )
    return generator.cpu().eval()


class PaidNoise:
    """Noise that does not exist before it is paid for: the first draw charges, at the last moment.

    The sums below it are ready by then, so that only milliseconds lie between the payment and the checkpoint that
    keeps what was paid for.
    """

    def __init__(self, pay: Callable[[], None], derive: Callable[[], SecureNoise]) -> None:
        self._pay, self._derive = pay, derive
        self._noise: SecureNoise | None = None

    def discrete_gaussian(self, shape: int | tuple[int, ...], stddev: float) -> npt.NDArray[np.int64]:
        """Draw, after paying.

        Raises:
            BudgetExceeded: it cannot be paid; there is no noise and no release.
        """
        if self._noise is None:
            self._pay()
            self._noise = self._derive()
        return self._noise.discrete_gaussian(shape, stddev)


def _shape(cfg: DataLensConfig, facts: PublicFacts) -> GeneratorConfig:
    return GeneratorConfig(
        classes=len(facts.classes),
        channels=facts.channels,
        height=facts.height,
        width=facts.width,
        components=cfg.latent_size(facts),
        features=cfg.features,
    )


def _start(
    plan: Plan,
    cfg: DataLensConfig,
    facts: PublicFacts,
    data: TrainingData,
    *,
    budget: Budget,
    secret: bytes,
    attempt: int,
    progress: Progress,
    released: Mapping[str, Any],
    keep: Callable[[Mapping[str, Any]], None],
) -> ClassGaussians:
    """Release what the generator starts from; `released` is what an earlier attempt kept, `keep` checkpoints it."""
    noise_stddev: dict[str, float] = plan.facts["noise_stddev"]
    if cfg.moment_votes:
        moments = cfg.moments(facts)
        return run_moment_votes(
            planned_rounds(moments, len(facts.classes), noise_stddev),
            cosine_features(facts, moments.coefficients),
            facts,
            data.private_images,
            data.private_labels,
            teacher_of_each(facts, data, secret, cfg.teachers),
            budget=budget,
            secret=secret,
            attempt=attempt,
            progress=progress,
            released=released,
            keep=keep,
        )
    if not cfg.warm_start:
        return prior(cfg, facts)
    private_images, private_labels = records_to_sum(facts, data, secret)
    stages = (MEANS, POOLED, BY_CLASS)

    def tell(reached: Mapping[str, Any]) -> None:
        progress(stage=WARM_START, step=len(reached), steps=len(stages))

    def kept(reached: Mapping[str, npt.NDArray[np.float64]]) -> None:
        keep({name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in reached.items()})
        tell(reached)

    def noise(name: str) -> PaidNoise:
        event = warm_start_event(name, noise_stddev[name])
        return PaidNoise(
            lambda: budget.charge(event, name), lambda: SecureNoise.derive(secret, "warm start", attempt, name)
        )

    tell(released)
    return warm_start(
        private_images,
        private_labels,
        cfg,
        facts,
        NoiseScales(*(noise_stddev[name] for name in stages)),
        noise,
        released={name: tensor.numpy() for name, tensor in released.items()},
        keep=kept,
    )


def _vote(
    plan: Plan,
    cfg: DataLensConfig,
    facts: PublicFacts,
    data: TrainingData,
    generator: Generator,
    saved: dict[str, Any] | None,
    *,
    budget: Budget,
    secret: bytes,
    attempt: int,
    progress: Progress,
    checkpoint_dir: CheckpointFolder,
    device: torch.device,
) -> None:
    """Run the teacher stage; the generator's bend is changed in place."""
    stage_cfg = _stage_config(plan, cfg, facts)
    agg = stage_cfg.aggregation
    student = LatentStudent(
        generator,
        latents=private_generator(secret, "latents", attempt),
        teachers=cfg.teachers,
        noise_stddev=vote_stddev(agg.stddev, cfg.teachers, agg.votes_max, agg.dimension),
        step=cfg.step,
        round_iterations=max(1, stage_cfg.iterations // cfg.rounds),
        thresholded=cfg.use_threshold,
    )
    private_shards = _shards(cfg, facts, data, generator, secret, device)
    state = start_teacher_stage(stage_cfg, secret=secret, attempt=attempt, device=device)
    if saved is not None:
        state.restore(saved["stage"])
        student.restore(saved["student"])

    def checkpoint(reached: TeacherStageState) -> None:
        state = {
            "generator": generator.state_dict(),
            "votes": {"stage": reached.tensors(), "student": student.state()},
        }
        save_checkpoint(checkpoint_dir, step=reached.iteration, state=state)

    releases = run_teacher_stage(
        stage_cfg,
        private_shards,
        student,
        state,
        budget=budget,
        secret=secret,
        attempt=attempt,
        progress=progress,
        checkpoint=checkpoint,
    )
    if not releases and not cfg.has_start:
        raise NothingUseful
    student.finish(releases)


def _stage_config(plan: Plan, cfg: DataLensConfig, facts: PublicFacts) -> TeacherStageConfig:
    agg = cfg.topagg(facts, plan.facts["noise_stddev"][VOTES])
    teacher = TeacherConfig(
        inputs=agg.dimension,
        classes=len(facts.classes),
        hidden=cfg.teacher_hidden,
        learning_rate=cfg.teacher_learning_rate,
        weight_decay=cfg.teacher_weight_decay,
        instance_noise=cfg.instance_noise,
        label_smoothing=cfg.label_smoothing,
        zero_head=True,
    )
    return TeacherStageConfig(
        aggregation=agg,
        teacher=teacher,
        images=cfg.images_per_iteration,
        iterations=plan.facts["iterations"],
        teacher_steps=cfg.teacher_steps,
        first_steps=cfg.pretraining_steps,
        shard_batch=max(1, facts.records_declared // cfg.teachers),
        gamma=cfg.step,
        charge_iterations=_CHARGED_TOGETHER,
        stage=VOTES,
    )


def _shards(
    cfg: DataLensConfig,
    facts: PublicFacts,
    data: TrainingData,
    generator: Generator,
    secret: bytes,
    device: torch.device,
) -> Shards:
    """Give every teacher its records as latents."""
    assigned = teacher_of_each(facts, data, secret, cfg.teachers)
    private_labels = torch.from_numpy(np.array(data.private_labels, dtype=np.int64))  # torch takes no read-only map
    private_latents = encode(generator, data.private_images, private_labels)
    return Shards(private_latents, private_labels, shard_members(assigned, cfg.teachers), device=device)


def encode(generator: Generator, private_images: npt.NDArray[np.uint8], private_labels: Tensor) -> Tensor:
    """Return the latents (n, d) from which the unbent generator would draw what it can of each image. Private.

    Each record's latent is a function of that record and the generator alone, to the last bit.
    """
    latents = torch.zeros(len(private_images), generator.config.components)
    for label in range(generator.config.classes):
        factor, mean = generator.factor[label].cpu().double(), generator.mean[label].cpu().double()
        inverse = torch.linalg.pinv(factor, rtol=1e-3).T.numpy()  # (pixels, d)
        origin = mean.numpy() @ inverse  # (d,)
        rows = (private_labels == label).nonzero().squeeze(1)
        for block in torch.split(rows, _BLOCK):
            images = np.asarray(private_images[block.numpy()])
            if images.ndim == 4:
                images = np.moveaxis(images, 3, 1)
            pixels = images.reshape(len(images), generator.config.pixels) / 255.0
            latents[block] = torch.from_numpy(exact_product(pixels, inverse, largest=1.0) - origin).float()
    return latents.clamp_(-_LATENT_CLIP, _LATENT_CLIP)
