"""What a loss threshold tells about membership: a classifier without privacy beside private ones.

Run `python -m benchmarks.membership_inference --json FILE`. Fashion-MNIST, public as it is: a few thousand training
images are the members, as many test images are not, and a small CNN learns the members until it knows them by heart.
Private rows are trained by the dp_classifier recipe as the service trains it, with a fresh secret. The attack is
`workers.evaluation.membership`.
"""

from __future__ import annotations

import math
import secrets
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.budgets import NoLedger
from benchmarks.fetching import fetched_fashion_mnist
from benchmarks.results import Results, Row, machine, parser_of, show
from models.private_classifier import ClassifierConfig, PrivateClassifier
from privacy.accounting.filter import open_filter
from privacy.plans.plan import PublicFacts
from privacy.plans.registry import build_plan
from workers.evaluation.membership import MembershipInference, attack_by_loss
from workers.recipes.interface import Run, TrainingData
from workers.recipes.registry import TRAINERS

DELTA = 1e-5
MEMBERS = 3000
EPOCHS = 80
SEEDS = (0, 1, 2)
EPSILONS: tuple[float | None, ...] = (None, 8.0, 1.0)  # None: without privacy
PRIVATE: dict[str, Any] = {"preset": "cnn", "expected_batch": 500, "epochs": 20.0, "learning_rate": 2.0}
CLASSES = tuple(str(label) for label in range(10))
Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


def sides(seed: int, members: int) -> tuple[tuple[Images, Labels], tuple[Images, Labels]]:
    """Draw members from the training images and as many non-members from the test images."""
    stream = np.random.default_rng(seed)
    found = []
    for split in ("train", "test"):
        images, labels = fetched_fashion_mnist(split)[:2]
        chosen = stream.choice(len(images), min(members, len(images)), replace=False)
        found.append((images[chosen], labels[chosen]))
    return found[0], found[1]


def train_openly(images: Images, labels: Labels, seed: int, epochs: int) -> PrivateClassifier:
    """Train the same network without privacy, until it knows the members by heart."""
    torch.manual_seed(seed)
    model = PrivateClassifier(ClassifierConfig("cnn", CLASSES, 1, 28, 28), seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    inputs, targets = pixels(images), torch.from_numpy(labels)
    for _ in range(epochs):
        for part in torch.randperm(len(inputs)).split(100):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(inputs[part]), targets[part]).backward()
            optimiser.step()
    return model.eval()


def train_privately(images: Images, labels: Labels, epsilon: float, seed: int) -> PrivateClassifier:
    """Train it by the recipe, with the noise that the budget asks for."""
    facts = PublicFacts(CLASSES, 28, 28, 1, len(images), "record")
    account = open_filter(epsilon, DELTA)
    plan = build_plan("dp_classifier", PRIVATE | {"initial_seed": seed}, account, account.capacity_nano, facts)
    data = TrainingData(images, labels, CLASSES)
    run = Run(plan=plan, facts=facts, data=data, budget=NoLedger(), secret=secrets.token_bytes(32))
    model = TRAINERS["dp_classifier"](run)
    assert isinstance(model, PrivateClassifier)
    return model


def pixels(images: Images) -> torch.Tensor:
    """(n, 28, 28) bytes to (n, 1, 28, 28) in [0, 1]."""
    return torch.from_numpy(images).float()[:, None] / 255


@torch.no_grad()
def losses(model: PrivateClassifier, images: Images, labels: Labels) -> torch.Tensor:
    """Cross-entropy (n,) of every record."""
    logits = torch.cat([model(part) for part in pixels(images).split(500)])
    return nn.functional.cross_entropy(logits, torch.from_numpy(labels), reduction="none")


def attack(epsilon: float | None, seed: int, members: int, epochs: int) -> tuple[MembershipInference, float, float]:
    """Train one classifier and attack it; also returns its accuracy on members and on the others."""
    inside, outside = sides(seed, members)
    model = train_openly(*inside, seed, epochs) if epsilon is None else train_privately(*inside, epsilon, seed)
    found = attack_by_loss(
        losses(model, *inside), losses(model, *outside), generator=torch.Generator().manual_seed(seed)
    )
    right = []
    for images, labels in (inside, outside):
        with torch.no_grad():
            guesses = torch.cat([model(part).argmax(dim=1) for part in pixels(images).split(500)])
        right.append(float((guesses == torch.from_numpy(labels)).double().mean()))
    return found, right[0], right[1]


def row_of(epsilon: float | None, seeds: Sequence[int], members: int, epochs: int) -> Row:
    """Average over seeds. The standard error is that of the mean of the seeds' attacks."""
    runs = [attack(epsilon, seed, members, epochs) for seed in seeds]
    rates = [found.success_rate for found, _, _ in runs]
    within = math.sqrt(sum(found.standard_error**2 for found, _, _ in runs)) / len(runs)
    across = statistics.stdev(rates) / math.sqrt(len(rates)) if len(rates) > 1 else 0.0
    return {
        "epsilon": epsilon,
        "success_rate": statistics.mean(rates),
        "standard_error": max(within, across),
        "success_rates": rates,
        "accuracy_members": statistics.mean(run[1] for run in runs),
        "accuracy_others": statistics.mean(run[2] for run in runs),
    }


def main() -> None:
    """Train, attack, print a table and, where asked, keep it as JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--members", type=int, default=MEMBERS)
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of the training without privacy")
    options = parser.parse_args()
    facts = {"members": options.members, "epochs_without_privacy": options.epochs, "private": PRIVATE, "delta": DELTA}
    results = Results(options.json, data="Fashion-MNIST", seeds=list(SEEDS), **facts, **machine())
    for epsilon in EPSILONS:
        if results.find(epsilon=epsilon) is None:
            results.put(row_of(epsilon, SEEDS, options.members, options.epochs))
    columns = ("epsilon", "success_rate:.3f", "standard_error:.3f", "accuracy_members:.3f", "accuracy_others:.3f")
    show(results.rows, columns)


if __name__ == "__main__":
    main()
