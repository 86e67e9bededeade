"""DataLens' algorithm with small dense networks: it stays at chance.

`reproductions.papers.loop` has the networks with which it learns.

Algorithms 1 to 3 of Wang et al. 2021 (arXiv:2103.11109) on pixels: teachers and generator are small MLPs with Adam
(1e-3, betas 0.5 and 0.999), 10 teacher steps before the first vote and 2 in each iteration, m = 30, c = 1e-5,
thresholded votes, one generator step per iteration. k, sigma and beta are the paper's for Fashion-MNIST; the number of
images is what the exact accountant allows, 1.7 times the paper's at epsilon 1.
"""

from __future__ import annotations

import secrets

import torch
from torch import Tensor, nn

from benchmarks.budgets import NoLedger
from benchmarks.small_data import Folder
from models.shards import Shards
from models.teacher_ensemble import TeacherConfig
from privacy.accounting.calibration import affordable_releases
from privacy.accounting.filter import open_filter
from privacy.aggregation.topagg_config import TopAggConfig
from privacy.mechanisms.partition import record_units, shard_members, shard_of
from workers.recipes.datalens.teacher_stage import Release, TeacherStageConfig, run_teacher_stage, start_teacher_stage
from workers.recipes.interface import TrustedCurator

DELTA = 1e-5
TEACHERS = 4000
LATENT = 64
IMAGES_PER_ITERATION = 30
PAPER = {1.0: (200, 5000.0, 0.9), 10.0: (350, 900.0, 0.9)}  # epsilon: k, sigma, beta (section 5.3, Table 4)


class PixelStudent:
    """A conditional MLP generator of 28 x 28 images, trained on x_hat = x + gamma g_bar (line 18 of Algorithm 1)."""

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self.network = nn.Sequential(
            nn.Linear(LATENT + classes, 256),
            nn.ReLU(),
            nn.Linear(256, 256),
            nn.ReLU(),
            nn.Linear(256, 784),
            nn.Sigmoid(),
        )
        self._optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-3, betas=(0.5, 0.999))
        self._input = torch.zeros(0)

    def propose(self, labels: Tensor) -> Tensor:
        """Draw images (m, 784) for labels (m,)."""
        z = torch.rand(len(labels), LATENT) * 2 - 1
        self._input = torch.cat([z, nn.functional.one_hot(labels, self._classes).float()], dim=1)
        images: Tensor = self.network(self._input)
        return images

    def learn(self, releases: list[Release]) -> None:
        """Take one step on the mean squared distance to the last release's targets."""
        loss = (self.network(self._input) - releases[-1].released_targets).square().sum(dim=1).mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


def train_dense(folder: Folder, epsilon: float, seed: int) -> tuple[PixelStudent, int]:
    """Train on a folder of 28 x 28 grey images; returns the student and how many images its teachers voted on."""
    torch.manual_seed(seed)
    k, sigma, beta = PAPER[epsilon]
    classes = len(folder.classes)
    aggregation = TopAggConfig(k=k, c=1e-5, stddev=sigma, beta=beta, teachers=TEACHERS, dimension=784)
    affordable = affordable_releases(aggregation.event(1), open_filter(epsilon, DELTA).capacity_nano)
    cfg = TeacherStageConfig(
        aggregation=aggregation,
        teacher=TeacherConfig(inputs=784, classes=classes, hidden=32),
        images=IMAGES_PER_ITERATION,
        iterations=affordable // IMAGES_PER_ITERATION,
        gamma=1.0,
    )
    dealt = shard_of(record_units(folder.images, folder.labels), secrets.token_bytes(32), TEACHERS)
    rows = torch.from_numpy(folder.images.reshape(len(folder.images), -1))
    shards = Shards(rows, torch.from_numpy(folder.labels), shard_members(dealt, TEACHERS))
    student = PixelStudent(classes)
    means = TrustedCurator(budget=NoLedger(), secret=secrets.token_bytes(32))
    run_teacher_stage(cfg, shards, student, start_teacher_stage(cfg, means), means)
    return student, cfg.releases
