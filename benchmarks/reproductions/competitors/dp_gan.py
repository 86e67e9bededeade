"""DP-GAN as its paper has it (Xie et al. 2018, arXiv:1802.06739): a Wasserstein GAN whose critic learns with noise.

The critic takes several private steps for each of the generator's; its weights are cut to a box after each. A step is
that of the service's recipe `dpgan`: a Poisson sample of the records, each record's gradient clipped in L2 norm, exact
sums, discrete Gaussian noise, paid for before the sample is drawn (`workers.recipes.private_steps`; proofs are there).

Adjacency add/remove of one record, which joins each step's sum with probability q, and with one vector of norm C at
most: **sensitivity C, a Poisson-sampled Gaussian event a step.**

Where this differs from the paper: its accountant is the moments accountant and its bound on a gradient is what follows
from the box of weights; here each gradient is clipped, which needs no assumption on the network. Its rule is RMSProp,
here Adam without momentum, the same but for its correction of the first steps. Where our recipe `dpgan` differs from
both: logistic loss, no box, momentum, an averaged generator, and as many steps of the discriminator as it needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.reproductions.competitors.players import Player
from benchmarks.small_data import Folder, channels_first, facts_of
from models.discriminator import Discriminator
from models.portable.dcgan import DcganGenerator
from models.portable.layers import with_planes
from models.public_patterns import public_patterns
from privacy.accounting.filter import Filter
from privacy.mechanisms.noise import SecureNoise
from privacy.plans.dpgan.plan import DpGanConfig
from privacy.plans.plan import Plan
from privacy.plans.registry import build_plan
from workers.recipes.interface import NothingUseful, Run, TrainingData, TrustedCurator
from workers.recipes.private_steps import Task, planned_steps

_BETAS = (0.0, 0.99)  # of Adam: RMSProp's average
_REAL, _GENERATED = 1.0, -1.0


@dataclass(frozen=True)
class DpGan:
    """Sizes of a training.

    Attributes:
        steps: of the critic.
        critic_steps: for each of the generator's.
        batch: records expected in a step, and generated images in it.
        features: DC-GAN's size.
        latent: numbers in a latent.
        rate: of both networks.
        box: largest magnitude of a critic's weight.
        clip: C.
    """

    steps: int
    critic_steps: int = 5
    batch: int = 64
    features: int = 8
    latent: int = 64
    rate: float = 5e-4
    box: float = 0.05
    clip: float = 1.0


def plan_dp_gan(folder: Folder, config: DpGan, privacy_filter: Filter, budget_nano: int, seed: int) -> Plan:
    """Return the recipe's plan of so many private steps."""
    options = {
        "expected_batch": config.batch,
        "epochs": (config.steps - 0.5) * config.batch / len(folder.labels),
        "features": config.features,
        "latent": config.latent,
        "learning_rate": config.rate,
        "clip": config.clip,
        "initial_seed": seed,
    }
    return build_plan("dpgan", options, privacy_filter, budget_nano, facts_of(folder))


def wasserstein(scores: Tensor, targets: Tensor) -> Tensor:
    """Every row's part of the critic's loss: real rows should score high, generated ones low."""
    return -scores * targets


def train_dp_gan(
    folder: Folder, config: DpGan, privacy_filter: Filter, budget_nano: int, means: TrustedCurator, seed: int
) -> DcganGenerator:
    """Train within a budget.

    Args:
        folder: private records.
        config: public sizes.
        privacy_filter: of the account.
        budget_nano: what all steps may cost.
        means: pay, and give secret randomness.
        seed: public.

    Raises:
        NothingUseful: not one step could be paid.
    """
    plan, facts = plan_dp_gan(folder, config, privacy_filter, budget_nano, seed), facts_of(folder)
    player = Player(facts, config.latent, config.features, config.rate, seed)
    critic = Discriminator(player.shape, seed)
    images, labels = channels_first(folder.images), torch.from_numpy(folder.labels)

    def rows(drawn: npt.NDArray[np.int64], _coins: SecureNoise) -> tuple[Tensor, Tensor]:
        chosen = torch.from_numpy(np.maximum(drawn, 0))  # any row where there is nobody
        real = with_planes(images[chosen].float() / 127.5 - 1, labels[chosen])
        return real, torch.full((len(real),), _REAL)

    def public_rows() -> tuple[Tensor, Tensor]:
        generated, asked = player.draw(config.batch)
        return with_planes(generated.detach(), asked), torch.full((config.batch,), _GENERATED)

    def anchor_rows(stream: torch.Generator) -> tuple[Tensor, Tensor]:
        shown = 2 * public_patterns(config.batch, facts.channels, facts.height, facts.width, 1) - 1
        asked = torch.randint(len(facts.classes), (config.batch,), generator=stream)
        return with_planes(shown, asked), torch.full((config.batch,), _REAL)

    def after_step(done: int) -> None:
        with torch.no_grad():
            for weight in critic.parameters():
                weight.clamp_(-config.box, config.box)
        if done % config.critic_steps == 0:
            drawn, asked = player.draw(config.batch)
            player.descend(-critic(with_planes(drawn, asked)).mean())

    task = Task(
        critic,
        wasserstein,
        rows,
        anchor_rows,
        len(folder.labels),
        betas=_BETAS,
        public_rows=public_rows,
        after_step=after_step,
    )
    data = TrainingData(folder.images, folder.labels, facts.classes)
    run = Run(plan=plan, facts=facts, data=data, budget=means.budget, secret=means.secret)
    if planned_steps(run, plan.config_of(DpGanConfig), task).make().step == 0:
        raise NothingUseful
    return player.generator.eval()
