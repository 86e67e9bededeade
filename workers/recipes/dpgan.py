"""DPGAN: a GAN whose discriminator learns by private steps (Xie et al. 2018, arXiv:1802.06739).

It is trained as in Bie, Kamath & Zhang 2023 (arXiv:2302.02936). Noise slows only the discriminator, so the
discriminator takes several steps per generator step. If it falls behind, as measured on generated, public images, it
takes more steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.portable.dcgan import DcganConfig, DcganGenerator
from models.portable.layers import groups_of, initialise, plane, with_planes
from privacy.mechanisms.noise import SecureNoise
from privacy.plans.dpgan import DpGanConfig
from privacy.plans.plan import Plan, PublicFacts
from workers.recipes.interface import NothingUseful, Piece, Run, load_checkpoint, save_checkpoint
from workers.recipes.private_steps import Task, average_decay, planned_steps, steps_work
from workers.recipes.records import Units, anchor_images, labels_of, pixels_of

REAL, GENERATED = 1.0, 0.0
_BETAS = (0.5, 0.999)  # betas of Adam in both networks (Radford et al. 2016)
_ACCURACY_DECAY = 0.99  # decay of the discriminator's average accuracy (Bie et al. 2023)
_ROW_SECONDS = 3e-3  # of a step
_BLOCK = 1024  # images generated at once
_OF_DISCRIMINATOR, _OF_GENERATOR = 0, 1  # purposes of latents from the public seed
_PROGRESS = ("average", "discriminator_steps", "accuracy", "waited", "steps", "steady")  # state of the generator's side


def train(run: Run) -> DcganGenerator:
    """Train and return the released generator.

    Privacy:
        Adjacency: add or remove one unit. Each discriminator step privatises one sum over a Poisson sample, paid for
        before the sample is drawn. Generated images join that sum as a public summand. The generator, its average and
        the number of discriminator steps are functions of the released discriminators and of public randomness alone.
    """
    config, facts, data = run.plan.config_of(DpGanConfig), run.facts, run.data
    anchors = 2 * anchor_images(config, facts, data) - 1
    units = Units(facts, config, data)
    shape = DcganConfig(len(facts.classes), facts.channels, facts.height, facts.width, config.latent, config.features)
    discriminator = Discriminator(shape, config.initial_seed).to(run.device)
    generator_side = GeneratorSide(config, DcganGenerator(shape, config.initial_seed).to(run.device), discriminator)

    def rows(drawn: npt.NDArray[np.int64], coins: SecureNoise) -> tuple[Tensor, Tensor]:
        records = units.records(drawn, coins)
        images = with_planes(2 * pixels_of(data.private_images, records) - 1, labels_of(data.private_labels, records))
        return images, torch.full((len(images),), REAL)

    def public_rows() -> tuple[Tensor, Tensor]:
        generated = max(1, round(steps.estimator.expected_batch)) * units.rows_each
        images = generator_side.images(generated, steps.done)
        return images, torch.full((generated,), GENERATED)

    def anchor_rows(stream: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return public images, with random labels, from which GEP computes its basis. Mark half as generated."""
        labels = torch.randint(len(facts.classes), (len(anchors),), generator=stream)
        return with_planes(anchors, labels), torch.randint(2, (len(anchors),), generator=stream).float()

    task = Task(
        discriminator,
        losses,
        rows,
        anchor_rows,
        units.count,
        units.rows_each,
        betas=_BETAS,
        public_rows=public_rows,
        after_step=generator_side.after_step,
    )
    steps = planned_steps(run, config, task)
    saved = load_checkpoint(run.checkpoints, device=run.device)
    if saved:
        steps.restore(saved["discriminator"])
        generator_side.restore(saved["generator"])

    steps.make(
        lambda: save_checkpoint(
            run.checkpoints, {"discriminator": steps.checkpoint_state(), "generator": generator_side.state()}
        )
    )
    if steps.done == 0:
        raise NothingUseful
    generator_side.generator.load_state_dict(generator_side.average)
    return generator_side.generator.cpu().eval()


def work(plan: Plan, facts: PublicFacts) -> tuple[Piece, ...]:
    return (steps_work(plan, facts, _ROW_SECONDS, 2),)


def losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the logistic loss of every row; targets are REAL or GENERATED."""
    return functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")


class Discriminator(nn.Module):
    """Maps labelled images to the logit that they are real. Initial weights come from a public seed.

    It is the counterpart of `models.portable.dcgan`. It uses GroupNorm, because no layer may mix private records. Input
    is one tensor (n, c + 1, h, w): an image in [-1, 1] and a plane with its label (`with_planes`). The logit is a
    projection (Miyato & Koyama 2018, arXiv:1802.05637): a linear function of the image's features, plus the dot product
    of the features and the label's embedding.
    """

    def __init__(self, config: DcganConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        sizes = config.sizes()
        top = len(sizes) - 1
        self.halvings = nn.ModuleList(
            nn.Conv2d(config.depth(halvings - 1), config.depth(halvings), 5, stride=2, padding=2)
            for halvings in range(1, top + 1)
        )
        self.norms = nn.ModuleList(
            nn.GroupNorm(groups_of(config.depth(halvings)), config.depth(halvings)) for halvings in range(2, top + 1)
        )
        numbers = config.depth(top) * sizes[top][0] * sizes[top][1]
        self.of_image = nn.Linear(numbers, 1)
        self.of_label = nn.Embedding(config.classes, numbers)
        initialise(self, seed)
        with torch.no_grad():
            self.of_label.weight *= numbers**-0.5  # as large as a linear layer's weights

    def forward(self, packed: Tensor) -> Tensor:
        """Map images with a plane of labels, (n, c + 1, h, w), to logits (n,)."""
        labels = plane(packed, self.config.channels).long()
        x = functional.leaky_relu(self.halvings[0](packed[:, : self.config.channels]), 0.2)
        for halve, norm in zip(self.halvings[1:], self.norms, strict=True):
            x = functional.leaky_relu(norm(halve(x)), 0.2)
        features = x.flatten(1)  # (n, numbers)
        logits: Tensor = self.of_image(features)[:, 0] + (features * self.of_label(labels)).sum(dim=1)
        return logits


class GeneratorSide:
    """The generator, its optimiser, its moving average, and the schedule of its steps. All public.

    It has no access to private records or secrets: its randomness comes from the public seed.
    """

    def __init__(self, config: DpGanConfig, generator: DcganGenerator, discriminator: Discriminator) -> None:
        self.config, self.generator, self.discriminator = config, generator, discriminator
        self.optimiser = torch.optim.Adam(generator.parameters(), lr=config.generator_learning_rate, betas=_BETAS)
        self.average = {name: value.detach().clone() for name, value in generator.state_dict().items()}
        self.discriminator_steps = config.discriminator_steps  # current n_D
        self.accuracy: float | None = None  # average share of generated images that the discriminator recognises
        self.waited = 0  # discriminator steps since the last generator step
        self.steps = 0  # generator steps
        self.steady = 0  # generator steps since n_D last changed

    def images(self, count: int, step: int) -> Tensor:
        """Return generated images with a plane of labels, (count, c + 1, h, w), for a discriminator step."""
        latents, labels = self._latents(count, _OF_DISCRIMINATOR, step)
        with torch.no_grad():
            blocks = zip(torch.split(latents, _BLOCK), torch.split(labels, _BLOCK), strict=True)
            return with_planes(torch.cat([self.generator(*block) for block in blocks]), labels)

    def after_step(self) -> None:
        """Count one discriminator step. After every `discriminator_steps` of them, take a generator step."""
        self.waited += 1
        if self.waited >= self.discriminator_steps:
            self.waited = 0
            self._adapt(self._step())

    def _step(self) -> float:
        latents, labels = self._latents(self.config.generator_batch, _OF_GENERATOR, self.steps)
        logits = self.discriminator(with_planes(self.generator(latents, labels), labels))
        parameters = list(self.generator.parameters())
        gradients = torch.autograd.grad(losses(logits, torch.full_like(logits, REAL)).mean(), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.steps += 1
        decay = average_decay(self.config.ema, self.steps)
        for name, value in self.generator.state_dict().items():
            self.average[name].lerp_(value, 1 - decay)
        return float((logits < 0).float().mean())

    def _adapt(self, recognised: float) -> None:
        cfg = self.config
        last = recognised if self.accuracy is None else self.accuracy
        self.accuracy = _ACCURACY_DECAY * last + (1 - _ACCURACY_DECAY) * recognised
        self.steady += 1
        if self.steady >= cfg.patience and self.accuracy < cfg.accuracy_floor:
            self.discriminator_steps = min(2 * self.discriminator_steps, cfg.discriminator_steps_max)
            self.steady = 0

    def _latents(self, count: int, whose: int, step: int) -> tuple[Tensor, Tensor]:
        """Return latents (count, latent) and labels (count,), uniform over the classes, from the public seed."""
        stream = torch.Generator().manual_seed((self.config.initial_seed * 1_000_003 + step) * 2 + whose)
        device = self.generator.first.weight.device
        latents = torch.randn(count, self.config.latent, generator=stream)
        labels = torch.randint(self.generator.config.classes, (count,), generator=stream)
        return latents.to(device), labels.to(device)

    def state(self) -> dict[str, Any]:
        return {
            "weights": self.generator.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            **{name: getattr(self, name) for name in _PROGRESS},
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.generator.load_state_dict(saved["weights"])
        self.optimiser.load_state_dict(saved["optimiser"])
        for name in _PROGRESS:
            setattr(self, name, saved[name])
