"""Samples are dealt into passes of one size, and a unit's group depends on its own coin alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from privacy.mechanisms.noise import SecureNoise
from privacy.mechanisms.sampling import NOBODY, deal_passes


def dealt(drawn: npt.NDArray[np.int64], units: int, size: int, groups: int) -> list[list[npt.NDArray[np.int64]]]:
    return deal_passes(drawn, units, size, groups, SecureNoise.derive(b"a fixed secret for these tests", "groups"))


@pytest.mark.parametrize("groups", [1, 7])
@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 1000])
def test_every_unit_has_one_place_and_passes_have_one_size(count: int, groups: int) -> None:
    drawn = np.sort(np.random.default_rng(0).permutation(5000)[:count])
    passes = [units for group in dealt(drawn, 5000, 32, groups) for units in group]
    assert all(units.shape == (32,) for units in passes)
    placed = np.concatenate([np.zeros(0, dtype=np.int64), *passes])
    assert np.sort(placed[placed != NOBODY]).tolist() == drawn.tolist()
    assert np.count_nonzero(placed == NOBODY) < 32 * groups


def test_one_unit_more_changes_its_own_group_alone() -> None:
    drawn = np.arange(0, 3000)
    before, after = dealt(drawn, 3001, 32, 9), dealt(np.arange(0, 3001), 3001, 32, 9)
    changed = [
        group for group in range(9) if np.concatenate(before[group]).tolist() != np.concatenate(after[group]).tolist()
    ]
    assert len(changed) == 1
    sizes = [np.count_nonzero(np.concatenate(group) != NOBODY) for group in before]
    assert 250 < min(sizes) <= max(sizes) < 420
