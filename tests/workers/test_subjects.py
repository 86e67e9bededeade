"""One subject with many records: what it can change in vote sums and in a warm start, and what would let it do more."""

import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.closed_form_teachers import LinearTeachers
from models.shards import Shards
from privacy.errors import ContributionUnbounded
from privacy.mechanisms import topagg
from privacy.mechanisms.noise import derive_key
from privacy.mechanisms.partition import assert_disjoint, one_record_each, record_units, subject_units
from privacy.plans.datalens import TopAggConfig
from privacy.plans.plan import PublicFacts
from privacy.plans.warm_start import BY_CLASS, COUNT_WEIGHT, MEANS, POOLED, QUANTISATION, warm_start_event
from tests.workers.small_trainings import Constant, Purse, small_plan, train
from workers.recipes import records as units
from workers.recipes.coefficients import cosine_basis
from workers.recipes.datalens import shards_of
from workers.recipes.interface import Run, TrainingData
from workers.recipes.records import records_to_sum, teacher_of_each
from workers.recipes.released_sums import noisy_means, noisy_scatter

FACTS = PublicFacts(("a", "b"), 8, 8, 1, 2_000, "subject", subjects_declared=200)
RECORDS = PublicFacts(("a", "b"), 8, 8, 1, 2_000, "record")
SECRET = b"a secret of thirty-two bytes...."
TEACHERS, WAVES, K = 5, 10, 4
Q = QUANTISATION
_LOWEST = np.argsort(np.hypot(*np.indices((8, 8))).ravel(), kind="stable")[:WAVES]
WAVE = np.einsum("wi,wj->ij", *(cosine_basis(8, 8)[at] for at in np.divmod(_LOWEST, 8))).ravel()  # all waves at once
VOTES = TopAggConfig(k=K, c=1e-6, stddev=10.0, beta=1.0, teachers=TEACHERS, dimension=64)
Pixels = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


def dataset(images: Pixels, labels: Any, subjects: Any) -> TrainingData:
    return TrainingData(images, np.asarray(labels, dtype=np.int64), FACTS.classes, np.asarray(subjects, dtype=np.int64))


def together(one: TrainingData, two: TrainingData) -> TrainingData:
    names = ("private_images", "private_labels", "private_subjects")
    return dataset(*(np.concatenate([getattr(one, name), getattr(two, name)]) for name in names))


def pictures(count: int, direction: float, seed: int = 0) -> Pixels:
    """Distinct pictures that are all waves at once, brighter or darker than mid-grey by the same amounts."""
    sizes = np.random.default_rng(seed).uniform(40, 60, (count, 1))
    picture = np.rint(64 + direction * sizes * WAVE / np.abs(WAVE).max())
    return picture.astype(np.uint8).reshape(count, 8, 8)


# --- votes ----------------------------------------------------------------------------------------------------------


def shards_of_subjects(data: TrainingData, facts: PublicFacts = FACTS) -> Shards:
    run = Run(plan=cast(Any, None), facts=facts, data=data, budget=cast(Any, None), secret=SECRET)
    return shards_of(run, TEACHERS, torch.from_numpy(data.private_images.copy()).flatten(1))


def vote_sum(data: TrainingData, facts: PublicFacts = FACTS) -> torch.Tensor:
    """The integers (2, 64) to which noise is added: linear teachers vote on a grey image of each class."""
    shards, coins = shards_of_subjects(data, facts), torch.Generator().manual_seed(1)
    votes = torch.zeros(2, 64, dtype=torch.int64)
    for block, g in LinearTeachers(shards, 2).image_gradients(torch.full((2, 64), 64 / 255), torch.arange(2)):
        votes += topagg.count_votes(g, VOTES, coins, shards.active[block])
    return votes


def norms(change: torch.Tensor) -> list[float]:
    return [math.sqrt(sum(value * value for value in row)) for row in change.tolist()]


# Forty subjects of one record in class a: every teacher has some, and votes for brighter waves.
BRIGHTER = dataset(pictures(40, 1.0), np.zeros(40), np.arange(1, 41))
# A subject with three hundred records: more than all others together, all of them dark.
DARKER = dataset(pictures(300, -1.0, seed=1), np.zeros(300), np.full(300, 999))


def test_a_subject_with_many_records_attains_the_sensitivity_of_votes_and_no_more():
    before, after = vote_sum(BRIGHTER), vote_sum(together(BRIGHTER, DARKER))
    assert before[0].abs().sum() == TEACHERS * K  # all teachers vote on the image of class a
    changes = norms(after - before)
    assert changes == [2 * math.sqrt(K), 0.0]  # one teacher turned round; nobody has a record of class b
    assert changes[0] == pytest.approx(VOTES.sensitivity, rel=1e-12)
    assert changes[0] <= VOTES.sensitivity


def test_sharded_by_record_the_same_subject_would_turn_every_teacher_and_is_caught():
    both = together(BRIGHTER, DARKER)
    change = norms(vote_sum(both, RECORDS) - vote_sum(BRIGHTER, RECORDS))[0]
    assert change == TEACHERS * 2 * math.sqrt(K) > VOTES.sensitivity
    by_record = teacher_of_each(RECORDS, both, SECRET, TEACHERS)
    with pytest.raises(ContributionUnbounded, match="two shards"):
        assert_disjoint(subject_units(both.private_subjects), by_record, TEACHERS)


some_subject = st.tuples(
    st.integers(0, 2**63 - 1),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 10**6)), min_size=1, max_size=12),
)


def of(subjects: list[tuple[int, list[tuple[int, int]]]]) -> TrainingData:
    flat = [(number, label, seed) for number, own in subjects for label, seed in own]
    images = [np.random.default_rng(seed).integers(0, 256, (8, 8), dtype=np.uint8) for _, _, seed in flat]
    pixels = np.stack(images) if images else np.zeros((0, 8, 8), np.uint8)
    return dataset(pixels, [label for _, label, _ in flat], [number for number, _, _ in flat])


@settings(max_examples=60, deadline=None)
@given(
    others=st.lists(some_subject, max_size=8, unique_by=lambda subject: subject[0]),
    extra=some_subject,
    mix=st.randoms(),
)
def test_no_subject_changes_votes_or_sums_by_more_than_their_sensitivities(others, extra, mix):
    """Whatever its records are, and wherever they stand among those of the others."""
    others = [subject for subject in others if subject[0] != extra[0]]
    without, both = of(others), of([*others, extra])
    order = list(range(len(both.private_labels)))
    mix.shuffle(order)
    inside = [place for place in order if place < len(without.private_labels)]  # the others in the same order
    both, without = picked(both, order), picked(without, inside)
    for change in norms(vote_sum(both) - vote_sum(without)):
        assert change <= VOTES.sensitivity
    assert_sums_within_bounds(both, without)


def picked(data: TrainingData, rows: list[int]) -> TrainingData:
    at = np.array(rows, dtype=np.int64)
    return dataset(data.private_images[at], data.private_labels[at], data.private_subjects[at])


def test_an_added_subject_changes_what_one_teacher_sees_and_nothing_else_to_the_last_bit():
    """Batches of every other teacher are the same numbers."""
    seen = []
    for data in (BRIGHTER, together(DARKER, BRIGHTER)):
        batch = shards_of_subjects(data).batch(50, torch.Generator().manual_seed(2))
        seen.append(batch.read(slice(0, TEACHERS)))
    changed = [
        teacher
        for teacher in range(TEACHERS)
        if any(not torch.equal(one[teacher], two[teacher]) for one, two in zip(*seen, strict=True))
    ]
    assert changed == [int(teacher_of_each(FACTS, DARKER, SECRET, TEACHERS)[0])]


# --- sums -----------------------------------------------------------------------------------------------------------


def rows_of(data: TrainingData) -> npt.NDArray[np.float64]:
    basis = np.kron(cosine_basis(8, 4), cosine_basis(8, 4))
    return np.asarray((data.private_images.reshape(-1, 64) / 255.0 - 0.25) @ basis.T)


def sums(data: TrainingData, facts: PublicFacts = FACTS, clip: float = 0.1) -> tuple[Numbers, Numbers, Numbers]:
    """The integers of the three releases over the records that the recipe sums: means, pooled, by class."""
    images, labels = records_to_sum(facts, data, SECRET)
    rows = rows_of(TrainingData(images, labels, data.classes))
    above = 1 << 30  # keeps the counts away from their lower bound
    table = noisy_means(rows, labels, 2, clip, 10.0, Constant(above))
    first = np.column_stack([table[:, 1:] * table[:, :1] / clip * Q, table[:, 0] * COUNT_WEIGHT])
    first = np.rint(first).astype(np.int64) - above
    silent = Constant()
    pooled = noisy_scatter(rows, clip, 10.0, silent)
    own = np.stack([noisy_scatter(rows[labels == label], clip, 10.0, silent) for label in range(2)])
    return first, *(np.rint(scatter * (Q / clip) ** 2).astype(np.int64) for scatter in (pooled, own))


def changes(one: TrainingData, two: TrainingData, facts: PublicFacts = FACTS) -> dict[str, float]:
    """Norms of what one data set's releases are away from the other's, by stage."""
    pairs = zip((MEANS, POOLED, BY_CLASS), sums(one, facts), sums(two, facts), strict=True)
    return {stage: math.sqrt(sum(v * v for v in (b - a).ravel().tolist())) for stage, a, b in pairs}


def assert_sums_within_bounds(one: TrainingData, two: TrainingData) -> None:
    for stage, change in changes(one, two).items():
        assert change <= warm_start_event(stage, 10.0).sensitivity


def test_a_subject_with_many_records_attains_the_sensitivity_of_each_sum_and_no_more():
    """Its records lie far beyond the clip, so the one that is taken counts in full."""
    both = together(DARKER, BRIGHTER)
    assert_sums_within_bounds(BRIGHTER, both)
    for stage, change in changes(BRIGHTER, both).items():
        assert change > 0.99 * warm_start_event(stage, 10.0).sensitivity


def test_summed_record_by_record_the_same_subject_would_add_three_hundred_times_as_much():
    for stage, change in changes(BRIGHTER, together(DARKER, BRIGHTER), RECORDS).items():
        assert change > 290 * warm_start_event(stage, 10.0).sensitivity


def test_a_choice_that_depends_on_other_subjects_would_be_a_violation(monkeypatch):
    """Control: one record of each subject, chosen by where it stands in a shuffle of all records."""

    def by_shuffle(subjects: Numbers, records: Pixels, key: bytes) -> Numbers:
        order = np.random.default_rng(0).permutation(len(subjects))
        return np.sort(order[np.unique(subjects[order], return_index=True)[1]])

    rng = np.random.default_rng(3)
    without = dataset(rng.integers(0, 256, (60, 8, 8), dtype=np.uint8), rng.integers(0, 2, 60), np.arange(60) // 10)
    both = together(DARKER, without)
    assert_sums_within_bounds(without, both)
    monkeypatch.setattr(units, "one_record_each", by_shuffle)
    assert all(change > warm_start_event(stage, 10.0).sensitivity for stage, change in changes(without, both).items())


# --- the whole recipe -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"preset": "published"}, {"preset": "kernel"}], ids=str)
def test_a_broken_partition_is_found_before_anything_is_paid(options, monkeypatch):
    def by_position(rows: Pixels, key: bytes, shards: int) -> Numbers:
        return np.arange(len(rows)) % shards

    monkeypatch.setattr(units, "shard_of", by_position)
    purse = Purse()
    with pytest.raises(ContributionUnbounded, match="two shards"):
        train(small_plan("datalens", FACTS, **options), DARKER, FACTS, budget=purse)
    assert not purse.paid


def test_a_broken_choice_is_found_before_anything_is_paid(monkeypatch):
    def everything(subjects: Numbers, records: Pixels, key: bytes) -> Numbers:
        return np.arange(len(subjects))

    monkeypatch.setattr(units, "one_record_each", everything)
    purse = Purse()
    with pytest.raises(ContributionUnbounded, match="more than one record"):
        train(small_plan("moments", FACTS), DARKER, FACTS, budget=purse)
    assert not purse.paid


def test_the_choice_is_the_recipes_and_its_key_is_the_jobs(monkeypatch):
    monkeypatch.setattr(units, "_RECORDS", 3)
    data = of([(7, [(0, seed) for seed in range(20)]), (8, [(1, 5)])])
    first, labels = records_to_sum(FACTS, data, SECRET)
    again, _ = records_to_sum(FACTS, data, SECRET)
    assert len(first) == 2
    assert sorted(labels.tolist()) == [0, 1]
    assert np.array_equal(first, again)
    others = [records_to_sum(FACTS, data, bytes([n]) * 32)[0] for n in range(10)]
    assert any(not np.array_equal(first, other) for other in others)
    everything, _ = records_to_sum(RECORDS, data, SECRET)
    assert len(everything) == 21
    rows = record_units(data.private_images, data.private_labels)  # all at once
    key = derive_key(SECRET, "contributions")
    assert np.array_equal(first, data.private_images[one_record_each(data.private_subjects, rows, key)])
    assert one_record_each(np.zeros(0, np.int64), np.zeros((0, 9), np.uint8), bytes(32)).shape == (0,)
