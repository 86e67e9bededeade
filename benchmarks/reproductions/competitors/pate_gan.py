"""PATE-GAN (Jordon, Yoon & van der Schaar 2019): a discriminator that learns from teachers' noisy votes alone.

1. Teachers learn on disjoint shards to tell records from generated images.
2. For each of a batch of generated images every teacher votes whether it is real; the number of those that say so is
   released with noise.
3. A student discriminator learns from these images and the noisy majority; it has never seen a record.
4. The generator learns from the student.

Adjacency add/remove of one record, which lies in one shard: one teacher may change its mind on every image. An image's
vote is one integer, to which a teacher adds 0 or 1, and 0 where it has no record: it changes by 1 at most, and does so
where a teacher turns from "generated" to "real". **Sensitivity 1 an image; each image that is labelled is a release.**

Where this differs from the paper: noise is discrete Gaussian, not Laplace on both counts (for thousands of releases at
delta 1e-5 it is much the cheaper, and it is exact); the loss does not depend on how much the teachers agree; teachers
are small stacked networks with one hidden layer; classes are declared, and all networks know them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.reproductions.competitors.players import BETAS, Player, Teachers, logistic, unit_pixels
from benchmarks.small_data import Folder, facts_of
from models.discriminator import Discriminator
from models.portable.dcgan import DcganGenerator
from models.portable.layers import with_planes
from models.teacher_ensemble import TeacherEnsemble
from privacy.accounting.calibration import stddev_for
from privacy.accounting.events import GaussianEvent
from privacy.mechanisms.noise import SecureNoise
from workers.recipes.interface import Budget, TrustedCurator

STAGE = "labelled images"
SENSITIVITY = 1


@dataclass(frozen=True)
class PateGan:
    """Sizes of a training.

    Attributes:
        teachers: k.
        iterations: steps of the generator.
        batch: images in each step of any network.
        teacher_steps: updates of the teachers in each iteration.
        student_steps: of the student; each labels a batch of its own.
        hidden: units of a teacher.
        features: DC-GAN's size, of student and generator.
        latent: numbers in a latent.
        rate: of Adam in both.
    """

    teachers: int
    iterations: int
    batch: int = 64
    teacher_steps: int = 1
    student_steps: int = 1
    hidden: int = 16
    features: int = 16
    latent: int = 64
    rate: float = 1e-3

    @property
    def releases(self) -> int:
        """Images that are labelled in all."""
        return self.iterations * self.student_steps * self.batch


def votes_for_real(ensemble: TeacherEnsemble, active: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """Count the teachers that take an image for real, (m,) int64. PRIVATE.

    Args:
        ensemble: N teachers.
        active: (N,) which of them have a record.
        images: (m, pixels), public.
        labels: (m,) their classes.
    """
    counts = torch.zeros(len(images), dtype=torch.int64)
    for block, logits in ensemble.image_logits(images, labels):
        counts += ((logits > 0) & active[block, None]).sum(dim=0)
    return counts


def privatise_votes(counts: Tensor, stddev: float, budget: Budget, noise: SecureNoise) -> Tensor:
    """Pay for the noisy counts of a batch, one release for each image, and return them (m,) int64."""
    budget.charge(GaussianEvent.of_discrete_noise(SENSITIVITY, stddev, len(counts)), STAGE)
    return counts + torch.from_numpy(noise.discrete_gaussian(len(counts), stddev))


def train_pate_gan(
    folder: Folder, config: PateGan, budget_nano: int, means: TrustedCurator, seed: int
) -> DcganGenerator:
    """Train within a budget, all of which the labelled images take.

    Args:
        folder: private records and their classes.
        config: public sizes.
        budget_nano: what all labels may cost.
        means: pay, and give secret randomness.
        seed: public.
    """
    stddev = stddev_for(SENSITIVITY, budget_nano, config.releases, discrete=True)
    player = Player(facts_of(folder), config.latent, config.features, config.rate, seed)
    student = Discriminator(player.shape, seed)
    optimiser = torch.optim.Adam(student.parameters(), lr=config.rate, betas=BETAS)
    teachers = Teachers(folder.images, folder.labels, len(folder.classes), config.teachers, config.hidden, means)
    for iteration in range(config.iterations):
        images, labels = player.draw(config.batch)
        teachers.learn(unit_pixels(images.detach()), labels, config.teacher_steps)
        for step in range(config.student_steps):
            images, labels = (part.detach() for part in player.draw(config.batch))
            counts = votes_for_real(teachers.ensemble, teachers.active, unit_pixels(images), labels)
            released = privatise_votes(counts, stddev, means.budget, means.noise("votes", iteration, step))
            says_real = (2 * released > config.teachers).float()
            logits = student(with_planes(images, labels))
            optimiser.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(logits, says_real).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        images, labels = player.draw(config.batch)
        player.descend(logistic(student(with_planes(images, labels)), 1))
    return player.generator.eval()
