"""The whole recipe on 1,797 digits: what is paid and when, interruptions, ablations, and noise that never repeats."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.datasets import load_digits

from models.portable.generator import Generator
from models.portable.textured import TexturedGenerator
from models.released import load_released, save_released
from privacy.accounting.events import GaussianEvent
from privacy.accounting.filter import open_filter
from privacy.aggregation import topagg
from privacy.errors import BudgetExceeded
from privacy.mechanisms.noise import SecureNoise
from privacy.plans.datalens.options import DataLensConfig
from privacy.plans.datalens.plan import VOTES
from privacy.plans.moments.warm_start import BY_CLASS, MEANS, POOLED
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import build_plan, plan_from_json
from service.storage.folder import FolderStorage
from tests.privacy.plans.test_golden_options import GOLDEN
from tests.workers.small_trainings import TINY_DATALENS as TINY
from workers.evaluation.utility import train_and_test
from workers.recipes.datalens import loop as datalens
from workers.recipes.datalens import votes as datalens_votes
from workers.recipes.datalens.teacher_stage import start_teacher_stage
from workers.recipes.interface import Cancelled, Run, TrainingData, TrustedCurator, load_checkpoint
from workers.recipes.moments import loop as moments
from workers.recipes.moments.coefficients import texture_coefficients
from workers.recipes.moments.warm_start import ClassGaussians
from workers.recipes.registry import TRAINERS
from workers.train.checkpoints import SealedFolder

FACTS = PublicFacts(tuple("0123456789"), 8, 8, 1, 1797, "record")
ACCOUNT = open_filter(1.0, 1e-5)
STORED: list[dict[str, Any]] = GOLDEN["documents"]
SECRET = b"0123456789abcdef0123456789abcdef"


class Purse:
    """A budget that lists its charges, pays for `images` aggregated images, and refuses the stages in `closed`."""

    def __init__(self, images: int = 10**6, closed: tuple[str, ...] = ()) -> None:
        self.images, self.closed = images, closed
        self.paid: list[tuple[str, GaussianEvent]] = []

    def charge(self, event: GaussianEvent, stage: str) -> None:
        if stage in self.closed or (stage == VOTES and event.count > self.images):
            raise BudgetExceeded(event.count, self.images)
        self.images -= event.count if stage == VOTES else 0
        self.paid.append((stage, event))

    @property
    def counts(self) -> list[tuple[str, int]]:
        return [(stage, event.count) for stage, event in self.paid]

    def releases_paid(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for stage, event in self.paid:
            total[stage] += event.count
        return total


class Reports:
    """Progress that lists what it is told and asks to stop at one of the reports."""

    def __init__(self, stop_at: tuple[str, int] | None = None) -> None:
        self.stop_at, self.told = stop_at, list[tuple[str, int, int]]()

    def __call__(self, *, stage: str, step: int, steps: int) -> None:
        self.told.append((stage, step, steps))
        if (stage, step) == self.stop_at:
            raise Cancelled


def work_in(directory: Path) -> SealedFolder:
    return SealedFolder(FolderStorage(directory), "work", bytes(32), "test")


@pytest.fixture(scope="module")
def data() -> TrainingData:
    digits = load_digits()
    images = (digits.images * (255 / 16)).astype(np.uint8)  # (1797, 8, 8)
    return TrainingData(images, digits.target.astype(np.int64), FACTS.classes)


@pytest.fixture
def train(data: TrainingData, tmp_path: Path) -> Callable[..., Generator]:
    def trained(plan: Plan, purse: Purse | None = None, **changes: Any) -> Generator:
        options: dict[str, Any] = {
            "data": data,
            "facts": FACTS,
            "secret": SECRET,
            "checkpoints": work_in(tmp_path / "work"),
            **changes,
        }
        return TRAINERS[plan.recipe](Run(plan=plan, budget=purse or Purse(), **options))

    return trained


def plan(facts: PublicFacts = FACTS, **options: Any) -> Plan:
    return build_plan("datalens", {**TINY, **options}, ACCOUNT, ACCOUNT.capacity_nano, facts)


def start_alone(**options: Any) -> Plan:
    small = {name: TINY[name] for name in ("components", "frequencies", "mean_share", "pooled_share", "class_share")}
    return build_plan("moments", {**small, **options}, ACCOUNT, ACCOUNT.capacity_nano, FACTS)


def test_with_texture_the_same_releases_make_a_generator_that_renders(train: Callable[..., Generator]) -> None:
    purse = Purse()
    generator = train(start_alone(texture=True), purse)
    assert isinstance(generator, TexturedGenerator)
    assert purse.counts == [(MEANS, 1), (POOLED, 1), (BY_CLASS, 1)]
    assert generator.mean.shape == (10, 64 + 64)  # 8 x 8 pixels, and 16 numbers of each of 2 x 2 cells
    images = generator.sample(torch.arange(10), torch.Generator().manual_seed(0))
    assert images.shape == (10, 1, 8, 8)
    assert 0 <= images.min() < images.max() <= 1


def test_the_charges_are_the_plan_in_order(train: Callable[..., Generator]) -> None:
    """Every charge is a planned event, up to its count; together they are the whole plan and its price."""
    made, purse, reports = plan(), Purse(), Reports()
    generator = train(made, purse, progress=reports)
    assert purse.counts == [(MEANS, 1), (POOLED, 1), (BY_CLASS, 1), (VOTES, 25), (VOTES, 25), (VOTES, 10)]
    for stage, event in purse.paid:
        planned = made.stage(stage)
        assert planned is not None
        assert dataclasses.replace(event, count=1) == dataclasses.replace(planned.event, count=1)
    assert sum(ACCOUNT.price_nano(event) for _, event in purse.paid) == made.price_nano <= ACCOUNT.capacity_nano
    assert reports.told[:4] == [("warm_start", step, 3) for step in range(4)]
    assert reports.told[4:] == [(VOTES, step, 12) for step in range(1, 13)]
    assert not generator.training
    assert generator.config.components == 10
    images = generator.sample(torch.arange(10), torch.Generator().manual_seed(0))
    assert images.shape == (10, 1, 8, 8)
    assert torch.isfinite(images).all()


def test_no_noise_is_drawn_before_it_is_paid(train: Callable[..., Generator], monkeypatch: pytest.MonkeyPatch) -> None:
    purse, drawn = Purse(), Counter[str]()
    f, d = 36, 10  # coefficients and components
    numbers = {MEANS: 10 * (f + 1), POOLED: f * (f + 1) // 2, BY_CLASS: 10 * d * (d + 1) // 2, VOTES: d}
    draw, noisy_sum = SecureNoise.discrete_gaussian, topagg.noisy_sum

    def watched_draw(self: SecureNoise, shape: int | tuple[int, ...], stddev: float) -> npt.NDArray[np.int64]:
        drawn["numbers"] += int(np.prod(shape))
        assert drawn["numbers"] <= sum(numbers[stage] * count for stage, count in purse.releases_paid().items())
        return draw(self, shape, stddev)

    def watched_sum(votes: torch.Tensor, *rest: Any) -> torch.Tensor:
        drawn[VOTES] += len(votes)
        assert drawn[VOTES] <= purse.releases_paid()[VOTES]
        return noisy_sum(votes, *rest)

    monkeypatch.setattr(SecureNoise, "discrete_gaussian", watched_draw)
    monkeypatch.setattr(topagg, "noisy_sum", watched_sum)
    train(plan(), purse)
    assert drawn[VOTES] == 60
    assert drawn["numbers"] == numbers[MEANS] + numbers[POOLED] + numbers[BY_CLASS] + 60 * d


@pytest.mark.parametrize(("closed", "kept"), [(MEANS, set()), (POOLED, {MEANS})])
def test_a_warm_start_that_is_not_paid_releases_nothing_more(
    closed: str, kept: set[str], train: Callable[..., Generator], tmp_path: Path
) -> None:
    with pytest.raises(BudgetExceeded):
        train(plan(), Purse(closed=(closed,)))
    found = load_checkpoint(work_in(tmp_path / "work"))
    assert set(found.state["start"] if found is not None else {}) == kept


class Lost(BaseException):
    """Stands for the end of the process."""


class Hold(Purse):
    """A budget of the plan's price, as a job's hold is."""

    def __init__(self, made: Plan) -> None:
        super().__init__()
        self.left_nano = made.price_nano

    def charge(self, event: GaussianEvent, stage: str) -> None:
        price_nano = ACCOUNT.price_nano(event)
        if price_nano > self.left_nano:
            raise BudgetExceeded(price_nano, self.left_nano)
        self.left_nano -= price_nano
        super().charge(event, stage)


@pytest.mark.parametrize("options", [{}, {"preset": "votes_only", "vote_share": 0.0}], ids=["statistics", "rounds"])
def test_whatever_was_kept_is_not_paid_again(options: dict[str, Any], train: Callable[..., Generator]) -> None:
    """Stopped after each of the first three statistics or rounds: the plan is paid once, by four attempts."""
    options = {"warm_start": not options, **options}
    made = plan(**options)
    stage = "warm_start" if options["warm_start"] else "votes"
    hold = Hold(made)
    for attempt in (1, 2, 3):
        with pytest.raises(Cancelled):
            train(made, hold, attempt=attempt, progress=Reports((stage, attempt)))
        assert hold.counts == [(planned.name, planned.event.count) for planned in made.stages[:attempt]]
    train(made, hold, attempt=4)
    assert hold.releases_paid() == {planned.name: planned.event.count for planned in made.stages}


@pytest.mark.parametrize("lost", range(4))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"recipe": "moments"},
        {"recipe": "moments", "texture": True},
        {"preset": "votes_only", "vote_share": 0.0},
    ],
    ids=["statistics and votes", "statistics", "texture", "rounds"],
)
def test_a_process_lost_between_payment_and_checkpoint_costs_quality_and_not_the_job(
    lost: int, options: dict[str, Any], train: Callable[..., Generator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was paid and not kept is paid again; what the hold then lacks is left out at the end."""
    votes = {"warm_start": "votes_only" not in options.values(), **options}
    made = start_alone(texture="texture" in options) if "recipe" in options else plan(**votes)
    if lost >= len(made.stages):
        pytest.skip("the plan has fewer stages")
    hold, saved = Hold(made), 0
    save = moments.save_checkpoint

    def dies(*args: Any, **kwargs: Any) -> None:
        nonlocal saved
        if saved == lost:
            raise Lost
        saved += 1
        save(*args, **kwargs)

    with monkeypatch.context() as patched:
        for module in (datalens_votes, moments):
            patched.setattr(module, "save_checkpoint", dies)
        with pytest.raises(Lost):
            train(made, hold)
    generator = train(made, hold, attempt=2)
    paid = hold.releases_paid()
    assert paid[made.stages[lost].name] >= made.stages[lost].event.count
    assert torch.isfinite(generator.sample(torch.arange(10), torch.Generator().manual_seed(0))).all()
    assert generator.factor.any()


@pytest.mark.parametrize(("images", "paid"), [(0, 0), (24, 0), (30, 25), (59, 50)])
def test_an_exhausted_budget_ends_the_votes_and_keeps_what_was_learnt(
    images: int, paid: int, train: Callable[..., Generator]
) -> None:
    purse = Purse(images)
    generator = train(plan(), purse)
    assert purse.releases_paid()[VOTES] == paid
    assert generator.mean.any()
    if not paid:
        assert not generator.bend.any()


def test_votes_of_a_round_that_the_budget_cut_short_are_learnt(train: Callable[..., Generator]) -> None:
    rich = open_filter(200.0, 1e-5)
    made = build_plan("datalens", {**TINY, "rounds": 1, "warm_start": False}, rich, rich.capacity_nano, FACTS)
    assert train(made, Purse(images=50)).bend.any()


@pytest.mark.parametrize("stop_at", [("warm_start", 0), ("warm_start", 1), (VOTES, 1), (VOTES, 12)])
def test_a_cancellation_passes_through(stop_at: tuple[str, int], train: Callable[..., Generator]) -> None:
    purse = Purse()
    with pytest.raises(Cancelled):
        train(plan(), purse, progress=Reports(stop_at))
    assert bool(purse.paid) == (stop_at != ("warm_start", 0))


def test_an_interrupted_training_goes_on_and_pays_for_what_it_repeats(
    train: Callable[..., Generator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in its seventh iteration: five are in the checkpoint, the sixth and seventh are released again."""
    keys: list[tuple[str | int, ...]] = []
    derive = SecureNoise.derive

    def watched(secret: bytes, *labels: str | int) -> SecureNoise:
        keys.append(labels)
        return derive(secret, *labels)

    monkeypatch.setattr(SecureNoise, "derive", watched)
    first, second, reports = Purse(), Purse(), Reports()
    with pytest.raises(Cancelled):
        train(plan(), first, progress=Reports((VOTES, 7)))
    assert first.counts == [(MEANS, 1), (POOLED, 1), (BY_CLASS, 1), (VOTES, 25), (VOTES, 25)]
    train(plan(), second, attempt=2, progress=reports)
    assert second.counts == [(VOTES, 25), (VOTES, 10)]
    assert reports.told == [(VOTES, step, 12) for step in range(6, 13)]
    assert keys == [
        *[("warm start", 1, name) for name in (MEANS, POOLED, BY_CLASS)],
        *[("votes", 1, VOTES, iteration) for iteration in range(7)],
        *[("votes", 2, VOTES, iteration) for iteration in range(5, 12)],
    ]


def test_no_noise_key_is_used_twice(train: Callable[..., Generator], monkeypatch: pytest.MonkeyPatch) -> None:
    """Over three attempts, two of them cut short before the first checkpoint of the votes."""
    keys: list[tuple[str | int, ...]] = []
    derive = SecureNoise.derive

    def watched(secret: bytes, *labels: str | int) -> SecureNoise:
        keys.append(labels)
        return derive(secret, *labels)

    monkeypatch.setattr(SecureNoise, "derive", watched)
    for attempt, stop_at in ((1, ("warm_start", 1)), (2, (VOTES, 3)), (3, None)):
        try:
            train(plan(), attempt=attempt, progress=Reports(stop_at))
        except Cancelled:
            assert stop_at is not None
    assert len(set(keys)) == len(keys)
    assert [labels[1:] for labels in keys if labels[0] == "warm start"] == [(1, MEANS), (2, POOLED), (2, BY_CLASS)]


def test_iterations_that_are_repeated_use_up_the_hold(train: Callable[..., Generator]) -> None:
    """The hold is the plan's price: what an interruption costs is missing at the end, and nothing fails."""
    purse = Purse(images=60)
    with pytest.raises(Cancelled):
        train(plan(), purse, progress=Reports((VOTES, 7)))
    generator = train(plan(), purse, attempt=2)
    assert purse.counts[3:] == [(VOTES, 25), (VOTES, 25)]  # ten images are left, fewer than a group needs
    assert generator.mean.any()


def test_a_finished_training_is_read_from_its_checkpoint(train: Callable[..., Generator]) -> None:
    """Lost between the last iteration and the release: nothing is paid again, the same generator comes out."""
    made = plan(images=55, rounds=2)  # 11 iterations: the last one belongs to no full round
    first = train(made)
    purse = Purse()
    again = train(made, purse, attempt=2)
    assert purse.paid == []
    for name, tensor in first.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)


def test_equal_secrets_give_equal_generators_and_other_attempts_others(
    train: Callable[..., Generator], tmp_path: Path
) -> None:
    one, two, three = (
        train(plan(), attempt=attempt, checkpoints=work_in(tmp_path / str(index)))
        for index, attempt in enumerate((1, 1, 2))
    )
    assert torch.equal(one.mean, two.mean)
    assert torch.equal(one.bend, two.bend)
    assert not torch.equal(one.mean, three.mean)


@pytest.mark.parametrize(
    "options",
    [
        {"use_top_k": False},
        {"use_stochastic_sign": False},
        {"use_threshold": True},
        {"teacher_hidden": 0},
        {"features": 0},
        {"components": 1, "top_k": 1},
        {"teachers": 1},
        {"teachers": 449},
        {"rounds": 1000},
        {"rounds": 1},
        {"images": None, "stddev": 400.0},
        {"preset": "votes_only"},
        {"preset": "votes_only_detailed", "vote_share": 0.0},
    ],
    ids=str,
)
def test_ablations_and_edges_run_and_pay_their_plan(options: dict[str, Any], train: Callable[..., Generator]) -> None:
    made, purse = plan(**options), Purse()
    generator = train(made, purse)
    assert purse.releases_paid() == {stage.name: stage.event.count for stage in made.stages}
    assert torch.isfinite(generator.bend).all()


@pytest.mark.parametrize(
    "options", [{}, {"teacher_hidden": 0}, {"components": 1024}, {"warm_start": False, "moment_votes": True}], ids=str
)
def test_the_teachers_have_as_many_parameters_as_their_plan_counted(options: dict[str, Any]) -> None:
    made = plan(**options)
    config = made.config_of(DataLensConfig)
    teachers = start_teacher_stage(
        datalens.stage_config(made, FACTS), TrustedCurator(budget=Purse(), secret=SECRET)
    ).ensemble
    numbers = sum(value.numel() for value in teachers.state_dict().values())
    assert numbers == config.teachers * config.parameters_per_teacher(FACTS)


def test_votes_alone_start_from_the_prior(train: Callable[..., Generator]) -> None:
    made, purse = plan(warm_start=False), Purse()
    generator = train(made, purse)
    assert purse.counts == [(VOTES, 25), (VOTES, 25), (VOTES, 10)]
    assert (generator.mean == 0.25).all()


def test_the_warm_start_alone_asks_no_teacher(train: Callable[..., Generator]) -> None:
    made, purse = start_alone(), Purse()
    generator = train(made, purse)
    assert purse.counts == [(MEANS, 1), (POOLED, 1), (BY_CLASS, 1)]
    assert not generator.bend.any()


def test_a_plan_from_before_moments_had_their_name_trains_to_its_end_after_an_interruption(
    train: Callable[..., Generator], data: TrainingData
) -> None:
    """It was accepted as `datalens` without votes, and its job, hold and checkpoint still say so."""
    stored = next(each for each in STORED if each["recipe"] == "datalens" and each["facts"]["units_declared"] == 300)
    made, purse = plan_from_json(stored), Purse()
    few = dataclasses.replace(FACTS, records_declared=300)
    run = {"facts": few, "data": TrainingData(data.private_images[:300], data.private_labels[:300], FACTS.classes)}
    with pytest.raises(Cancelled):
        train(made, purse, progress=Reports(("warm_start", 1)), **run)
    assert train(made, purse, attempt=2, **run).factor.any()
    assert purse.counts == [(stage["name"], stage["event"]["count"]) for stage in stored["stages"]]


def test_the_warm_start_can_be_released_without_the_votes(train: Callable[..., Generator], tmp_path: Path) -> None:
    generator = train(plan(), checkpoints=work_in(tmp_path / "both"))
    save_released(generator, tmp_path)
    warm = load_released(tmp_path, which="warm_start")
    alone = train(plan(), Purse(closed=(VOTES,)), checkpoints=work_in(tmp_path / "alone"))
    for name, tensor in alone.state_dict().items():
        assert torch.equal(warm.state_dict()[name], tensor)


def test_an_empty_class_is_trained_on(train: Callable[..., Generator], data: TrainingData) -> None:
    nines = data.private_labels < 9
    some = TrainingData(data.private_images[nines], data.private_labels[nines], FACTS.classes)
    assert torch.isfinite(train(plan(), data=some).bend).all()


def test_colour_is_trained_on(train: Callable[..., Generator], data: TrainingData) -> None:
    facts = dataclasses.replace(FACTS, channels=3)
    tinted = np.stack([data.private_images, data.private_images // 2, 255 - data.private_images], axis=3)
    generator = train(plan(facts), facts=facts, data=TrainingData(tinted, data.private_labels, FACTS.classes))
    assert generator.sample(torch.arange(10), torch.Generator().manual_seed(0)).shape == (10, 3, 8, 8)


@pytest.mark.parametrize("left", [1, 5])
def test_hardly_any_records_still_end_in_a_generator(
    left: int, train: Callable[..., Generator], data: TrainingData
) -> None:
    """Fewer records than were declared are no error: it would tell how many there are."""
    few = TrainingData(data.private_images[:left], data.private_labels[:left], FACTS.classes)
    assert torch.isfinite(train(plan(), data=few).mean).all()


MIXED = {"clusters": 2, "mean_share": 0.2, "pooled_share": 0.3, "class_share": 0.3, "cluster_share": 0.2}


@pytest.mark.parametrize("options", [{}, {"texture": True, **MIXED}], ids=["pixels", "texture and clusters"])
def test_a_records_latent_ignores_the_other_records_to_the_last_bit(
    options: dict[str, Any], train: Callable[..., Generator], data: TrainingData
) -> None:
    generator = train(start_alone(**options))
    labels = torch.from_numpy(data.private_labels)
    whole = datalens.encode(generator, data.private_images, labels)
    assert whole.abs().max() <= 4.0 + (float(generator.centres.abs().max()) if options else 0.0)
    keep = np.arange(len(labels)) != 137
    assert torch.equal(datalens.encode(generator, data.private_images[keep], labels[keep]), whole[keep])
    for index in (0, 777):
        alone = datalens.encode(generator, data.private_images[index : index + 1], labels[index : index + 1])
        assert torch.equal(alone[0], whole[index])


def test_encoding_undoes_drawing(train: Callable[..., Generator]) -> None:
    generator = train(start_alone())
    generator.mean.fill_(0.5)
    generator.factor.mul_(0.05)  # far from the brightness limits
    labels = torch.arange(40) % 10
    z = torch.randn(40, 10, generator=torch.Generator().manual_seed(0)).clamp(-3, 3)
    pixels = (generator.decode(z, labels) * 255).round().to(torch.uint8)[:, 0].numpy()
    found = datalens.encode(generator, pixels, labels)
    strong = torch.linalg.vector_norm(generator.factor, dim=1)[labels] > 0.02  # (40, 10): not lost in 1/255
    assert strong.any()
    assert (found - z)[strong].abs().mean() < 0.1


def test_a_latent_of_texture_holds_what_pixels_alone_do_not(train: Callable[..., Generator]) -> None:
    """Two latents that draw the same pixels and different texture are told apart by their images."""
    generator = train(start_alone(texture=True))
    generator.factor.zero_()
    generator.factor[:, 64:, 0] = 1.0  # the first number of a latent is texture alone
    noise = np.random.default_rng(0).integers(0, 256, (8, 8)).astype(np.uint8)
    images, labels = np.stack([np.full((8, 8), 128, np.uint8), noise]), torch.zeros(2, dtype=torch.int64)
    flat, rough = datalens.encode(generator, images, labels)[:, 0]
    assert rough > flat + 0.1


@pytest.mark.parametrize("options", [{"warm_start": False}, {"texture": True}], ids=["prior", "texture"])
def test_one_records_presence_changes_votes_by_at_most_the_sensitivity(
    options: dict[str, Any],
    train: Callable[..., Generator],
    data: TrainingData,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """From one start, in one round, without noise: a record moves the votes of one teacher of a hundred."""
    monkeypatch.setattr(topagg, "noisy_sum", lambda votes, *_: votes.to(torch.int64))
    made, sums = plan(rounds=1, **options), []
    if "texture" in options:
        begun = train(start_alone(texture=True))
        start = ClassGaussians(begun.mean.double().numpy(), begun.factor.double().numpy())
        monkeypatch.setattr(datalens, "noisy_gaussians", lambda *_: start)
    for without in (-1, 55):
        keep = np.arange(1797) != without
        subset = TrainingData(data.private_images[keep], data.private_labels[keep], FACTS.classes)
        train(made, data=subset, checkpoints=work_in(tmp_path / str(without)))
        reached = load_checkpoint(work_in(tmp_path / str(without)))
        assert reached is not None
        sums.append(torch.cat([release["released_sums"] for release in reached.state["votes"]["stage"]["releases"]]))
    change = (sums[0] - sums[1]).norm(dim=1)  # (60,)
    votes = made.stage(VOTES)
    assert votes is not None
    assert isinstance(votes.event, GaussianEvent)
    assert 0 < change.max() <= votes.event.sensitivity


def test_a_neighbour_attains_the_sensitivity_with_texture(
    train: Callable[..., Generator], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A record beside another turns each vote of its teacher: on texture alone, on pixels alone, and on both together.

    One is dark and flat, and near the student's latents; the other is bright and rough, and far from them.
    """
    monkeypatch.setattr(topagg, "noisy_sum", lambda votes, *_: votes.to(torch.int64))
    made = plan(rounds=1, texture=True, components=3, top_k=3, teachers=1)
    rough = np.where(np.indices((8, 8)).sum(axis=0) % 2, 255, 160).astype(np.uint8)
    images, labels = np.stack([np.full((8, 8), 100, np.uint8), rough]), np.zeros(2, np.int64)
    seen = np.concatenate([images.reshape(2, 64) / 255, texture_coefficients(images, np.eye(64))], axis=1)
    between = seen[1] - seen[0]
    factor = np.zeros((128, 3))
    for number, parts in enumerate(([slice(96, 128)], [slice(32)], [slice(32, 64), slice(64, 96)])):
        for part in parts:
            factor[part, number] = between[part] / 5
        assert np.linalg.norm(factor[:, number]) > 0.01
    start = ClassGaussians(np.tile(seen[0] + between / 5, (10, 1)), np.tile(factor, (10, 1, 1)))  # at -1 and at 4
    monkeypatch.setattr(datalens, "noisy_gaussians", lambda *_: start)
    sums = []
    for own in ([0, 1], [0]):
        data = TrainingData(images[own], labels[own], FACTS.classes)
        train(made, data=data, checkpoints=work_in(tmp_path / str(len(own))))
        reached = load_checkpoint(work_in(tmp_path / str(len(own))))
        assert reached is not None
        sums.append(torch.cat([release["released_sums"] for release in reached.state["votes"]["stage"]["releases"]]))
    change, votes = (sums[0] - sums[1]).norm(dim=1), made.stage(VOTES)
    assert votes is not None
    assert isinstance(votes.event, GaussianEvent)
    assert float(change.max()) == pytest.approx(votes.event.sensitivity) == 2 * 3**0.5


def test_the_images_are_worth_something(train: Callable[..., Generator], data: TrainingData) -> None:
    """At epsilon 20 a linear classifier of synthetic digits reads most of the real ones."""
    rich = open_filter(20.0, 1e-5)
    made = build_plan("datalens", TINY, rich, rich.capacity_nano, FACTS)
    labels = torch.arange(4000) % 10
    images = train(made).sample(labels, torch.Generator().manual_seed(0))
    real = torch.from_numpy(data.private_images)[:, None]
    truth = torch.from_numpy(data.private_labels)
    utility = train_and_test("logistic_regression", images, labels, real, truth, classes=10, seed=0, epochs=10)
    assert utility.accuracy > 0.75
