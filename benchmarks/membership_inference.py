"""How well does a loss threshold tell members from others: a classifier without privacy, and private ones.

Run `python -m benchmarks.membership_inference --json FILE`. Of Fashion-MNIST, a few thousand training images are the
members and as many test images are not; a small CNN learns the members by heart. Private rows are trained by the recipe
`dp_classifier` with a fresh secret.

The attack is that of Section 5.3 of Yu et al. 2021 (arXiv:2106.09352), after Sablayrolles et al. 2019: a record counts
as a member if its loss is below a threshold, which half of the records choose; the other half measures. Losses of
private records are private, so use it with public data alone.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.results import Results, Row, machine, parser_of, show
from benchmarks.runs import DELTA, accuracy, plan_of, train_plan
from benchmarks.small_data import Folder, channels_first, fashion
from models.private_classifier import ClassifierConfig, PrivateClassifier

MEMBERS = 3000
EPOCHS = 80
SEEDS = (0, 1, 2)
EPSILONS: tuple[float | None, ...] = (None, 8.0, 1.0)  # None: without privacy
PRIVATE: dict[str, Any] = {"preset": "cnn", "expected_batch": 500, "epochs": 20.0, "learning_rate": 2.0}


@dataclasses.dataclass(frozen=True)
class MembershipInference:
    """The success of the attack on records that did not choose its threshold; 1/2 is chance."""

    success_rate: float
    standard_error: float  # from the number of records that measured it
    threshold: float  # of the loss, below which a record is called a member


def attack_by_loss(
    member_losses: torch.Tensor, non_member_losses: torch.Tensor, *, generator: torch.Generator
) -> MembershipInference:
    """Attack a model by the losses (n,) and (m,) of PUBLIC records that it was and was not trained on.

    The larger side is cut at random to the smaller. The generator also divides the records into the half that chooses
    the threshold and the half that measures.
    """
    size = min(len(member_losses), len(non_member_losses)) // 2
    if size < 2:
        raise ValueError("the attack needs at least 4 members and 4 non-members")
    sides = []
    for losses in (member_losses, non_member_losses):
        if bool(losses.isnan().any()):
            raise ValueError("a loss is not a number")
        order = torch.randperm(len(losses), generator=generator)[: 2 * size]
        sides.append(torch.split(losses.detach().double().cpu()[order], size))
    (choosing_in, measuring_in), (choosing_out, measuring_out) = sides
    threshold = _best_threshold(choosing_in, choosing_out)
    hits_in = float((measuring_in < threshold).double().mean())
    hits_out = float((measuring_out >= threshold).double().mean())
    variance = (hits_in * (1 - hits_in) + hits_out * (1 - hits_out)) / (4 * (size - 1))
    return MembershipInference((hits_in + hits_out) / 2, math.sqrt(variance), threshold)


def _best_threshold(members: torch.Tensor, others: torch.Tensor) -> float:
    """Return the loss that separates two samples of one size with the fewest errors when members lie below it."""
    candidates = torch.cat([members, others, torch.tensor([math.inf], dtype=members.dtype)]).sort().values
    below_in = torch.searchsorted(members.sort().values, candidates)  # strictly below each candidate
    below_out = torch.searchsorted(others.sort().values, candidates)
    return float(candidates[(below_in - below_out).argmax()])


def sides(seed: int, members: int) -> Folder:
    """Draw members from the training images, and as many non-members from the test images."""
    stream, whole = np.random.default_rng(seed), fashion()
    own, other = (
        stream.choice(len(labels), min(members, len(labels)), replace=False)
        for labels in (whole.labels, whole.test_labels)
    )
    return Folder(
        whole.images[own], whole.labels[own], whole.test_images[other], whole.test_labels[other], whole.classes
    )


def train_openly(folder: Folder, seed: int, epochs: int) -> PrivateClassifier:
    """Train the network of the private rows without privacy, until it knows the members by heart."""
    torch.manual_seed(seed)
    model = PrivateClassifier(ClassifierConfig("cnn", folder.classes, 1, *folder.images.shape[1:]), seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    inputs, targets = channels_first(folder.images).float() / 255, torch.from_numpy(folder.labels)
    for _ in range(epochs):
        for part in torch.randperm(len(inputs)).split(100):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(inputs[part]), targets[part]).backward()
            optimiser.step()
    return model.eval()


@torch.no_grad()
def losses(model: PrivateClassifier, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> torch.Tensor:
    """Return the cross-entropy (n,) of every record."""
    logits = torch.cat([model(part.float() / 255) for part in channels_first(images).split(500)])
    return nn.functional.cross_entropy(logits, torch.from_numpy(labels), reduction="none")


def attack(epsilon: float | None, seed: int, members: int, epochs: int) -> Row:
    """Train one classifier and attack it; return the attack and the accuracy on members and on the others."""
    folder = sides(seed, members)
    if epsilon is None:
        model = train_openly(folder, seed, epochs)
    else:
        model = train_plan(folder, plan_of(folder, "dp_classifier", PRIVATE | {"initial_seed": seed}, epsilon))
    inside = losses(model, folder.images, folder.labels)
    outside = losses(model, folder.test_images, folder.test_labels)
    found = attack_by_loss(inside, outside, generator=torch.Generator().manual_seed(seed))
    members_alone = dataclasses.replace(folder, test_images=folder.images, test_labels=folder.labels)
    return {"attack": found, "members": accuracy(model, members_alone), "others": accuracy(model, folder)}


def row_of(epsilon: float | None, seeds: Sequence[int], members: int, epochs: int) -> Row:
    """Average over seeds; the standard error is that of the mean."""
    runs = [attack(epsilon, seed, members, epochs) for seed in seeds]
    rates = [run["attack"].success_rate for run in runs]
    within = math.sqrt(sum(run["attack"].standard_error ** 2 for run in runs)) / len(runs)
    across = statistics.stdev(rates) / math.sqrt(len(rates)) if len(rates) > 1 else 0.0
    return {
        "epsilon": epsilon,
        "success_rate": statistics.mean(rates),
        "standard_error": max(within, across),
        "success_rates": rates,
        "accuracy_members": statistics.mean(run["members"] for run in runs),
        "accuracy_others": statistics.mean(run["others"] for run in runs),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--members", type=int, default=MEMBERS)
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of the training without privacy")
    options = parser.parse_args(arguments)
    facts = {"members": options.members, "epochs_without_privacy": options.epochs, "private": PRIVATE, "delta": DELTA}
    results = Results(options.json, data="Fashion-MNIST", seeds=list(SEEDS), **facts, **machine())
    for epsilon in EPSILONS:
        if results.find(epsilon=epsilon) is None:
            results.put(row_of(epsilon, SEEDS, options.members, options.epochs))
    columns = ("epsilon", "success_rate:.3f", "standard_error:.3f", "accuracy_members:.3f", "accuracy_others:.3f")
    show(results.rows, columns)


if __name__ == "__main__":
    main()
