"""A basis of the anchors' directions: found from gradients written out, and from their inner products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from privacy.gradients.gep import basis_of_combinations, orthonormal_basis
from privacy.gradients.integers import Outer


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
