"""Texture of private images: the generator's numbers, and no bit of a record's that depends on another record."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.texture import FILTER_UNIT, filters, texture
from workers.recipes.texture import texture_coefficients


def pictures(n: int, channels: int = 1) -> np.ndarray:
    shape = (n, 16, 20) if channels == 1 else (n, 16, 20, channels)
    return np.random.default_rng(n).integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize("channels", [1, 3])
def test_they_are_the_numbers_of_the_generators_texture(channels: int) -> None:
    images = pictures(70, channels)
    pixels = torch.from_numpy(images).double() / 255
    luma = pixels.mean(3) if channels == 3 else pixels
    found = texture_coefficients(images)
    np.testing.assert_allclose(found, texture(luma[:, None]).flatten(1).numpy(), atol=5e-3)  # moduli are rounded
    assert np.abs(found).max() < 4


def test_black_white_and_finest_checks_stay_on_the_table() -> None:
    checks = np.indices((16, 20)).sum(axis=0) % 2 * 255
    images = np.stack([np.zeros((16, 20)), np.full((16, 20), 255), checks, checks[::-1]]).astype(np.uint8)
    assert np.isfinite(texture_coefficients(images)).all()


@pytest.mark.parametrize("place", [0, 1, 63, 64, 69])
def test_a_record_more_changes_no_bit_of_the_others(place: int) -> None:
    """Adding a record moves the others to other places of other blocks."""
    images = pictures(70)
    fewer = texture_coefficients(np.delete(images, place, axis=0))
    assert np.array_equal(fewer, np.delete(texture_coefficients(images), place, axis=0))


def test_no_sum_of_products_is_rounded() -> None:
    """The largest sums that pixels and filters can make are integers below 2^53."""
    fine, coarse = filters()
    for bank, largest in ((fine, 3 * 255), (coarse, 4 * 3 * 255)):
        assert float(bank.abs().sum((1, 2, 3)).max()) * largest < 2**53
    assert FILTER_UNIT == 2.0**-12


def test_no_records_have_no_texture() -> None:
    assert texture_coefficients(np.zeros((0, 8, 8), dtype=np.uint8)).shape == (0, 64)
