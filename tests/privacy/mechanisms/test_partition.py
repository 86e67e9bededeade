"""Samples and shards of units: by secret coins, stable under the presence of others, disjoint, keyed, even."""

import hashlib
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import privacy
from privacy.errors import ContributionUnbounded, InvalidParameter, PrivacyError
from privacy.mechanisms import partition
from privacy.mechanisms.partition import NOBODY, deal_passes, poisson_sample
from tests.privacy.gradients.cases import noise

KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))


def rows(n: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (n, 28 * 28), dtype=np.uint8)


def of(ids: list[bytes]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(ids), np.uint8).reshape(len(ids), 4)


@given(ids=st.lists(st.binary(min_size=4, max_size=4), max_size=40), removed=st.integers(0, 39))
def test_presence_of_a_unit_moves_no_other(ids: list[bytes], removed: int) -> None:
    kept = ids[:removed] + ids[removed + 1 :]
    with_it = dict(zip(ids, partition.shard_of(of(ids), KEY, 7).tolist(), strict=True))
    without_it = dict(zip(kept, partition.shard_of(of(kept), KEY, 7).tolist(), strict=True))
    assert all(with_it[unit] == shard for unit, shard in without_it.items())


def test_a_shard_is_the_keyed_hash_of_its_units_bytes() -> None:
    units = rows(50)[:, ::2]  # not contiguous
    hashed = [hashlib.blake2b(row.tobytes(), key=KEY, digest_size=8, person=b"obscura shard") for row in units]
    assert partition.shard_of(units, KEY, 11).tolist() == [
        int.from_bytes(one.digest(), "little") % 11 for one in hashed
    ]


def test_equal_units_meet_and_the_key_decides_where() -> None:
    ids = of([b"anna", b"bert", b"anna", b"carl"] * 10)
    assigned = partition.shard_of(ids, KEY, 1000)
    assert assigned[0] == assigned[2]
    assert not np.array_equal(assigned, partition.shard_of(ids, OTHER_KEY, 1000))


def test_shards_fill_evenly_and_may_stay_empty() -> None:
    assert stats.chisquare(np.bincount(partition.shard_of(rows(20_000), KEY, 100), minlength=100)).pvalue > 1e-3
    assert np.bincount(partition.shard_of(rows(50), KEY, 100), minlength=100).min() == 0


@pytest.mark.parametrize("records", [300, 0])
def test_members_cover_every_record_once(records: int) -> None:
    assigned = partition.shard_of(rows(records), KEY, 40)
    partition.assert_disjoint(rows(records), assigned, 40)
    members = partition.shard_members(assigned, 40)
    assert len(members) == 40
    assert sorted(np.concatenate(members).tolist()) == list(range(records))
    assert all((assigned[indices] == shard).all() for shard, indices in enumerate(members))


def test_disjointness_is_checked() -> None:
    ids = of([b"anna", b"bert", b"anna"])
    assigned = partition.shard_of(ids, KEY, 50)
    partition.assert_disjoint(ids, assigned, 50)
    torn = assigned.copy()
    torn[2] = (torn[2] + 1) % 50
    with pytest.raises(PrivacyError, match="two shards"):
        partition.assert_disjoint(ids, torn, 50)
    with pytest.raises(PrivacyError, match="does not exist"):
        partition.assert_disjoint(ids, np.array([0, 1, 50]), 50)
    with pytest.raises(PrivacyError, match="exactly once"):
        partition.assert_disjoint(ids, assigned[:2], 50)


def test_record_units_hold_label_and_pixels() -> None:
    images = rows(4).reshape(4, 28, 28)
    images[1] = images[0]
    units = partition.record_units(images, np.array([3, 4, 3, 3]))
    assert units.shape == (4, 8 + 784)
    assert units.dtype == np.uint8
    assert (units[0, 8:] == units[1, 8:]).all()
    assert (units[0, :8] != units[1, :8]).any()
    with pytest.raises(InvalidParameter):
        partition.record_units(images, np.array([1]))


# --- one record of each subject ---

Record = tuple[int, bytes]


def chosen(records: list[Record], key: bytes = KEY) -> dict[int, bytes]:
    subjects = np.array([subject for subject, _ in records], dtype=np.int64)
    rows = np.array([list(content) for _, content in records], dtype=np.uint8).reshape(len(records), 3)
    indices = partition.one_record_each(subjects, rows, key)
    partition.assert_one_record_each(subjects[indices])
    assert indices.tolist() == sorted(indices.tolist())
    return {records[index][0]: records[index][1] for index in indices.tolist()}


some_records = st.lists(st.tuples(st.sampled_from([0, 1, 2, 2**62]), st.binary(min_size=3, max_size=3)), max_size=20)


@given(
    records=some_records, extra=st.lists(st.binary(min_size=3, max_size=3), min_size=1, max_size=9), mix=st.randoms()
)
def test_another_subject_changes_nobodys_record(records: list[Record], extra: list[bytes], mix: object) -> None:
    before = chosen(records)
    assert set(before) == {subject for subject, _ in records}
    more = [*records, *((77, content) for content in extra)]
    mix.shuffle(more)  # type: ignore[attr-defined]
    after = chosen(more)
    assert after.pop(77) in extra
    assert after == before


def test_every_record_of_a_subject_is_as_likely() -> None:
    records = [(5, bytes([0, 0, n])) for n in range(8)]
    counts = np.zeros(8)
    for key in range(4000):
        counts[chosen(records, key.to_bytes(16, "big"))[5][2]] += 1
    assert stats.chisquare(counts).pvalue > 1e-6


@pytest.mark.parametrize("subjects", [[1, 1], [1, 2, 3, 2]])
def test_two_records_of_a_subject_are_found(subjects: list[int]) -> None:
    with pytest.raises(ContributionUnbounded):
        partition.assert_one_record_each(np.array(subjects))
    partition.assert_one_record_each(np.unique(subjects))


def test_what_is_out_of_range_is_refused() -> None:
    for key, shards in [(b"short", 3), (bytes(65), 3), (KEY, 0), (KEY, -1), (KEY, 1 << 21)]:
        with pytest.raises(InvalidParameter):
            partition.shard_of(of([b"anna"]), key, shards)
    for units in (np.zeros((3, 0), np.uint8), np.zeros((3, 4)), np.zeros(3, np.uint8)):
        with pytest.raises(InvalidParameter):
            partition.shard_of(units, KEY, 3)
    for subjects, key in [([1], KEY), ([1, 2], b"short")]:
        with pytest.raises(InvalidParameter):
            partition.one_record_each(np.array(subjects), np.zeros((2, 3), np.uint8), key)


# --- sampling ---------------------------------------------------------------------------------------------------------


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
    assert (drawn[:, ::2] & drawn[:, 1::2]).mean() == pytest.approx(probability**2, rel=0.15)
    assert poisson_sample(5, 1.0, stream).tolist() == [0, 1, 2, 3, 4]
    assert poisson_sample(0, 0.5, stream).tolist() == []
    for bad in (0.0, 1.5, math.nan):
        with pytest.raises(InvalidParameter):
            poisson_sample(5, bad, stream)


def test_no_noise_comes_from_torchs_own_generator() -> None:
    """The only draws that are not secret name the public generator that they come from."""
    folder = Path(privacy.__file__).parent
    for path in [*folder.glob("gradients/*.py"), folder / "mechanisms" / "partition.py"]:
        for line in path.read_text().splitlines():
            draws = any(word in line for word in ("torch.rand", "np.random", "torch.normal", "normal_("))
            assert not draws or "generator=generator" in line, (path, line)
