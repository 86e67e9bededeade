"""Texture of private images: the generator's numbers, and no bit of a record's that depends on another record."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from models.portable.textured import FILTER_UNIT, filters, texture
from privacy.plans.moments import MomentsConfig
from privacy.plans.plan import PublicFacts
from workers.recipes.coefficients import TEXTURE_LARGEST, texture_basis, texture_coefficients

FACTS = PublicFacts(("a", "b"), 16, 20, 1, 100, "record")


def basis(waves: int = 1024) -> npt.NDArray[np.float64]:
    return texture_basis(MomentsConfig(texture=True, texture_waves=waves), FACTS)


def pictures(n: int, channels: int = 1) -> np.ndarray:
    shape = (n, 16, 20) if channels == 1 else (n, 16, 20, channels)
    return np.random.default_rng(n).integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize("channels", [1, 3])
def test_they_are_the_numbers_of_the_generators_texture(channels):
    images = pictures(70, channels)
    pixels = torch.from_numpy(images).double() / 255
    luma = pixels.mean(3) if channels == 3 else pixels
    found = texture_coefficients(images, basis()) @ basis()
    np.testing.assert_allclose(found, texture(luma[:, None]).flatten(1).numpy(), atol=5e-3)  # moduli are rounded
    assert np.abs(found).max() < TEXTURE_LARGEST


def test_the_basis_is_orthonormal_and_a_quarter_of_it_holds_nine_tenths_of_a_picture():
    assert basis().shape == (320, 320)
    np.testing.assert_allclose(basis() @ basis().T, np.eye(320), atol=1e-12)
    np.testing.assert_array_equal(basis(40), basis()[:40])
    down, across = np.indices((16, 20))
    discs = np.stack([(down - 8) ** 2 + (across - at) ** 2 < 30 for at in range(5, 15)]).astype(np.uint8) * 255
    held = np.square(texture_coefficients(discs, basis())).mean(axis=0)
    assert held[:80].sum() > 0.9 * held.sum()
    assert texture_basis(MomentsConfig(), FACTS).shape == (0, 0)


def test_black_white_and_finest_checks_stay_on_the_table():
    checks = np.indices((16, 20)).sum(axis=0) % 2 * 255
    images = np.stack([np.zeros((16, 20)), np.full((16, 20), 255), checks, checks[::-1]]).astype(np.uint8)
    assert np.isfinite(texture_coefficients(images, basis())).all()


@pytest.mark.parametrize("place", [0, 1, 63, 64, 69])
def test_a_record_more_changes_no_bit_of_the_others(place):
    """Adding a record moves the others to other places of other blocks."""
    images = pictures(70)
    fewer = texture_coefficients(np.delete(images, place, axis=0), basis(90))
    assert np.array_equal(fewer, np.delete(texture_coefficients(images, basis(90)), place, axis=0))


def test_no_sum_of_products_is_rounded():
    """The largest sums that pixels and filters can make are integers below 2^53."""
    fine, coarse = filters()
    for bank, largest in ((fine, 3 * 255), (coarse, 4 * 3 * 255)):
        assert float(bank.abs().sum((1, 2, 3)).max()) * largest < 2**53
    assert FILTER_UNIT == 2.0**-12
