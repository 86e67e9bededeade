"""The class histogram: its sensitivity, its noise, and its way from a paid job to a release that is no generator."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from obscura.wire.words import EntryKind, ReleaseKind
from privacy.accounting.events import event_from_json
from privacy.plans.class_histogram import COUNTS, SENSITIVITY
from privacy.plans.plan import PublicFacts
from service.errors import Conflict, InvalidInput
from tests.privacy.mechanisms.test_discrete_gaussian import fit
from tests.workers.small_trainings import SECRET, plan_of, published_by, train
from workers.recipes import records as units
from workers.recipes.class_histogram import ClassHistogram, count_classes, read_histogram
from workers.recipes.interface import TrainingData
from workers.recipes.records import records_of_rank, records_to_sum

LABELS = st.lists(st.integers(0, 3), max_size=30)


def facts_of(classes: int, **changes: Any) -> PublicFacts:
    names = tuple(f"class {label}" for label in range(classes))
    facts = PublicFacts(names, 2, 2, 1, 100_000, "record")
    return dataclasses.replace(facts, **changes)


@given(LABELS, st.integers(0, 3), st.integers(0, 30), st.integers(2, 5))
def test_one_record_more_leaves_every_other_record_at_its_rank(labels, one, at, ranks):
    def at_ranks(labels: list[int], names: list[int]) -> list[list[int]]:
        images = np.array(names, dtype=np.uint8).reshape(-1, 1, 1).repeat(4, axis=1)
        found = []
        for rank in range(ranks):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(units, "ranks", lambda: ranks)
                patched.setattr(units, "rank", lambda rank=rank: rank)
                own, _ = records_of_rank(images, np.array(labels, dtype=np.int64), SECRET)
            found.append(own[:, 0, 0].tolist())
        return found

    names = list(range(len(labels)))
    less = at_ranks(labels, names)
    more = at_ranks([*labels[:at], one, *labels[at:]], [*names[:at], 255, *names[at:]])
    assert [[name for name in own if name != 255] for own in more] == less
    assert sorted(name for own in less for name in own) == names
    assert sum(own.count(255) for own in more) == 1


@given(LABELS, st.integers(0, 3), st.integers(0, 30))
def test_every_record_more_attains_the_sensitivity_and_none_exceeds_it(labels, one, at):
    less = count_classes(np.array(labels, dtype=np.int64), 4)
    more = count_classes(np.array([*labels[:at], one, *labels[at:]], dtype=np.int64), 4)
    assert np.linalg.norm(more - less) == SENSITIVITY
    assert less.sum() == len(labels)


def test_labels_that_name_no_class_count_nowhere():
    assert count_classes(np.array([0, 5, -1, 1, 2**40]), 3).tolist() == [1, 1, 0]
    assert count_classes(np.array([], dtype=np.int64), 3).tolist() == [0, 0, 0]


def test_a_subject_with_fifty_records_of_all_classes_changes_one_count_by_one():
    facts = facts_of(4, unit="subject", subjects_declared=100)
    labels = np.arange(90) % 4
    subjects = np.concatenate([np.arange(40) % 8, np.full(50, 99)])  # the last fifty records are one person's

    def counted(rows: slice) -> npt.NDArray[np.int64]:
        images = np.repeat(np.arange(90, dtype=np.uint8), 4).reshape(90, 2, 2)
        data = TrainingData(images[rows], labels[rows], facts.classes, subjects[rows])
        return count_classes(records_to_sum(facts, data, SECRET)[1], 4)

    with_them, without = counted(slice(None)), counted(slice(0, 40))
    assert np.linalg.norm(with_them - without) == SENSITIVITY
    assert (with_them.sum(), without.sum()) == (9, 8)
    assert np.linalg.norm(count_classes(labels, 4) - count_classes(labels[:40], 4)) > 20, "what would leak otherwise"


def test_the_noise_is_the_planned_one_and_other_noise_is_recognised():
    facts = facts_of(2000)
    plan = plan_of("class_histogram", {}, facts, 0.5)
    images, stddev = np.zeros((6000, 2, 2), dtype=np.uint8), plan.noise_stddev[COUNTS]
    images[:, 0, 0] = np.arange(6000) % 251
    data = TrainingData(images, np.repeat(np.arange(2000), 3), facts.classes)

    def noise(share: float) -> npt.NDArray[np.int64]:
        stage = dataclasses.replace(plan.stages[0], noise_stddev=stddev * share)
        made = dataclasses.replace(plan, stages=(stage,))
        return np.ravel([train(made, data, facts, attempt=each).noisy_counts for each in (1, 2, 3)]) - 3

    assert fit(noise(1.0), stddev) > 1e-6
    for wrong in (noise(2 / 3), noise(3 / 2), np.zeros(6000, np.int64)):
        assert fit(wrong, stddev) < 1e-12


def test_shown_counts_lie_where_counts_can_lie_and_the_noisy_ones_stay(tmp_path):
    made = ClassHistogram(("a", "b", "c"), (-4, 7, 130), 5.5, units_declared=100)
    made.save(tmp_path)
    first = (tmp_path / "histogram.json").read_bytes()
    made.save(tmp_path)
    assert (tmp_path / "histogram.json").read_bytes() == first
    counts = {"counts": [0, 7, 100], "noisy_counts": [-4, 7, 130]}
    assert read_histogram(tmp_path) == {"classes": ["a", "b", "c"], **counts, "standard_error": 5.5}
    (tmp_path / "histogram.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(ValueError, match="another format; this program reads 1"):
        read_histogram(tmp_path)


def test_a_paid_job_becomes_a_histogram_that_nobody_can_sample(workshop):
    published = published_by(workshop, workshop.train(recipe="class_histogram", epsilon=0.2))
    kinds = [entry.kind for entry in workshop.entries()]
    assert kinds == [EntryKind.OPEN, EntryKind.HOLD, EntryKind.ARM, EntryKind.CHARGE, EntryKind.CAPTURE]
    assert published.kind is ReleaseKind.HISTOGRAM
    directory = workshop.settings.data_dir / published.artifact_dir
    assert {path.name for path in directory.iterdir()} == {"histogram.json", "privacy_card.json", "release.json"}
    histogram: Mapping[str, Any] = published.summary["histogram"]
    assert histogram == read_histogram(directory)
    # 1500 digits, some 150 of each; twelve standard errors are never exceeded.
    assert all(abs(noisy - 150) < 20 + 12 * histogram["standard_error"] for noisy in histogram["noisy_counts"])
    assert len(histogram["counts"]) == 10
    (event,) = [event_from_json(event) for event in published.card["accounting"]["events"]]
    assert (event.count, event.sensitivity) == (1, 1.0)
    assert published.card["epsilon"] <= 0.2
    assert published.receipt is not None
    with pytest.raises(Conflict, match="not a generator"):
        workshop.sample(published.id)


def test_counts_are_not_measured_on_images(workshop):
    with pytest.raises(InvalidInput, match="leave the evaluation dataset out"):
        workshop.train(recipe="class_histogram", epsilon=0.2, evaluate=True)
    assert workshop.balance().reserved_nano == 0
