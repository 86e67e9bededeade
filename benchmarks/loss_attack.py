"""Membership inference by a threshold on the loss: how often an attacker recognises records that were trained on.

The attack of Section 5.3 of Yu et al. 2021 (arXiv:2106.09352), after Sablayrolles et al. 2019: a record counts as a
member if its loss is below a threshold. Half of the records choose the threshold, the other half measures. Losses of
private records are private, so use it with public data alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class MembershipInference:
    """The success of the attack on records that did not choose its threshold.

    Attributes:
        success_rate: share of right answers, in [0, 1]; members and non-members count the same, so chance is 1/2.
        standard_error: of the success rate, from the number of records that measured it.
        threshold: of the loss, below which a record is called a member.
    """

    success_rate: float
    standard_error: float
    threshold: float


def attack_by_loss(
    member_losses: torch.Tensor, non_member_losses: torch.Tensor, *, generator: torch.Generator
) -> MembershipInference:
    """Attack a model by the losses of records that it was and was not trained on.

    Args:
        member_losses: (n,) of PUBLIC records that were trained on.
        non_member_losses: (m,) of PUBLIC records that were not; the larger side is cut at random to the smaller.
        generator: divides the records into the half that chooses and the half that measures.

    Raises:
        ValueError: a side has fewer than 4 records, or a loss is not a number.
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
