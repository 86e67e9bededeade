"""What a unit adds is a vector of integers that is never longer than the bound, and sums of them are exact."""

import pytest
import torch
from torch import nn

from privacy.errors import InvalidParameter
from privacy.gradients.estimator import Estimator
from privacy.gradients.integers import Outer, Sums, exact_sums, grid_bits, squares, whole, whole_factors
from privacy.gradients.per_sample import trace_gradients
from tests.privacy.gradients.cases import make

HALF_FROZEN = {"frozen": {}, "posterior": {"freeze_after_clipping": True}}  # DP-SGD with these options
KINDS = ["dpsgd", *HALF_FROZEN, "topagg", "gep", "b_gep", "rgp"]


def inner_product(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs * targets).sum(dim=1)


def network() -> nn.Module:
    torch.manual_seed(0)
    head = (nn.Flatten(), nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, 4))
    return nn.Sequential(nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 3, 3, padding=1), nn.GroupNorm(1, 3), *head)


def estimator_of(kind: str, model: nn.Module, clip: float) -> Estimator:
    if kind not in HALF_FROZEN:
        return make(kind, model, clip=clip, **({"clip_residual": clip / 2} if kind == "gep" else {}))
    estimator = make("dpsgd", model, clip=clip, **HALF_FROZEN[kind])
    estimator.freeze(torch.arange(estimator.coordinates) % 2 == 0)
    return estimator


def square(sums: Sums) -> int:
    return sum(int(step) ** 2 for value in sums.values() for step in value.flatten().tolist())


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("clip", [1e-6, 1.0, 10.0])
@pytest.mark.parametrize("kind", KINDS)
def test_a_units_integers_are_never_longer_than_the_bound_and_almost_as_long(kind, clip, repeats) -> None:
    model, stream = network(), torch.Generator().manual_seed(1)
    estimator = estimator_of(kind, model, clip)
    bound, longest = int(estimator.bound), 0.0
    estimator.begin_step(model)
    for length in (1e-20, 1e-6, 1.0, 1e6, 1e20):  # of gradients
        images = torch.randn(repeats, 12, generator=stream)
        targets = torch.randn(repeats, 4, generator=stream) * length
        estimator.add(trace_gradients(model, inner_product, images, targets, repeats=repeats))
        sums = estimator.discard()
        assert all(value.dtype == torch.int64 for value in sums.values())
        assert square(sums) <= bound**2
        longest = max(longest, square(sums) ** 0.5 / bound)
    assert longest > (0.5 if kind == "posterior" else 0.9)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_is_not_finite_adds_nothing_and_changes_nobody(kind: str, value: float) -> None:
    model, images, targets = network(), torch.randn(4, 12), torch.ones(4, 4)
    estimator = estimator_of(kind, model, 1.0)
    estimator.begin_step(model)
    broken = images.clone()
    broken[2, 5] = value
    estimator.add(trace_gradients(model, inner_product, broken, targets))
    found = estimator.discard()
    absent = torch.tensor([True, True, False, True])
    estimator.add(trace_gradients(model, inner_product, images, targets, present=absent))
    expected = estimator.discard()
    assert square(found) > 0
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_many_rows_of_a_unit_that_cancel_are_clipped_by_what_is_left() -> None:
    """A norm from Gram matrices in float32 would be that of the rounding: two rows a thousand times as long."""
    model = nn.Linear(64, 64)
    for seed in range(5):
        stream = torch.Generator().manual_seed(seed)
        image, target = torch.randn(1, 64, generator=stream), torch.randn(1, 64, generator=stream)
        images = torch.cat([image, image + 1e-5 * torch.randn(1, 64, generator=stream)])
        traces = trace_gradients(model, inner_product, images, torch.cat([target, -target]), repeats=2)
        estimator = make("dpsgd", model, clip=1e-6)
        estimator.add(traces)
        assert 0.999 * estimator.bound < square(estimator.discard()) ** 0.5 <= estimator.bound


def test_six_million_coordinates_are_measured_as_they_are() -> None:
    """Adding their squares in one go in float32 loses 0.4% of the norm, and the unit would add as much more."""
    coordinates = 5_900_000
    model = nn.Linear(1, coordinates, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    estimator = make("dpsgd", model, clip=1.0)
    estimator.freeze(torch.ones(coordinates, dtype=torch.bool))  # gradients are written out
    estimator.add(trace_gradients(model, inner_product, torch.ones(1, 1), torch.full((1, coordinates), 0.1)))
    (sums,) = estimator.discard().values()
    exact = coordinates * int(sums[0]) ** 2
    assert bool((sums == sums[0]).all())
    assert 0.999 * estimator.bound < exact**0.5 <= estimator.bound


def test_squares_are_as_good_as_the_proof_needs() -> None:
    for width in (1, 511, 512, 513, 5000, 3_000_000):
        for rows in (torch.full((2, width), 0.1), torch.randn(2, width), torch.logspace(-8, 8, width).expand(2, -1)):
            exact = rows.double().square().sum(dim=1)
            torch.testing.assert_close(squares(rows), exact, rtol=2.0**-14, atol=0)
    outer = Outer(torch.randn(3, 700), torch.randn(3, 900))
    written = outer.left[:, :, None].double() * outer.right[:, None, :].double()
    torch.testing.assert_close(squares(outer), written.square().sum(dim=(1, 2)), rtol=2.0**-13, atol=0)


def test_what_is_too_long_is_left_out_whatever_made_it_so() -> None:
    bound, rows = 1000.0, torch.tensor([[600.0, 800.0], [600.0, 801.0], [3.0, 4.0]])
    assert exact_sums([({"": rows}, None)], bound)[""].tolist() == [3, 4]  # at the bound there is no room to be sure
    assert exact_sums([({"": rows * 0.999}, None)], bound)[""].tolist() != [3, 4]
    assert exact_sums([({"": rows}, torch.tensor([True, True, False]))], bound)[""].tolist() == [0, 0]
    together = {"a": rows[2:] * 150, "b": rows[2:] * 150}  # each 750 long, together 1060
    assert [value.tolist() for value in exact_sums([(together, None)], bound).values()] == [[0, 0], [0, 0]]


def test_sums_are_exact_where_float32_is_not() -> None:
    rows = torch.tensor([[2.0**30 - 64], [1.0]]).expand(2, 1).repeat(50, 1)
    outer = Outer(torch.tensor([[2.0**15 - 1], [1.0]]).double().repeat(50, 1), torch.ones(100, 1).double() * 2**14)
    found = exact_sums([({"a": rows, "b": outer}, None)] * 3, 2.0**31)
    assert found["a"].item() == 3 * (50 * (2**30 - 64) + 50)
    assert found["b"].item() == 3 * 50 * 2**29
    with pytest.raises(InvalidParameter, match="added exactly"):
        exact_sums([({"a": torch.ones(2**8, 1)}, None)] * 4, 2.0**44)


def test_factors_of_a_gradient_keep_its_direction_and_never_exceed_its_length() -> None:
    outer = Outer(torch.rand(6, 64) * torch.logspace(-12, 3, 6)[:, None], torch.rand(6, 1568) + 0.5)
    exact = outer.left[:, :, None].double() * outer.right[:, None, :].double()
    lengths = exact.flatten(1).norm(dim=1)
    left, right = whole_factors(outer, 2.0**30 / lengths, (squares(outer.left), squares(outer.right)))
    made = left[:, :, None] * right[:, None, :]
    assert bool((made == made.round()).all())
    assert bool((made.flatten(1).norm(dim=1) <= 2.0**30).all())
    assert float((made / 2.0**30 - exact / lengths[:, None, None]).flatten(1).norm(dim=1).max()) < 2e-3


def test_rows_are_rounded_in_place() -> None:
    rows = torch.tensor([[0.4, 1.6], [2.5, -0.6]])
    assert whole(rows, torch.tensor([1.0, 2.0], dtype=torch.float64)).tolist() == [[0.0, 2.0], [5.0, -1.0]]
    assert rows.tolist() == [[0.0, 2.0], [5.0, -1.0]]


def test_the_grid_is_as_fine_as_its_noise_can_be_drawn() -> None:
    assert [grid_bits(multiplier) for multiplier in (1e-6, 1.0, 2.0**14, 2.0**15, 2.0**20)] == [30, 30, 30, 29, 24]
    with pytest.raises(InvalidParameter, match="noise"):
        grid_bits(2.0**40)
