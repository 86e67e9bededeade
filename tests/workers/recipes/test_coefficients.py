"""Coefficients of images and of their texture, exact whatever stands beside; GEP's anchors from a public dataset."""

import dataclasses
import math
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from models.portable.generator import Generator
from models.portable.textured import FILTER_UNIT, filters, texture
from privacy.gradients.gep import Gep
from privacy.plans.moments import MomentsConfig
from privacy.plans.plan import PublicFacts
from privacy.plans.private_steps import StepsConfig
from privacy.plans.warm_start import BY_CLASS, MEANS, POOLED
from tests.workers.recipes.conftest import noise_images
from tests.workers.small_trainings import DIGITS, FACTS, Purse, secret, small_plan, train
from workers.recipes import coefficients, released_sums
from workers.recipes.interface import TrainingData
from workers.recipes.moments import empty_generator
from workers.recipes.records import AnchorsMissing, anchor_images
from workers.recipes.released_sums import Kept
from workers.recipes.warm_start import put_into, warm_start

Numbers = npt.NDArray[np.float64]
Images = npt.NDArray[np.uint8]
SHAPES = {"mean_fraction": 0.4, "pooled_covariance_fraction": 0.3, "class_covariance_fraction": 0.3}
COLOUR = MomentsConfig(colour="luma_chroma", frequencies=8, centre=0.5, components=12, **SHAPES)
GREY = COLOUR.with_values(colour="rgb", centre=0.25)


def facts_of(height: int, width: int, channels: int) -> PublicFacts:
    return PublicFacts(("a", "b", "c"), height, width, channels, 600, "record")


CASES = [
    (COLOUR, 20, 15, 3),
    (COLOUR.with_values(coefficients=30), 33, 70, 3),
    (COLOUR.with_values(symmetry="square", coefficients=50), 24, 24, 3),
    (COLOUR.with_values(colour="rgb"), 9, 10, 3),
    (GREY, 17, 16, 1),
    (COLOUR.with_values(frequencies=64), 12, 9, 3),  # all waves, in which nothing of an image is lost
]


@pytest.mark.parametrize(("config", "height", "width", "channels"), CASES)
def test_they_are_the_coefficients_in_the_public_basis_both_ways(config, height, width, channels):
    facts = facts_of(height, width, channels)
    waves, images = coefficients.SeparableWaves(config, facts), noise_images(30, height, width, channels)
    basis = coefficients.image_basis(config, facts)
    expected = coefficients.MatrixWaves(basis).of(images, config.centre)
    assert len(waves) == len(basis)
    np.testing.assert_allclose(waves.of(images, config.centre), expected, atol=5e-3)
    rows = np.random.default_rng(1).normal(size=(7, len(basis)))
    np.testing.assert_allclose(waves.drawn(rows), rows @ basis, atol=1e-3)
    assert waves.drawn(rows[:0]).shape == (0, facts.pixels)


@pytest.mark.parametrize("other", [0, 1, 256])
def test_no_sum_of_products_is_rounded(other):
    """Pixels, waves and mixes as large as they get, in absolute values: whatever the order, sums are below 2^53."""
    for height in range(1, 300, 7):
        width = other or height
        facts = facts_of(height, width, 3)
        waves = coefficients.SeparableWaves(COLOUR.with_values(frequencies=64, coefficients=400), facts)
        longest = [float(np.abs(each).sum(axis=1).max()) for each in (waves.mix, waves.down, waves.across)]
        assert 255 * math.prod(longest) <= 2**53
        for each in (waves.down, waves.across):
            assert np.array_equal(each, np.rint(each))
            assert np.abs(each).max() >= 2**12  # and they are no coarser than that


@pytest.mark.parametrize("kind", ["noise", "white", "checks"])
def test_float64_finds_the_integers_that_integer_arithmetic_finds(kind):
    facts = facts_of(256, 256, 3)
    waves, images = coefficients.SeparableWaves(COLOUR, facts), noise_images(2, 256, 256, 3)
    if kind != "noise":
        images[:] = 255
    if kind == "checks":
        images[:, ::2, :, 0] = images[:, :, ::3, 1] = 0
    down, across, mix = (each.astype(np.int64) for each in (waves.down, waves.across, waves.mix))
    left = np.einsum("ir,brcd->bdic", down, images.astype(np.int64))
    expected = np.einsum("pd,bdij->bpij", mix, np.einsum("bdic,jc->bdij", left, across))
    seen = waves.seen
    found = waves._integers(images)
    assert np.array_equal(found.astype(np.int64), expected[:, seen.kind, seen.row, seen.column])
    assert np.array_equal(found, np.rint(found))


@pytest.mark.parametrize(
    "make",
    [
        coefficients.SeparableWaves,
        lambda config, facts: coefficients.MatrixWaves(coefficients.image_basis(config, facts)),
    ],
)
@pytest.mark.parametrize(("config", "height", "width", "channels"), CASES)
def test_a_records_coefficients_ignore_the_others_to_the_last_bit(config, height, width, channels, make, monkeypatch):
    """In whatever block of whatever size it stands, and wherever in it: otherwise a record could change how others are
    rounded, and every sum with them."""
    monkeypatch.setattr(coefficients, "_BLOCK_NUMBERS", 8 * height * width * channels)
    waves, images = make(config, facts_of(height, width, channels)), noise_images(50, height, width, channels)
    whole = waves.of(images, config.centre)
    for rows in (slice(1, None), slice(7, 8), slice(0, 50, 2), slice(49, None, -1), slice(0, 0)):
        assert np.array_equal(waves.of(images[rows], config.centre), whole[rows])
    monkeypatch.setattr(coefficients, "_BLOCK_NUMBERS", 1)
    assert np.array_equal(waves.of(images, config.centre), whole)


def test_small_images_keep_their_matrix_and_large_ones_have_none():
    assert isinstance(coefficients.numbers_of(COLOUR, facts_of(64, 64, 3)).waves, coefficients.MatrixWaves)
    assert isinstance(coefficients.numbers_of(COLOUR, facts_of(65, 64, 3)).waves, coefficients.SeparableWaves)
    assert np.array_equal(coefficients.integer_waves(5, 1, 4), np.full((1, 5), 16.0))


def trained(config: MomentsConfig, facts: PublicFacts, images: Images) -> Generator:
    stddevs, labels = {MEANS: 100.0, POOLED: 1e5, BY_CLASS: 1e5}, np.arange(len(images)) % 3
    generator = empty_generator(config, facts)
    put_into(generator, warm_start(images, labels, config, facts, stddevs, Kept({}, secret)))
    return generator


def test_a_training_on_large_images_is_what_the_matrix_makes_of_them(monkeypatch):
    """All the way to the generator, but for what rounding leaves; noise is the same."""
    facts, config = facts_of(68, 66, 3), COLOUR.with_values(coefficients=60, shrink=True)
    images = noise_images(90, 68, 66, 3) // 8
    images += (np.arange(90) % 5 * 40)[:, None, None, None].astype(np.uint8)  # what is left when noise is averaged
    one = trained(config, facts, images)  # by two small products
    monkeypatch.setattr(coefficients, "LARGE", 10**9)
    two = trained(config, facts, images)
    assert float(one.mean.std()) > 1e-3
    np.testing.assert_allclose(one.mean.numpy(), two.mean.numpy(), atol=1e-3)
    spread = [(factor @ factor.mT).numpy() for factor in (one.factor[:, ::97], two.factor[:, ::97])]
    assert np.abs(spread[0]).max() > 1e-3
    np.testing.assert_allclose(*spread, atol=1e-3 * np.abs(spread[0]).max())


def test_no_two_classes_factors_are_there_at_once():
    numbers = coefficients.numbers_of(COLOUR, facts_of(70, 66, 3))
    stream = np.random.default_rng(0)
    components = np.linalg.qr(stream.normal(size=(len(numbers.power), 5)))[0]
    roots = [np.eye(5), np.diag([1.0, 2.0, 3.0, 4.0, 5.0])]
    factors = coefficients.Factors(numbers, components, roots)
    assert len(factors) == 2
    assert factors[0] is not factors[0]
    np.testing.assert_allclose(factors[0], numbers.drawn(components.T).T)
    np.testing.assert_allclose(factors[1], factors[0] * [1, 2, 3, 4, 5], atol=1e-12)


@pytest.mark.parametrize("symmetry", ["none", "square"])
def test_however_few_records_are_worked_on_at_once_the_generator_is_the_same(symmetry, monkeypatch):
    facts, config = facts_of(16, 16, 3), COLOUR.with_values(symmetry=symmetry, shrink=True)
    images = noise_images(90, 16, 16, 3)
    whole = trained(config, facts, images)
    monkeypatch.setattr(released_sums, "_BLOCK", 7)
    monkeypatch.setattr(coefficients, "_PRODUCT_BLOCK", 11)
    monkeypatch.setattr(coefficients, "_BLOCK", 13)
    parts = trained(config, facts, images)
    assert whole.factor.any()
    assert all(torch.equal(one, parts.state_dict()[name]) for name, one in whole.state_dict().items())


# --- texture ----------------------------------------------------------------------------------------------------------


TEXTURED = PublicFacts(("a", "b"), 16, 20, 1, 100, "record")


def texture_waves(waves: int = 1024) -> npt.NDArray[np.float64]:
    return coefficients.texture_basis(MomentsConfig(texture=True, texture_waves=waves), TEXTURED)


@pytest.mark.parametrize("channels", [1, 3])
def test_texture_is_the_generators(channels):
    images = noise_images(70, 16, 20, channels)
    pixels = torch.from_numpy(images).double() / 255
    luma = pixels.mean(3) if channels == 3 else pixels
    found = coefficients.texture_coefficients(images, texture_waves()) @ texture_waves()
    np.testing.assert_allclose(found, texture(luma[:, None]).flatten(1).numpy(), atol=5e-3)  # moduli are rounded
    assert np.abs(found).max() < coefficients.TEXTURE_LARGEST


def test_its_basis_is_orthonormal_and_a_quarter_of_it_holds_nine_tenths_of_a_picture():
    assert texture_waves().shape == (320, 320)
    np.testing.assert_allclose(texture_waves() @ texture_waves().T, np.eye(320), atol=1e-12)
    np.testing.assert_array_equal(texture_waves(40), texture_waves()[:40])
    down, across = np.indices((16, 20))
    discs = np.stack([(down - 8) ** 2 + (across - at) ** 2 < 30 for at in range(5, 15)]).astype(np.uint8) * 255
    held = np.square(coefficients.texture_coefficients(discs, texture_waves())).mean(axis=0)
    assert held[:80].sum() > 0.9 * held.sum()
    assert coefficients.texture_basis(MomentsConfig(), TEXTURED).shape == (0, 0)


def test_texture_of_black_white_and_finest_checks_stay_on_the_table():
    checks = np.indices((16, 20)).sum(axis=0) % 2 * 255
    images = np.stack([np.zeros((16, 20)), np.full((16, 20), 255), checks, checks[::-1]]).astype(np.uint8)
    assert np.isfinite(coefficients.texture_coefficients(images, texture_waves())).all()


@pytest.mark.parametrize("place", [0, 1, 63, 64, 69])
def test_a_record_more_changes_no_bit_of_the_texture_of_others(place):
    """Adding a record moves the others to other places of other blocks."""
    images = noise_images(70, 16, 20, 1)
    fewer = coefficients.texture_coefficients(np.delete(images, place, axis=0), texture_waves(90))
    assert np.array_equal(fewer, np.delete(coefficients.texture_coefficients(images, texture_waves(90)), place, axis=0))


def test_no_sum_of_filtered_pixels_is_rounded():
    """The largest sums that pixels and filters can make are integers below 2^53."""
    fine, coarse = filters()
    for bank, largest in ((fine, 3 * 255), (coarse, 4 * 3 * 255)):
        assert float(bank.abs().sum((1, 2, 3)).max()) * largest < 2**53
    assert FILTER_UNIT == 2.0**-12


# --- anchors ----------------------------------------------------------------------------------------------------------


ANCHORED = StepsConfig(estimator="gep", anchors=20, anchors_dataset_id="ds_public")
RECIPES = ("dp_classifier", "dp_diffusion", "dpgan")


def data(private: int = 1, public: int | None = 2) -> TrainingData:
    anchors = None if public is None else noise_images(30, 12, 10, 3, seed=public)
    return TrainingData(noise_images(60, seed=private), np.arange(60) % 10, DIGITS, public_anchors=anchors)


anchored_plan = partial(small_plan, estimator="gep", anchors=20, epochs=0.1)


def test_images_of_any_shape_are_brought_to_the_declared_one_and_without_a_dataset_they_are_patterns():
    found = anchor_images(ANCHORED, FACTS, data())
    assert found.shape == (20, 1, 8, 8)
    assert 0 <= found.min() < found.max() <= 1
    assert found.std() > 0.05
    colour = dataclasses.replace(FACTS, channels=3)
    grey = dataclasses.replace(data(), public_anchors=noise_images(30, seed=3))
    wide = anchor_images(ANCHORED, colour, grey)
    assert wide.shape == (20, 3, 8, 8)
    assert torch.equal(wide[:, 0], wide[:, 2])
    originals = {tuple(image.flatten().tolist()) for image in grey.public_anchors}
    drawn = {tuple((255 * image[0]).round().int().flatten().tolist()) for image in wide}
    assert len(drawn) == 20, "each image once"
    assert drawn <= originals
    few = dataclasses.replace(data(), public_anchors=noise_images(7, seed=3))
    assert len(anchor_images(ANCHORED, FACTS, few)) == 7, "a dataset with fewer images gives all of them"
    patterns = anchor_images(ANCHORED.with_values(anchors_dataset_id=""), FACTS, data())
    assert torch.equal(patterns, anchor_images(ANCHORED.with_values(anchors_dataset_id=""), FACTS, data(9, 9)))
    assert not torch.equal(patterns, anchor_images(ANCHORED, FACTS, data()))


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_basis_depends_on_the_public_dataset_alone(recipe, monkeypatch):
    """The first one, as the networks of later steps know what was released."""
    find = Gep.find_basis

    class Found(Exception):
        pass

    def watched(estimator: Gep, anchors: Any) -> None:
        find(estimator, anchors)
        raise Found(torch.cat([basis.vectors.flatten() for basis in estimator.bases]))

    monkeypatch.setattr(Gep, "find_basis", watched)

    def first_basis(given: TrainingData, anchors_dataset_id: str = "ds_public") -> torch.Tensor:
        with pytest.raises(Found) as found:
            train(anchored_plan(recipe, anchors_dataset_id=anchors_dataset_id), given)
        return found.value.args[0]

    basis = first_basis(data())
    assert torch.equal(first_basis(data(private=7)), basis)
    assert not torch.allclose(first_basis(data(public=7)), basis, rtol=1e-2)
    assert not torch.allclose(first_basis(data(), anchors_dataset_id=""), basis, rtol=1e-2)


@pytest.mark.parametrize("recipe", RECIPES)
def test_without_the_images_nothing_is_paid(recipe):
    for given in (data(public=None), dataclasses.replace(data(), public_anchors=noise_images(0))):
        purse = Purse()
        with pytest.raises(AnchorsMissing):
            train(anchored_plan(recipe, anchors_dataset_id="ds_public"), given, budget=purse)
        assert purse.paid == []
