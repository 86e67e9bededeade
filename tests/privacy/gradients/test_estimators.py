"""TopAgg, GEP, B-GEP and freeze: each attains its sensitivity in a worst case, and says what its paper says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from privacy.errors import InvalidParameter
from privacy.gradients import estimator as estimator_module
from privacy.gradients.dpsgd import DpSgd
from privacy.gradients.estimator import Estimator, shapes_of
from privacy.gradients.freeze import random_mask, ranked_mask
from privacy.gradients.gep import Gep, basis_of_combinations, orthonormal_basis
from privacy.gradients.integers import Outer, squares
from privacy.gradients.per_sample import Traces, trace_gradients
from privacy.gradients.topagg import TopAggSgd, norm_top_k
from privacy.plans.private_steps import FreezeSchedule
from tests.privacy.gradients.test_dpsgd import noise
from tests.privacy.gradients.test_per_sample import losses

QUIET = {"noise_multiplier": 1e-6, "expected_batch": 1.0}


def network() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4))


def batch(n: int, seed: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 12, generator=generator), torch.randint(0, 4, (n,), generator=generator)


def anchors(model: nn.Module, stream: torch.Generator) -> Traces:
    inputs, _ = batch(40, seed=6)
    return trace_gradients(model, losses, inputs, torch.randint(4, (40,), generator=stream))


def dpsgd(model: nn.Module, **changes: float) -> DpSgd:
    return DpSgd(shapes_of(model), clip=0.3, **{**QUIET, **changes})


def topagg(model: nn.Module, **changes: float) -> TopAggSgd:
    return TopAggSgd(shapes_of(model), clip=0.3, **{"keep": 0.5, **QUIET, **changes})


def gep(model: nn.Module, **changes: float) -> Gep:
    return Gep(shapes_of(model), anchors, **{"basis_size": 6, "clip": 0.3, "clip_residual": 0.2, **QUIET, **changes})


def b_gep(model: nn.Module, **changes: float) -> Gep:
    return gep(model, **{"clip_residual": None, **changes})


def gep_of_widths(model: nn.Module, **changes: float) -> Gep:
    return gep(model, **{"groups": "widths", "iterations": 3, **changes})


ESTIMATORS = {"dpsgd": dpsgd, "topagg": topagg, "gep": gep, "b_gep": b_gep, "gep_of_widths": gep_of_widths}


def sums(estimator: Estimator, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """What a step has summed before its noise, as one vector of integers in the units of the sensitivity."""
    estimator.begin_step(model)
    if len(inputs):
        estimator.add(trace_gradients(model, losses, inputs, targets))
    found = torch.cat([value.flatten() for value in estimator.discard().values()])
    assert found.dtype == torch.int64
    return found.double() * (estimator.sensitivity / estimator.bound)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_a_worst_case_record_attains_the_sensitivity_and_none_exceeds_it(kind: str, frozen: bool) -> None:
    model = network()
    make: Callable[..., Estimator] = ESTIMATORS[kind]
    inputs, targets = batch(9)
    largest = 0.0
    for scale in (0.1, 1.0, 30.0):
        estimator = make(model)
        if frozen:
            estimator.freeze(random_mask(estimator.coordinates, 0.5, torch.Generator().manual_seed(0)))
        changed = inputs.clone()
        changed[-1] *= scale
        both = []
        for kept in (slice(None), slice(-1)):
            if isinstance(estimator, Gep):
                estimator._generator.manual_seed(0)  # neighbours are compared on one basis: it is public
            both.append(sums(estimator, model, changed[kept], targets[kept]))
        moved = float((both[0] - both[1]).norm())
        assert moved <= estimator.sensitivity
        largest = max(largest, moved / estimator.sensitivity)
    assert largest > (0.95 if kind == "topagg" else 0.995)  # NormTopK stops just below its bound


def test_blocks_of_records_are_all_rows_once_and_of_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one size, so that which kernels compute a record does not depend on its place."""
    model, (inputs, targets) = network(), batch(9)
    estimator = topagg(model)
    monkeypatch.setitem(estimator_module._BLOCK_NUMBERS, "cpu", 4 * estimator.coordinates)
    traces = trace_gradients(model, losses, inputs, targets)
    blocks = list(estimator.blocks(traces))
    assert [block.records for block in blocks] == [3, 3, 3]
    torch.testing.assert_close(torch.cat([estimator.rows(block) for block in blocks]), estimator.rows(traces))


def test_keeping_everything_is_plain_dp_sgd() -> None:
    model, (inputs, targets) = network(), batch(9)
    plain = sums(dpsgd(model), model, inputs, targets)
    torch.testing.assert_close(
        sums(topagg(model, keep=1.0), model, inputs, targets).norm(), plain.norm(), rtol=1e-3, atol=0
    )


def test_gep_with_wide_bounds_returns_the_gradient_and_b_gep_its_projection() -> None:
    model, (inputs, targets) = network(), batch(9)
    wide = {"clip": 30.0, "noise_multiplier": 1e-7}
    traces = trace_gradients(model, losses, inputs, targets)
    truth = torch.cat([share.flatten(1).sum(dim=0) for share in traces.shares().values()])

    def released(estimator: Estimator) -> torch.Tensor:
        estimator.begin_step(model)
        estimator.add(traces)
        return torch.cat([value.flatten() for value in estimator.privatise(noise()).values()]).to(truth)

    torch.testing.assert_close(released(gep(model, clip_residual=30.0, **wide)), truth, atol=1e-3, rtol=1e-3)
    few, many = released(b_gep(model, basis_size=4, **wide)), released(b_gep(model, basis_size=100, **wide))
    assert float((many - truth).norm()) < 0.3 * float((few - truth).norm())


@pytest.mark.parametrize("frozen", [False, True])
def test_what_a_basis_leaves_is_the_residual_whichever_way_it_was_found(frozen: bool) -> None:
    model, rows_of = network(), torch.Generator().manual_seed(3)
    estimator = gep(model, basis_size=50)
    if frozen:
        estimator.freeze(random_mask(estimator.coordinates, 0.5, torch.Generator().manual_seed(0)))
    estimator.begin_step(model)
    rows = torch.randn(4, estimator.active_coordinates, generator=rows_of)
    for basis in estimator.bases:
        own = rows[:, basis.index]
        left = own - basis.expand(basis.embed(rows))
        assert float((left @ basis.vectors[: basis.size, : basis.coordinates].mT).abs().max()) < 1e-3


def test_anchors_get_fresh_labels_for_every_basis_and_a_resumed_training_the_same_ones() -> None:
    model, seen = network(), list[torch.Tensor]()

    def watched(network: nn.Module, stream: torch.Generator) -> Traces:
        inputs, _ = batch(40, seed=6)
        seen.append(torch.randint(4, (40,), generator=stream))
        return trace_gradients(network, losses, inputs, seen[-1])

    def estimator() -> Gep:
        return Gep(shapes_of(model), watched, basis_size=6, clip=0.3, clip_residual=0.2, **QUIET)

    first = estimator()
    first.begin_step(model)
    kept = {name: value.clone() for name, value in first.state().items()}
    first.begin_step(model)
    assert not torch.equal(seen[0], seen[1])
    resumed = estimator()
    resumed.restore(kept)
    resumed.begin_step(model)
    assert torch.equal(seen[1], seen[2])


def test_groups_are_layers_or_all_layers_of_one_width() -> None:
    model = nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 8), nn.GroupNorm(2, 8), nn.Linear(8, 4))
    found = {}
    for groups in ("layers", "widths"):
        estimator = Gep(shapes_of(model), anchors, basis_size=9, clip=1.0, clip_residual=1.0, groups=groups, **QUIET)
        estimator.begin_step(model)
        found[groups] = [basis.coordinates for basis in estimator.bases]
    assert found == {"layers": [104, 72, 16, 36], "widths": [192, 36]}


def test_the_basis_depends_on_public_anchors_only() -> None:
    """Two trainings on different private batches have the same basis at the same released network."""
    model = network()
    first, second = gep(model), gep(model)
    for estimator, seed in ((first, 1), (second, 2)):
        estimator.begin_step(model)
        estimator.add(trace_gradients(model, losses, *batch(7, seed)))
    assert all(torch.equal(a.vectors, b.vectors) for a, b in zip(first.bases, second.bases, strict=True))


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_frozen_coordinates_get_neither_gradient_nor_noise_and_empty_samples_are_released(kind: str) -> None:
    model = network()
    estimator = ESTIMATORS[kind](model, noise_multiplier=1.0)
    mask = random_mask(estimator.coordinates, 0.7, torch.Generator().manual_seed(0))
    estimator.freeze(mask)
    estimator.begin_step(model)
    flat = torch.cat([value.flatten() for value in estimator.privatise(noise()).values()])
    assert bool((flat[~mask] == 0).all())
    assert bool((flat[mask] != 0).all())


def test_a_frozen_coordinate_does_not_count_towards_the_clip() -> None:
    model, (inputs, targets) = network(), batch(1)
    estimator = DpSgd(shapes_of(model), clip=0.01, **QUIET)
    estimator.freeze(random_mask(estimator.coordinates, 0.9, torch.Generator().manual_seed(1)))
    assert float(sums(estimator, model, inputs, targets).norm()) == pytest.approx(0.01, rel=2e-3)


def test_a_posterior_mask_drops_coordinates_of_what_was_clipped_whole() -> None:
    model, (inputs, targets) = network(), batch(6)
    whole = DpSgd(shapes_of(model), clip=0.01, **QUIET)
    posterior = DpSgd(shapes_of(model), clip=0.01, freeze_after_clipping=True, **QUIET)
    mask = random_mask(posterior.coordinates, 0.9, torch.Generator().manual_seed(1))
    posterior.freeze(mask)
    found = sums(posterior, model, inputs, targets)
    torch.testing.assert_close(found, sums(whole, model, inputs, targets)[mask])
    assert float(sums(posterior, model, inputs[:1], targets[:1]).norm()) < 0.6 * posterior.sensitivity
    posterior.begin_step(model)
    flat = torch.cat([value.flatten() for value in posterior.privatise(noise()).values()])
    assert bool((flat[~mask] == 0).all())


def test_masks_have_their_share_and_cooling_reaches_its_end() -> None:
    generator = torch.Generator().manual_seed(0)
    assert int(random_mask(1000, 0.7, generator).sum()) == 300
    assert not torch.equal(random_mask(1000, 0.7, generator), random_mask(1000, 0.7, generator))
    assert int(random_mask(1, 0.9, generator).sum()) == 1
    mean = torch.tensor([0.1, -3.0, 0.2, 2.0])
    assert ranked_mask(mean, 0.5).tolist() == [False, True, False, True]
    schedule = FreezeSchedule(0.8, cooling_steps=4)
    assert [schedule.at(step) for step in (0, 1, 2, 4, 9)] == pytest.approx([0, 0.2, 0.4, 0.8, 0.8])
    epochs = FreezeSchedule(0.8, cooling_steps=40, period=10)
    assert [epochs.at(step) for step in (9, 10, 19, 20, 40, 99)] == pytest.approx([0, 0.2, 0.2, 0.4, 0.8, 0.8])
    assert FreezeSchedule(0.8).at(0) == 0.8
    for bad in ({"rate": 1.0}, {"rate": -0.1}, {"rate": 0.5, "cooling_steps": -1}, {"rate": 0.5, "period": 0}):
        with pytest.raises(InvalidParameter):
            FreezeSchedule(**bad)


@pytest.mark.parametrize(
    ("rate", "epochs", "published"),
    [(0.7, 40, 0.65), (0.7, 80, 0.65), (0.6, 80, 0.7), (0.4, 200, 0.8), (0.7, 50, 0.65)],
)
def test_total_densities_are_those_of_the_paper(rate: float, epochs: int, published: float) -> None:
    """Table 2: the share is linear up to the last epoch."""
    steps = FreezeSchedule(rate, cooling_steps=50 * epochs, period=50)
    assert steps.density(50 * epochs) == pytest.approx(published, abs=0.01)


def test_misuse_is_refused_with_the_reason() -> None:
    model = network()
    with pytest.raises(InvalidParameter, match="keep"):
        topagg(model, keep=0.0)
    with pytest.raises(InvalidParameter, match="basis_size"):
        gep(model, basis_size=1)
    with pytest.raises(InvalidParameter, match="iterations"):
        gep(model, iterations=0)
    with pytest.raises(InvalidParameter, match="begin_step"):
        gep(model).add(trace_gradients(model, losses, *batch(2)))
    estimator = dpsgd(model)
    with pytest.raises(InvalidParameter, match="places"):
        estimator.freeze(torch.ones(3, dtype=torch.bool))
    estimator.add(trace_gradients(model, losses, *batch(2)))
    with pytest.raises(InvalidParameter, match="within a step"):
        estimator.freeze(None)
    assert gep(model).sensitivity == math.sqrt(2)
    assert gep(model, noise_multiplier=3.0).event(0.1).noise_multiplier == 3.0


# --- NormTopK ---


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
def test_norm_top_k_keeps_the_longest_prefix_of_the_sorted_squares(keep: float) -> None:
    generator = torch.Generator().manual_seed(7)
    rows = torch.randn(70, 300, generator=generator) * torch.logspace(-6, 3, 70)[:, None]
    rows[3] = 0.0
    rows[4, 1:] = 0.0  # one coordinate carries everything: it does not fit
    kept = norm_top_k(rows.clone(), keep, squares(rows))
    for row, found in zip(rows, kept, strict=True):
        square = row.square().double()
        order = torch.argsort(square, descending=True, stable=True)
        fits = square[order].cumsum(0) <= keep * square.sum()
        expected = torch.zeros_like(row)
        expected[order[fits]] = row[order[fits]]
        assert torch.equal(found != 0, expected != 0)
        assert torch.equal(found, expected)
    assert torch.equal(norm_top_k(rows, 1.0, squares(rows)), rows)


@pytest.mark.parametrize(
    "kind", ["normal", "heavy tails", "mostly zero", "few values", "all equal", "one is nearly all"]
)
@pytest.mark.parametrize("keep", [0.1, 0.8, 0.99])
def test_norm_top_k_of_long_rows_adds_up_and_leaves_out_what_sorting_does(kind: str, keep: float) -> None:
    """Too long to be sorted; the squared norms are added in float32, so the last that fits may be another."""
    d, generator = 40_000, torch.Generator().manual_seed(0)
    row = torch.randn(d, generator=generator)
    if kind == "heavy tails":
        row *= torch.randn(d, generator=generator).mul(2).exp()
    if kind == "mostly zero":
        row *= torch.rand(d, generator=generator) < 0.1
    if kind == "few values":
        row = row.mul(3).round()
    if kind == "all equal":
        row = torch.ones(d)
    if kind == "one is nearly all":
        row[77] = 1e4
    kept = norm_top_k(row[None].clone(), keep, squares(row[None]))[0]
    mass = float(row.double().square().sum())
    assert float(kept.double().square().sum()) <= keep * mass * (1 + 2.0**-20)
    assert torch.equal(kept[kept != 0], row[kept != 0])
    left_out = row[kept == 0].abs()
    smallest = float(kept[kept != 0].abs().min()) if bool((kept != 0).any()) else math.inf
    assert smallest > float(left_out.max())
    next_ones = row.double().square()[row.abs() == left_out.max()].sum()
    assert float(kept.double().square().sum() + next_ones) > keep * mass * (1 - 2.0**-20)


# --- a basis of the anchors' directions ---


def of_rows(anchors: torch.Tensor, *given: Any) -> torch.Tensor:
    """The second way to a basis, from anchors that come in two parts."""
    return basis_of_combinations([anchors[:, :70].reshape(len(anchors), 7, 10), anchors[:, 70:]], *given)


@pytest.mark.parametrize("find", [orthonormal_basis, of_rows])
def test_the_basis_is_orthonormal_and_finds_what_the_anchors_span(find: Callable[..., torch.Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    directions = torch.linalg.qr(torch.randn(200, 3, generator=generator))[0]
    found = find(torch.randn(50, 3, generator=generator) @ directions.mT, 3, generator)
    torch.testing.assert_close(found @ found.mT, torch.eye(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.mT @ (found @ directions), directions, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("find", "at_first"), [(orthonormal_basis, 0.85), (of_rows, 0.93)])
def test_more_power_iterations_find_the_strongest_directions_better(
    find: Callable[..., torch.Tensor], at_first: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    anchors = torch.randn(60, 200, generator=generator) * torch.linspace(2.0, 0.0, 200)
    best = torch.linalg.svd(anchors).S[:5].square().sum()
    once, often = (
        (anchors @ find(anchors, 5, torch.Generator().manual_seed(1), count).mT).square().sum() / best
        for count in (1, 8)
    )
    assert once < at_first
    assert 0.95 < often <= 1 + 1e-5


@pytest.mark.parametrize("shrink", [1.0, 1e-15, 0.0])
def test_a_basis_of_outer_products_is_that_of_the_gradients_written_out(shrink: float) -> None:
    """Of the same random start; as many vectors as the anchors span, and then some that are zero or orthonormal too."""
    generator = torch.Generator().manual_seed(0)
    outer = Outer(shrink * torch.randn(30, 8, generator=generator), torch.randn(30, 12, generator=generator))
    bias = shrink * torch.randn(30, 8, generator=generator)
    written = (outer.left[:, :, None] * outer.right[:, None, :]).flatten(1)
    for size in (5, 30):
        one, other = (
            basis_of_combinations([weight, bias], size, torch.Generator().manual_seed(1)) for weight in (outer, written)
        )
        assert one.shape == (size, 104)
        torch.testing.assert_close(one.mT @ one, other.mT @ other, atol=1e-3, rtol=0)
        lengths = torch.eye(size) if shrink else torch.zeros(size, size)
        torch.testing.assert_close(one @ one.mT, lengths, atol=1e-3, rtol=0)
