"""GEP's anchors from a public dataset: the basis depends on that dataset alone, and without it nothing is paid."""

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from privacy.gradients.gep import Gep
from privacy.plans.private_steps import StepsConfig
from tests.workers.recipes.conftest import noise_images
from tests.workers.small_trainings import DIGITS, FACTS, Purse, small_plan, train
from workers.recipes.interface import TrainingData
from workers.recipes.records import AnchorsMissing, anchor_images

ANCHORED = StepsConfig(estimator="gep", anchors=20, anchors_dataset_id="ds_public")
RECIPES = ("dp_classifier", "dp_diffusion", "dpgan")


def data(private: int = 1, public: int | None = 2) -> TrainingData:
    """Private images and public anchors, each from a seed of its own."""
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
