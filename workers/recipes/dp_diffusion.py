"""A diffusion model trained by private steps (DPDM; Dockhorn et al. 2023, arXiv:2210.09929).

The denoiser is the only network that sees private records. Each record of a step is used in K rows, each with its own
noise level (noise multiplicity). An estimator privatises the gradient of the rows' mean loss. A plan may first release
a start: data on which the denoiser trains without further privacy cost. It is either Gaussians of the classes, from
which any number of images can be drawn, or noisy mean images (DP-FETA; Gong et al. 2025). The sampler may also begin at
an image drawn from these Gaussians. The denoiser then learns only small noise levels, for silhouettes and detail.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from models.classifiers import mixed_precision
from models.portable.edm import SIGMA_MAX, EdmConfig, EdmDenoiser, losses, noisy_rows
from privacy.accounting.events import PoissonGaussianEvent
from privacy.errors import BudgetExceeded
from privacy.gradients import arithmetic, integers
from privacy.mechanisms import clipping, partition
from privacy.mechanisms.noise import SecureNoise
from privacy.plans.dp_diffusion import CENTRAL, DpDiffusionConfig
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.private_steps import poisson_event
from workers.recipes.interface import (
    NothingUseful,
    Piece,
    Progress,
    Run,
    TrainingData,
    load_checkpoint,
    save_checkpoint,
)
from workers.recipes.private_steps import Task, planned_steps, steps_work
from workers.recipes.ranks import rank, weights_from_first
from workers.recipes.records import Units, anchor_images, labels_of, pixels_of
from workers.recipes.warm_start import noisy_gaussians, put_into, warm_start_work

Examples = tuple[Tensor, Tensor]  # images (n, c, h, w) uint8 and labels (n,), computed from releases alone
WARM_UP = "warm_up"  # a stage of reports
WARM_UP_BATCH = 64
_ROW_SECONDS = 3e-3  # of a step
_WARM_UP_SEED, _EXAMPLES_SEED = 3, 4
_EXAMPLES_MAX, _EXAMPLE_BYTES_MAX, _EXAMPLES_AT_ONCE = 60_000, 2**29, 2048
_EXAMPLE_SECONDS = 3e-3  # seconds to draw one 28 x 28 image with texture
_PASS_ROWS = 2048  # half-size images at once
_STEPS = 2.0**18  # the integer for full brightness: the finest grid for which a plan's widest noise can be drawn


def train(run: Run) -> EdmDenoiser:
    """Train and return the released denoiser.

    Raise BudgetExceeded if the hold cannot pay for a start, because crashes lost releases that it had paid for.

    Privacy:
        Adjacency: add or remove one unit. Each central image and each step privatises one sum over a Poisson sample,
        paid for before the sample is drawn. The proof of a step is in its estimator's file, that of the moments in
        `workers.recipes.warm_start`. Noise levels are drawn independently of the records. Everything else is computed
        from releases and public randomness.
    """
    config, facts, data = run.plan.config_of(DpDiffusionConfig), run.facts, run.data
    anchors = 2 * anchor_images(config, facts, data) - 1
    units, K = Units(facts, config, data), config.multiplicity
    denoiser = EdmDenoiser(_shape(run.plan, facts), config.initial_seed).to(run.device)
    state = load_checkpoint(run.checkpoints, device=run.device)

    has_start = bool(config.moments_fraction or config.central_images)
    if has_start and "steps" not in state:
        if config.moments_fraction:
            moments, _ = config.moments(run.plan.budget_nano, facts)
            put_into(denoiser.first, run.on_first(lambda: noisy_gaussians(run, moments, state.get("start", {}))))
        else:
            examples = central_examples(run, units, state.get("start"))
        if rank() == 0:  # thousands of steps whose rounding differs between GPUs: every rank starts from one result
            drawn = drawn_examples(denoiser, config, run.progress) if config.moments_fraction else examples
            warm_up(denoiser, config, *drawn, run.progress)
            del drawn  # up to half a gigabyte
        weights_from_first(denoiser)

    def rows(drawn: npt.NDArray[np.int64], coins: SecureNoise) -> tuple[Tensor, Tensor]:
        records = units.records(drawn, coins)
        stream = torch.Generator(run.device).manual_seed(int(coins.integers64(1)[0]) >> 1)
        x = (2 * pixels_of(data.private_images, records) - 1).to(run.device)  # (n, c, h, w)
        y = labels_of(data.private_labels, records).to(run.device)  # (n,)
        return _noise_rows(denoiser, config, x.repeat_interleave(K, 0), y.repeat_interleave(K), stream)

    def anchor_rows(stream: torch.Generator) -> tuple[Tensor, Tensor]:
        labels = torch.randint(len(facts.classes), (len(anchors),), generator=stream)
        return _noise_rows(denoiser, config, anchors, labels, stream)

    task = Task(denoiser, losses, rows, anchor_rows, units.count, K * units.rows_each, ema=config.ema)
    steps = planned_steps(run, config, task)
    if "steps" in state:
        steps.restore(state["steps"])
    steps.make(lambda: save_checkpoint(run.checkpoints, {"steps": steps.checkpoint_state()}))
    if steps.done == 0 and not has_start:
        raise NothingUseful
    steps.load_average()
    return denoiser.cpu().eval()


def work(plan: Plan, facts: PublicFacts) -> tuple[Piece, ...]:
    config = plan.config_of(DpDiffusionConfig)
    steps = steps_work(plan, facts, _ROW_SECONDS, config.multiplicity)
    if config.moments_fraction:
        rows = config.moments_batch * config.moments_steps
        free = (0.5 * _ROW_SECONDS * rows + _EXAMPLE_SECONDS * min(rows, _EXAMPLES_MAX)) * facts.size
        return warm_start_work(plan, facts), Piece(WARM_UP, config.moments_steps, free), steps
    if not config.central_images:
        return (steps,)
    central = poisson_event(plan.stage(CENTRAL))
    drawn = central.count * central.sampling_probability * facts.units_declared
    return (
        Piece(CENTRAL, central.count, 1e-5 * drawn * facts.size),
        Piece(WARM_UP, config.central_steps, 0.5 * _ROW_SECONDS * WARM_UP_BATCH * config.central_steps * facts.size),
        steps,
    )


def _shape(plan: Plan, facts: PublicFacts) -> EdmConfig:
    config = plan.config_of(DpDiffusionConfig)
    moments = config.moments(plan.budget_nano, facts)[0] if config.moments_fraction else None
    sizes = (len(facts.classes), facts.channels, facts.height, facts.width)
    return EdmConfig(
        *sizes,
        features=config.features,
        blocks=config.blocks,
        sampling_steps=config.sampling_steps,
        churn=config.churn,
        guidance=config.guidance,
        start_latent=0 if moments is None else moments.latent_size(facts),
        start_sigma=config.start_sigma or SIGMA_MAX,
        patch=config.patch,
        start_clusters=1 if moments is None else moments.clusters,
        start_texture=moments is not None and moments.texture,
    )


def _noise_rows(
    denoiser: EdmDenoiser, config: DpDiffusionConfig, images: Tensor, labels: Tensor, stream: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return training rows of images in [-1, 1] at the noise levels that the denoiser must learn."""
    shape = denoiser.config
    return noisy_rows(images, labels, shape.classes, config.label_drop, stream, shape.start_sigma)


def warm_up(
    denoiser: EdmDenoiser, config: DpDiffusionConfig, images: Tensor, labels: Tensor, progress: Progress
) -> None:
    """Train the denoiser in place on examples from releases, without privacy cost. Each step samples a batch."""
    device = next(denoiser.parameters()).device
    steps, batch = config.central_steps, WARM_UP_BATCH
    if config.moments_fraction:
        steps, batch = config.moments_steps, config.moments_batch
    optimiser = torch.optim.Adam(denoiser.parameters(), lr=config.central_learning_rate)
    picked = torch.Generator().manual_seed(config.initial_seed * 1_000_003 + _WARM_UP_SEED)
    levels = torch.Generator(device).manual_seed(config.initial_seed * 1_000_003 + _WARM_UP_SEED)
    for step in range(steps):
        some = torch.randint(len(images), (batch,), generator=picked).to(device)
        rows, targets = _noise_rows(denoiser, config, images[some].float() / 127.5 - 1, labels[some], levels)
        optimiser.zero_grad(set_to_none=True)
        with mixed_precision(device):
            outputs = denoiser(rows)
        losses(outputs.float(), targets).mean().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        progress(stage=WARM_UP, step=step + 1, steps=steps)
    optimiser.zero_grad(set_to_none=True)


def drawn_examples(denoiser: EdmDenoiser, config: DpDiffusionConfig, progress: Progress) -> Examples:
    """Draw equally many examples of each class from the released Gaussians, for `warm_up`.

    Drawing texture takes longer than a training step, so each example is used more than once.
    """
    first, device = denoiser.first, next(denoiser.parameters()).device
    steps = config.moments_steps
    count = min(steps * config.moments_batch, _EXAMPLES_MAX, _EXAMPLE_BYTES_MAX // first.config.pixels)
    stream = torch.Generator().manual_seed(config.initial_seed * 1_000_003 + _EXAMPLES_SEED)
    labels = (torch.arange(count) % first.config.classes).to(device)
    images = []
    for part in torch.split(labels, _EXAMPLES_AT_ONCE):
        progress(stage=WARM_UP, step=0, steps=steps)
        images.append((first.sample(part, stream) * 255).round().byte())
    return torch.cat(images), labels


def central_examples(run: Run, units: Units, released: Tensor | None) -> Examples:
    """Release the remaining central images (noisy mean images of each class). Return all of them at full size.

    Each is paid for and saved separately. After crashes there may be fewer images than planned; one is enough.
    """
    config, facts, event = run.plan.config_of(DpDiffusionConfig), run.facts, poisson_event(run.plan.stage(CENTRAL))
    release = CentralConfig(
        classes=len(facts.classes),
        channels=facts.channels,
        size=config.half_size(facts),
        sensitivity=config.central_bound(facts),
        event=event,
        expected_each=event.sampling_probability * facts.units_declared / len(facts.classes),
    )

    for image in range(0 if released is None else len(released), event.count):
        run.progress(stage=CENTRAL, step=image, steps=event.count)
        try:
            run.pay(replace(event, count=1), CENTRAL)
        except BudgetExceeded:
            if released is None:
                raise
            break
        streams = run.noise("central sampling", image), run.noise("central noise", image)
        fresh = run.on_first(functools.partial(noisy_central_images, release, run.data, units, *streams))[None]
        released = fresh if released is None else torch.cat([released.to(fresh), fresh])
        save_checkpoint(run.checkpoints, {"start": released})
    assert released is not None  # a plan with this stage has at least one image
    size = facts.height, facts.width
    images = functional.interpolate(released.flatten(0, 1), size=size, mode="bilinear", align_corners=False)
    labels = torch.arange(len(facts.classes)).repeat(len(released))
    return (images * 255).round().byte().to(run.device), labels.to(run.device)


@dataclass(frozen=True)
class CentralConfig:
    """Public parameters of one release of central images (Gong et al. 2025, DP-FETA).

    Attributes:
        size: height and width of a central image.
        sensitivity: C, the largest L2 norm of one unit's contribution. Each row of a unit adds an integer image of norm
            at most C / rows to one class's sum.
        expected_each: expected units of each class in a sample, if classes were equally frequent.
    """

    classes: int
    channels: int
    size: tuple[int, int]
    sensitivity: float
    event: PoissonGaussianEvent
    expected_each: float


def noisy_central_images(
    config: CentralConfig, data: TrainingData, units: Units, coins: SecureNoise, noise: SecureNoise
) -> Tensor:
    """Release one noisy mean image of each class, (classes, c, h, w) in [0, 1].

    The published code divides by the number of sampled records. Here the noisy sum is divided by a public constant, so
    nothing about that number is released.

    Privacy:
        Adjacency: add or remove one unit. A Poisson sample's clipped half-size images are added up by class: one unit
        moves the sum by at most C. Several rows of a unit are averaged. Charge `config.event` once before the call.
    """
    drawn = partition.poisson_sample(units.count, config.event.sampling_probability, coins)
    sums = torch.zeros(config.classes, config.channels, *config.size, dtype=torch.int64)
    (passes,) = partition.deal_passes(drawn, units.count, max(1, _PASS_ROWS // units.rows_each), 1, coins)
    for some in passes:
        sums += private_sums(config, data, units.records(some, coins), units.rows_each)
    noisy = integers.noisy_sum(
        sums, bound=config.sensitivity * _STEPS, noise_multiplier=config.event.noise_multiplier, noise=noise
    )
    return (noisy.double() / (config.expected_each * _STEPS)).clamp(0, 1).float()


def private_sums(config: CentralConfig, data: TrainingData, records: npt.NDArray[np.int64], rows_each: int) -> Tensor:
    """Return the sums (classes, c, h, w) int64 of clipped half-size images of some units' records. PRIVATE.

    The unit of the sums is 2^-18 of full brightness. Each of a unit's rows counts as 1 / `rows_each` of the unit, and
    is clipped accordingly.
    """
    with arithmetic.exact_arithmetic():
        images = functional.adaptive_avg_pool2d(pixels_of(data.private_images, records).double(), config.size)
    rows = (images.flatten(1) * (_STEPS / rows_each)).round().long().numpy()  # (records, d)
    clipped = clipping.clip_integer_rows(rows, config.sensitivity * (_STEPS / rows_each))
    sums = torch.zeros(config.classes, rows.shape[1], dtype=torch.int64)
    sums.index_add_(0, labels_of(data.private_labels, records), torch.from_numpy(clipped))
    return sums.reshape(config.classes, *images.shape[1:])
