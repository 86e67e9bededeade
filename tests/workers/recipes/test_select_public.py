"""select_public: what a unit adds, what is paid and when, what goes on after a kill, and what the release holds."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from models.portable.drawing import draw
from models.portable.selected import SelectedPictures
from models.released import load_released, save_released
from privacy.errors import BudgetExceeded
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.select_public import SENSITIVITY
from tests.workers import small_trainings
from tests.workers.small_trainings import SECRET, Purse
from workers.recipes.interface import Run, TrainingData
from workers.recipes.records import AnchorsMissing
from workers.recipes.select_public import Space, cluster, colours_and_texture, count_votes, shares_of, winners

FACTS = PublicFacts(("light", "dark"), 16, 16, 3, 60, "record")
LEVELS = (20, 70, 120, 170, 220)  # of the public pictures


def pictures(levels: Any, side: int = 16, channels: int = 3) -> np.ndarray[Any, np.dtype[np.uint8]]:
    stream = np.random.default_rng(3)
    levels = np.asarray(levels)[:, None, None, None]
    return (levels + stream.integers(-8, 9, (len(levels), side, side, channels))).astype(np.uint8)


def data(**changes: Any) -> TrainingData:
    """Light records of level 220, dark ones of 20; public pictures of five levels, of another size."""
    labels = np.arange(60) % 2
    public = pictures(np.tile(LEVELS, 8), side=12)
    shown = pictures(np.where(labels, 20, 220))
    made = TrainingData(shown, labels, FACTS.classes, public_anchors=public)
    return dataclasses.replace(made, **changes)


def plan_of(facts: PublicFacts = FACTS, **options: Any) -> Plan:
    return small_trainings.plan_of("select_public", {"public_dataset_id": "ds_public", "choices": 5, **options}, facts)


def train(plan: Plan, given: TrainingData, **changes: Any) -> SelectedPictures:
    return small_trainings.train(plan, given, FACTS, **changes)


def levels_drawn(generator: SelectedPictures, label: int) -> torch.Tensor:
    labels = torch.full((40,), label)
    return 255 * generator.sample(labels, torch.Generator().manual_seed(1)).mean((1, 2, 3))


def votes_of(given: TrainingData, facts: PublicFacts = FACTS) -> torch.Tensor:
    public = torch.from_numpy(pictures(LEVELS)).permute(0, 3, 1, 2) / 255
    space = Space(colours_and_texture(public), colours_and_texture)
    run = Run(plan=plan_of(facts), facts=facts, data=given, budget=Purse(), secret=SECRET)
    return count_votes(run, space, space.public.expand(2, -1, -1))


@pytest.mark.parametrize("at", [0, 31, 59])
def test_every_record_more_attains_the_sensitivity(at):
    kept = np.delete(np.arange(60), at)
    less = data(private_images=data().private_images[kept], private_labels=data().private_labels[kept])
    difference = votes_of(data()) - votes_of(less)
    assert float(difference.double().norm()) == SENSITIVITY
    assert difference.nonzero()[0].tolist() == ([0, 4] if at % 2 == 0 else [1, 0]), "in its class, for what is nearest"


def test_a_label_that_names_no_class_votes_nowhere():
    labels = data().private_labels.copy()
    labels[[3, 4, 5]] = (-1, 2, 9)
    assert int(votes_of(data(private_labels=labels)).sum()) == 57


def test_a_subject_votes_once_however_many_records_it_has():
    facts = dataclasses.replace(FACTS, unit="subject", subjects_declared=30)
    subjects = np.where(np.arange(60) < 40, np.arange(60) % 8, 99)  # the last twenty are one person's
    everyone = votes_of(data(private_subjects=subjects), facts)
    others = data(**{name: getattr(data(), name)[:40] for name in ("private_images", "private_labels")})
    without = votes_of(dataclasses.replace(others, private_subjects=subjects[:40]), facts)
    assert (int(everyone.sum()), float((everyone - without).double().norm())) == (9, SENSITIVITY)


def test_without_budget_nothing_is_released_and_after_one_iteration_its_winners_are():
    with pytest.raises(BudgetExceeded):
        train(plan_of(), data(), budget=Purse(0))
    assert float(levels_drawn(train(plan_of(), data(), budget=Purse(1)), 0).median()) > 200


@pytest.mark.parametrize("iterations", [1, 2])
def test_classes_draw_the_public_pictures_that_look_like_their_records(iterations):
    generator = train(plan_of(iterations=iterations), data())
    light, dark = levels_drawn(generator, 0), levels_drawn(generator, 1)
    assert ((light - 220).abs() < 30).float().mean() > 0.9
    assert ((dark - 20).abs() < 30).float().mean() > 0.9


def test_without_noise_it_is_a_function_of_votes_alone(silent):
    first, second = (train(plan_of(), data(), secret=secret) for secret in (SECRET, bytes(32)))
    assert all(torch.equal(value, second.state_dict()[name]) for name, value in first.state_dict().items())


def test_the_release_holds_public_pictures_alone_and_draws_alike_from_its_files(tmp_path):
    plan = plan_of(shift=0.0, colour=0.0)
    generator = train(plan, data(public_anchors=pictures(np.tile(LEVELS, 8))))
    public = {picture.tobytes() for picture in pictures(np.tile(LEVELS, 8))}
    held = {picture.permute(1, 2, 0).contiguous().numpy().tobytes() for picture in generator.pictures.flatten(0, 1)}
    assert held <= public
    assert generator.pictures.numel() == plan.facts["release_bytes"]
    save_released(generator, tmp_path)
    files = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    save_released(generator, tmp_path)
    assert files == [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    ((images, labels),) = draw(load_released(tmp_path), 30, seed=5)
    ((again, _),) = draw(load_released(tmp_path), 30, seed=5)
    assert torch.equal(images, again)
    assert {picture.numpy().tobytes() for picture in images} <= public
    assert labels[:4].tolist() == [0, 1, 0, 1]


def test_with_public_labels_a_class_selects_among_its_own():
    labels = np.where(np.tile(LEVELS, 8) < 100, 1, 0)  # the darker ones are called light
    given = data(public_anchor_labels=labels, public_anchor_classes=("dark", "light"))
    assert float(levels_drawn(train(plan_of(public_labels=True), given), 0).max()) < 110
    with pytest.raises(AnchorsMissing, match="the class light"):
        train(plan_of(public_labels=True), dataclasses.replace(given, public_anchor_classes=("dark", "x")))


@pytest.mark.parametrize("public", [None, pictures([])[:0], pictures([7])])
def test_without_public_pictures_nothing_is_paid(public):
    purse = Purse()
    with pytest.raises(AnchorsMissing):
        train(plan_of(), data(public_anchors=public), budget=purse)
    assert not purse.paid


def test_an_operators_network_may_say_what_is_near():
    def darkness(shown: torch.Tensor) -> torch.Tensor:
        return torch.stack([1 - shown.mean((1, 2, 3)), shown.std((1, 2, 3))], dim=1)

    generator = train(plan_of(extractor="darkness"), data(public_extractor=darkness))
    assert float(levels_drawn(generator, 0).median()) > 200


def test_winners_come_in_proportion_and_again_where_a_cluster_is_small():
    places = torch.tensor([[0], [10], [900], [910], [940], [905]])
    clusters = cluster(places, np.arange(6), 2)
    near = 0 if clusters.centres[0] < 500 else 1
    shares = torch.zeros(2, dtype=torch.float64)
    shares[near], shares[1 - near] = 0.6, 0.4
    rows, repeats = winners(shares, clusters, 5)
    assert sorted(rows) == [0, 0, 1, 3, 5], "three of two pictures; two of four, nearest to the centre first"
    assert sorted(repeats) == [0, 0, 0, 0, 1]


def test_votes_below_the_noise_count_as_none_and_none_at_all_as_even():
    assert shares_of(torch.tensor([8, 2, -3]), 3.0).tolist() == [1, 0, 0]
    assert shares_of(torch.tensor([1, 3, -3]), 9.0).tolist() == [0.25, 0.75, 0]
    assert shares_of(torch.tensor([-1, 0, -3]), 9.0).tolist() == [1 / 3] * 3
