"""Every estimator attains its sensitivity in a worst case; TopAgg, GEP and freeze do what their papers say."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from privacy.errors import InvalidParameter
from privacy.gradients import estimator as estimator_module
from privacy.gradients.build import random_mask, ranked_mask
from privacy.gradients.estimator import shapes_of
from privacy.gradients.gep import Gep, basis_of_combinations, orthonormal_basis
from privacy.gradients.integers import Outer, squares
from privacy.gradients.per_sample import Traces, trace_gradients
from privacy.gradients.topagg import norm_top_k
from privacy.plans.private_steps import FreezeSchedule
from tests.privacy.gradients import cases

RGP = ({}, {"random": True}, {"rank": 8, "rank_fraction": 0.3, "iterations": 2})
WORST_CASES = [
    *((cases.perceptron, cases.batch, kind, {}, frozen) for kind in cases.FREEZING for frozen in (False, True)),
    (cases.convolutional, cases.images, "dpsgd", {}, False),
    *((cases.convolutional, cases.images, "rgp", options, False) for options in RGP),
    *(
        (network, cases.sequences, "rgp", options, False)
        for network in (cases.Tokens, cases.TiedTokens)
        for options in RGP[:2]
    ),
]


@pytest.mark.parametrize(("network", "records", "kind", "options", "frozen"), WORST_CASES)
def test_a_worst_case_record_attains_the_sensitivity_and_none_exceeds_it(network, records, kind, options, frozen):
    torch.manual_seed(5)
    model, (inputs, targets) = network(), records(9)
    largest = 0.0
    for scale in (0.01, 1, 30):
        changed, both = inputs.clone(), []
        changed[-1] *= scale if changed.is_floating_point() else 1
        for kept in (slice(None), slice(-1)):
            estimator = cases.make(kind, model, clip=0.05, **options)  # neighbours share its public randomness
            if frozen:
                cases.freeze_some(estimator)
            both.append(cases.sums(estimator, model, changed[kept], targets[kept]))
        moved = float((both[0] - both[1]).norm())
        assert moved <= estimator.sensitivity
        largest = max(largest, moved / estimator.sensitivity)
    assert largest > (0.95 if kind == "topagg" else 0.995)  # NormTopK stops just below its bound


def test_blocks_of_records_are_all_rows_once_and_of_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one size, so that which kernels compute a record does not depend on its place."""
    model, (inputs, targets) = cases.perceptron(), cases.batch(9)
    estimator = cases.make("topagg", model)
    monkeypatch.setitem(estimator_module._BLOCK_NUMBERS, "cpu", 4 * estimator.coordinates)
    traces = trace_gradients(model, cases.losses, inputs, targets)
    blocks = list(estimator.blocks(traces))
    assert [block.records for block in blocks] == [3, 3, 3]
    torch.testing.assert_close(torch.cat([estimator.rows(block) for block in blocks]), estimator.rows(traces))


def test_keeping_everything_is_plain_dp_sgd() -> None:
    model, (inputs, targets) = cases.perceptron(), cases.batch(9)
    kept, plain = cases.make("topagg", model, keep=1.0), cases.make("dpsgd", model)
    found, expected = (cases.sums(estimator, model, inputs, targets).norm() for estimator in (kept, plain))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)


def test_gep_with_wide_bounds_returns_the_gradient_and_b_gep_its_projection() -> None:
    model, (inputs, targets) = cases.perceptron(), cases.batch(9)
    wide = {"clip": 30.0, "noise_multiplier": 1e-7}
    traces = trace_gradients(model, cases.losses, inputs, targets)
    truth = torch.cat([share.flatten(1).sum(dim=0) for share in traces.shares().values()])

    def found(kind: str, **options: float) -> torch.Tensor:
        estimator = cases.make(kind, model, **wide, **options)
        estimator.begin_step(model)
        estimator.add(traces)
        return cases.released(estimator)

    torch.testing.assert_close(found("gep", clip_residual=30.0), truth, atol=1e-3, rtol=1e-3)
    few, many = found("b_gep", basis_size=4), found("b_gep", basis_size=100)
    assert float((many - truth).norm()) < 0.3 * float((few - truth).norm())


@pytest.mark.parametrize("frozen", [False, True])
def test_what_a_basis_leaves_is_the_residual_whichever_way_it_was_found(frozen: bool) -> None:
    model, rows_of = cases.perceptron(), torch.Generator().manual_seed(3)
    estimator = cases.make("gep", model, basis_size=50)
    if frozen:
        cases.freeze_some(estimator)
    estimator.begin_step(model)
    rows = torch.randn(4, estimator.active_coordinates, generator=rows_of)
    for basis in estimator.bases:
        own = rows[:, basis.index]
        left = own - basis.expand(basis.embed(rows))
        assert float((left @ basis.vectors[: basis.size, : basis.coordinates].mT).abs().max()) < 1e-3


def test_anchors_get_fresh_labels_for_every_basis_and_a_resumed_training_the_same_ones() -> None:
    model, seen = cases.perceptron(), list[torch.Tensor]()

    def watched(network: nn.Module, stream: torch.Generator) -> Traces:
        inputs, _ = cases.batch(40, seed=6)
        seen.append(torch.randint(4, (40,), generator=stream))
        return trace_gradients(network, cases.losses, inputs, seen[-1])

    def estimator() -> Gep:
        common = {"noise_multiplier": 1.0, "expected_batch": 1.0}
        return Gep(shapes_of(model), watched, basis_size=6, clip=0.3, clip_residual=0.2, **common)

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
        estimator = cases.make("gep", model, basis_size=9, groups=groups)
        estimator.begin_step(model)
        found[groups] = [basis.coordinates for basis in estimator.bases]
    assert found == {"layers": [104, 72, 16, 36], "widths": [192, 36]}


@pytest.mark.parametrize(("kind", "public"), [("gep", "bases"), ("gep_of_widths", "bases"), ("rgp", "_carriers")])
def test_bases_and_carriers_depend_on_public_anchors_and_released_weights_only(kind: str, public: str) -> None:
    """Two trainings on different private batches have the same ones at the same released network."""
    model, found = cases.perceptron(), []
    for seed in (1, 2):
        estimator = cases.make(kind, model)
        estimator.begin_step(model)
        estimator.add(trace_gradients(model, cases.losses, *cases.batch(7, seed)))
        bases = getattr(estimator, public)
        found.append([basis.vectors for basis in bases] if public == "bases" else [*itertools.chain(*bases.values())])
    assert len(found[0]) > 1
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("kind", cases.ESTIMATORS)
def test_frozen_coordinates_get_neither_gradient_nor_noise_and_empty_samples_are_released(kind: str) -> None:
    model = cases.perceptron()
    estimator = cases.make(kind, model, noise_multiplier=1.0)
    every = torch.ones(estimator.coordinates, dtype=torch.bool)
    mask = cases.freeze_some(estimator, 0.7) if kind in cases.FREEZING else every
    estimator.begin_step(model)
    found = estimator.privatise(cases.noise())
    assert {name: value.shape for name, value in found.items()} == shapes_of(model)
    flat = torch.cat([value.flatten() for value in found.values()])
    assert bool((flat[~mask] == 0).all())
    assert bool((flat[mask] != 0).all())


def test_a_posterior_mask_drops_coordinates_of_what_was_clipped_whole() -> None:
    model, (inputs, targets) = cases.perceptron(), cases.batch(6)
    whole, posterior = (cases.make("dpsgd", model, clip=0.01, freeze_after_clipping=after) for after in (False, True))
    mask = cases.freeze_some(posterior, 0.9, seed=1)
    found = cases.sums(posterior, model, inputs, targets)
    torch.testing.assert_close(found, cases.sums(whole, model, inputs, targets)[mask])
    assert float(cases.sums(posterior, model, inputs[:1], targets[:1]).norm()) < 0.6 * posterior.sensitivity
    posterior.begin_step(model)
    assert bool((cases.released(posterior)[~mask] == 0).all())


def test_masks_have_their_share_and_cooling_reaches_its_end() -> None:
    generator = torch.Generator().manual_seed(0)
    assert int(random_mask(1000, 0.7, generator).sum()) == 300
    assert not torch.equal(random_mask(1000, 0.7, generator), random_mask(1000, 0.7, generator))
    assert int(random_mask(1, 0.9, generator).sum()) == 1
    assert ranked_mask(torch.tensor([0.1, -3.0, 0.2, 2.0]), 0.5).tolist() == [False, True, False, True]
    schedule = FreezeSchedule(0.8, cooling_steps=4)
    assert [schedule.at(step) for step in (0, 1, 2, 4, 9)] == pytest.approx([0, 0.2, 0.4, 0.8, 0.8])
    epochs = FreezeSchedule(0.8, cooling_steps=40, period=10)
    assert [epochs.at(step) for step in (9, 10, 19, 20, 40, 99)] == pytest.approx([0, 0.2, 0.2, 0.4, 0.8, 0.8])
    assert FreezeSchedule(0.8).at(0) == 0.8


@pytest.mark.parametrize(
    ("rate", "epochs", "published"),
    [(0.7, 40, 0.65), (0.7, 80, 0.65), (0.6, 80, 0.7), (0.4, 200, 0.8), (0.7, 50, 0.65)],
)
def test_total_densities_are_those_of_the_paper(rate: float, epochs: int, published: float) -> None:
    """Table 2: the share is linear up to the last epoch."""
    steps = FreezeSchedule(rate, cooling_steps=50 * epochs, period=50)
    assert steps.density(50 * epochs) == pytest.approx(published, abs=0.01)


def test_misuse_is_refused_with_the_reason() -> None:
    model = cases.perceptron()
    for kind, name, value in (("topagg", "keep", 0.0), ("gep", "basis_size", 1)):
        with pytest.raises(InvalidParameter, match=name):
            cases.make(kind, model, **{name: value})
    traces = trace_gradients(model, cases.losses, *cases.batch(2))
    for kind in ("gep", "rgp"):
        with pytest.raises(InvalidParameter, match="begin_step"):
            cases.make(kind, model).add(traces)
    estimator = cases.make("dpsgd", model)
    with pytest.raises(InvalidParameter, match="booleans"):
        estimator.freeze(torch.ones(3, dtype=torch.bool))
    estimator.add(traces)
    with pytest.raises(InvalidParameter, match="within a step"):
        estimator.freeze(None)
    assert cases.make("gep", model).sensitivity == math.sqrt(2)


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
    row = {
        "normal": row,
        "heavy tails": row * torch.randn(d, generator=generator).mul(2).exp(),
        "mostly zero": row * (torch.rand(d, generator=generator) < 0.1),
        "few values": row.mul(3).round(),
        "all equal": torch.ones(d),
        "one is nearly all": torch.where(torch.arange(d) == 77, 1e4, row),
    }[kind]
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
def test_more_power_iterations_find_the_strongest_directions_better(find, at_first):
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
