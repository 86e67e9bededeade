"""Units are sampled by secret coins and dealt into passes of one size; a unit's group depends on its own coin alone."""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import privacy
from privacy.errors import InvalidParameter
from privacy.mechanisms.sampling import NOBODY, deal_passes, poisson_sample
from tests.privacy.gradients.cases import noise


def dealt(drawn: npt.NDArray[np.int64], units: int, size: int, groups: int) -> list[list[npt.NDArray[np.int64]]]:
    return deal_passes(drawn, units, size, groups, noise("groups"))


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


def test_poisson_sampling_is_independent_coins_with_the_stated_chance() -> None:
    n, probability, rounds = 400, 0.03, 2000
    stream = noise("poisson")
    drawn = np.zeros((rounds, n), dtype=bool)
    for row in drawn:
        row[poisson_sample(n, probability, stream)] = True
    sizes = drawn.sum(axis=1)
    expected_sd = math.sqrt(n * probability * (1 - probability))
    assert abs(sizes.mean() - n * probability) < 6 * expected_sd / math.sqrt(rounds)
    assert 0.85 < sizes.std() / expected_sd < 1.15  # shuffled batches of one size would have 0
    assert (sizes == 0).any() or n * probability > 8
    each = drawn.mean(axis=0)
    assert np.abs(each - probability).max() < 6 * math.sqrt(probability * (1 - probability) / rounds)
    together = (drawn[:, ::2] & drawn[:, 1::2]).mean()
    assert together == pytest.approx(probability**2, rel=0.15)
    assert poisson_sample(5, 1.0, stream).tolist() == [0, 1, 2, 3, 4]
    assert poisson_sample(0, 0.5, stream).tolist() == []
    for bad in (0.0, 1.5, math.nan):
        with pytest.raises(InvalidParameter):
            poisson_sample(5, bad, stream)


def test_no_noise_comes_from_torchs_own_generator() -> None:
    """The only draws that are not secret name the public generator that they come from."""
    folder = Path(privacy.__file__).parent
    for path in [*folder.glob("gradients/*.py"), folder / "mechanisms" / "sampling.py"]:
        for line in path.read_text().splitlines():
            draws = any(word in line for word in ("torch.rand", "np.random", "torch.normal", "normal_("))
            assert not draws or "generator=generator" in line, (path, line)
