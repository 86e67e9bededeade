"""The audit's tables: a wrong verdict fails the command, a fault that stays hidden in a training does not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.audited_gradients import dpsgd
from benchmarks.audited_releases import audited_central_images, audited_mechanisms
from benchmarks.broken_gradients import BROKEN_GRADIENTS
from benchmarks.broken_mechanisms import BROKEN
from benchmarks.canary_audit import audit_mechanism, faults, wrong
from benchmarks.gradient_games import audited_gradients
from benchmarks.one_run_audit import audit_step, audit_vote_sum, one_run_row
from privacy.auditing.one_run import flip_coins


@pytest.mark.parametrize("flagged", [False, True])
@pytest.mark.parametrize("must_be_flagged", [False, True, None])
def test_verdicts_are_judged(flagged, must_be_flagged):
    surprise = must_be_flagged is not None and flagged is not must_be_flagged
    assert bool(wrong([{"flagged": flagged, "must_be_flagged": must_be_flagged}])) is surprise


def game(variant: str, scores: np.ndarray, included: np.ndarray, certain: bool) -> dict[str, Any]:
    return one_run_row("x", variant, (1.0, 0.27), scores, included, certain)


def test_coins_that_are_given_away_are_flagged_and_hidden_ones_are_not():
    included = flip_coins(1000, 0)
    given_away = game("no noise", included.astype(np.float64), included, certain=True)
    assert (given_away["flagged"], given_away["must_be_flagged"]) == (True, True)
    assert given_away["measured_epsilon"] > 3
    assert given_away["guesses"] == [[20, 20], [50, 50], [100, 100], [250, 250]]
    hidden = game("correct", np.zeros(1000), included, certain=True)
    assert (hidden["measured_epsilon"], hidden["measured_mu"], hidden["flagged"]) == (0.0, 0.0, False)
    assert hidden["must_be_flagged"] is False
    assert game("no noise", np.zeros(1000), included, certain=False)["must_be_flagged"] is None
    row = one_run_row("x", "no noise", (1.0, None), included.astype(np.float64), included, certain=True)
    assert (row["claimed_mu"], row["measured_mu"], row["flagged"]) == (None, None, True)


def test_every_mechanism_is_audited_with_every_fault_it_can_have():
    everything = [*audited_mechanisms(1.5), audited_central_images(1.5), *audited_gradients(1.5)]
    assert len({audited.name for audited in everything}) == len(everything)
    assert {fault for audited in everything for fault in faults(audited)} == {*BROKEN, *BROKEN_GRADIENTS} - {"correct"}


def test_every_place_that_draws_noise_is_audited():
    """A new one belongs into an audit, and then into this list."""
    audited = {
        "privacy/mechanisms/topagg.py",  # votes on images, latents and moments
        "privacy/gradients/integers.py",  # every gradient estimator
        "workers/recipes/class_histogram.py",
        "workers/recipes/select_public.py",
        "workers/recipes/released_sums.py",  # of the warm start
    }
    root = Path(__file__).resolve().parents[2]
    drawing = {
        str(path.relative_to(root))
        for folder in ("privacy", "workers", "service", "models")
        for path in (root / folder).rglob("*.py")
        if ".discrete_gaussian(" in path.read_text(encoding="utf-8")
    }
    assert drawing == audited


def test_rows_of_both_parts_say_what_was_claimed_and_measured():
    votes = audited_mechanisms(1.5)[0]
    measured = audit_mechanism(votes, "no noise", 1)
    assert (measured["errors"], measured["draws"], measured["flagged"]) == ([0, 0], 1200, True)
    played = audit_vote_sum(1.0, "no noise", canaries=200)
    assert played["claimed_mu"] == pytest.approx(0.2681, abs=1e-4)
    assert played["flagged"]
    stepped = audit_step(dpsgd, 200, 0.25, "no noise")
    assert (stepped["claimed_mu"], stepped["canaries"], stepped["flagged"]) == (0.25, 200, True)
