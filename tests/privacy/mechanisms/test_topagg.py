"""TopAgg: equal to a slow loop over the paper's lines, with the sensitivity that is paid for; its parameters."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from privacy.errors import InvalidParameter
from privacy.mechanisms import topagg
from privacy.mechanisms.noise import SecureNoise
from privacy.mechanisms.partition import shard_members, shard_of
from privacy.mechanisms.topagg import count_votes, noisy_sum, threshold, topk_sto_sign_grad
from privacy.plans.datalens import TopAggConfig

TINY = torch.finfo(torch.float32).tiny


def config(**changes: Any) -> TopAggConfig:
    base: dict[str, Any] = {"k": 3, "c": 0.5, "stddev": 10.0, "beta": 0.6, "teachers": 8, "dimension": 6}
    return TopAggConfig(**{**base, **changes})


def coins(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_gradients(teachers: int = 8, images: int = 4, dimension: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(teachers, images, dimension, generator=coins(seed))


def votes_of_each(gradients: Tensor, cfg: TopAggConfig, seed: int = 1, active: Tensor | None = None) -> Tensor:
    """The votes (N, m, d) of one teacher after the other, while all others abstain: the coins are the same."""
    may = torch.ones(len(gradients), dtype=torch.bool) if active is None else active
    alone = torch.eye(len(gradients), dtype=torch.bool) & may
    return torch.stack([count_votes(gradients, cfg, coins(seed), mask.to(gradients.device)) for mask in alone])


def slow_votes(gradients: Tensor, cfg: TopAggConfig, generator: torch.Generator) -> Tensor:
    """Algorithm 2, line by line, one coordinate at a time; ties go to the lower index."""
    seed = int(torch.randint(1 << 62, (1,), generator=generator))
    teachers, images, d = gradients.shape
    u = torch.rand(teachers * images, d, generator=torch.Generator().manual_seed(seed)).view(gradients.shape)
    votes = torch.zeros(gradients.shape, dtype=torch.int8)
    for i in range(teachers):
        for image in range(images):
            g = np.asarray(gradients[i, image], dtype=np.float32)
            if not np.isfinite(g).all():
                continue
            h = sorted(range(d), key=lambda j: (-abs(g[j]), j))[: cfg.votes_max]
            c = np.float32(cfg.c)
            clipped = np.clip(g, -c, c)
            largest = np.abs(clipped).max()
            for j in h:
                if abs(g[j]) < TINY:
                    continue
                by_chance = 2 * float(u[i, image, j]) - 1 < clipped[j] / largest
                up = by_chance if cfg.stochastic_sign else g[j] > 0
                votes[i, image, j] = 1 if up else -1
    return votes


SWITCHES = [{}, {"c": 1e-5}, {"c": 100.0}, {"stochastic_sign": False}, {"top_k": False}, {"k": 6}, {"k": 1}]


@pytest.mark.parametrize("switches", SWITCHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_votes_equal_the_slow_loop(switches: dict[str, Any], dtype: torch.dtype) -> None:
    gradients = random_gradients(8, 30)
    gradients[2] = gradients[2].round()  # ties
    gradients[3, :, ::2] = 0.0
    gradients[4, 0] = 0.0
    gradients[5, 1, 2] = math.nan
    gradients[5, 2, 3] = -math.inf
    gradients[6] = 1.0  # nothing but ties
    gradients = gradients.to(dtype)
    cfg = config(**switches)
    seed = int(torch.randint(1 << 62, (1,), generator=coins()))
    fast = topk_sto_sign_grad(gradients.float().reshape(-1, 6), cfg, seed).view(gradients.shape)
    assert fast.dtype == torch.int8
    assert torch.equal(fast, slow_votes(gradients.float(), cfg, coins()))
    assert torch.equal(count_votes(gradients, cfg, coins()), fast.sum(dim=0, dtype=torch.int32))


@pytest.mark.parametrize(("block", "threads"), [(100, 1), (1, 2), (1000, 2), (1 << 20, 2)])
def test_counts_do_not_hold_all_votes_yet_equal_their_sum(block, threads, monkeypatch):
    monkeypatch.setitem(topagg._BLOCK, "cpu", block)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        gradients = random_gradients(40, 3, 50)
        cfg = config(teachers=40, dimension=50, k=9)
        votes = votes_of_each(gradients, cfg)
        assert torch.equal(count_votes(gradients, cfg, coins()), votes.sum(dim=0, dtype=torch.int32))
        assert int(votes.abs().sum(dim=2).max()) == int(votes.abs().sum(dim=2).min()) == 9
        signs = votes_of_each(gradients, config(teachers=40, dimension=50, k=9, stochastic_sign=False))
        assert torch.equal(votes.abs(), signs.abs())
        assert torch.get_num_threads() == threads  # as the caller had it
    finally:
        torch.set_num_threads(before)


numbers = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 1e-5, 1e-45, 3e38, math.nan, math.inf, -math.inf]),
    st.floats(-2, 2, width=32),
)


def tensors(teachers: int) -> st.SearchStrategy[Tensor]:
    size = teachers * 2 * 6
    return st.lists(numbers, min_size=size, max_size=size).map(lambda v: torch.tensor(v).view(teachers, 2, 6))


@given(
    gradients=tensors(3),
    changed=tensors(1),
    teacher=st.integers(0, 2),
    k=st.integers(1, 6),
    c=st.sampled_from([1e-5, 0.5, 10.0]),
    switches=st.tuples(st.booleans(), st.booleans()),
    leaves=st.booleans(),
    seed=st.integers(0, 100),
)
@settings(max_examples=100, deadline=None)
def test_one_teacher_moves_the_vote_sum_by_at_most_the_sensitivity(
    gradients, changed, teacher, k, c, switches, leaves, seed
):
    """For the same coins, whatever the change: another gradient, a broken one, or an emptied shard."""
    cfg = config(teachers=3, k=k, c=c, top_k=switches[0], stochastic_sign=switches[1])
    neighbour, active = gradients.clone(), torch.ones(3, dtype=torch.bool)
    neighbour[teacher], active[teacher] = changed[0], not leaves
    difference = count_votes(gradients, cfg, coins(seed)) - count_votes(neighbour, cfg, coins(seed), active)
    assert int(difference.square().sum(dim=1).max()) <= 4 * cfg.votes_max <= cfg.sensitivity**2 * (1 + 1e-12)
    others = [i for i in range(3) if i != teacher]
    before, after = votes_of_each(gradients, cfg, seed), votes_of_each(neighbour, cfg, seed, active)
    assert torch.equal(before[others], after[others])


@pytest.mark.parametrize("switches", [{}, {"top_k": False}])
def test_a_teacher_that_turns_round_attains_the_sensitivity(switches: dict[str, Any]) -> None:
    cfg = config(c=1e-5, **switches)
    gradients = random_gradients()
    neighbour = gradients.clone()
    neighbour[5] *= -1
    difference = count_votes(gradients, cfg, coins()) - count_votes(neighbour, cfg, coins())
    assert difference.float().norm(dim=1) == pytest.approx([cfg.sensitivity] * 4)


def test_a_record_changes_the_votes_of_one_teacher() -> None:
    """From records to votes: leaving out any record moves one shard, one teacher, at most 2 sqrt(k)."""
    records = np.random.default_rng(0).integers(0, 256, (40, 6), dtype=np.uint8)
    cfg = config(teachers=12)

    def votes(kept: np.ndarray) -> Tensor:
        members = shard_members(shard_of(kept, b"0123456789abcdef", 12), 12)
        sums = [torch.from_numpy(kept[indices].astype(np.float32) - 127.5).sum(dim=0) for indices in members]
        active = torch.tensor([len(indices) > 0 for indices in members])
        return votes_of_each(torch.stack(sums)[:, None], cfg, active=active)

    everyone = votes(records)
    for left_out in range(len(records)):
        difference = everyone - votes(np.delete(records, left_out, axis=0))
        assert int((difference != 0).any(dim=(1, 2)).sum()) <= 1
        assert int(difference.sum(dim=0).square().sum()) <= 4 * cfg.k


def test_votes_are_unbiased_for_the_clipped_normalised_gradient() -> None:
    g = torch.tensor([0.9, -0.3, 0.2, 0.0, -0.05, 0.01])
    cfg = config(teachers=100_000, k=5, c=0.4)
    mean = count_votes(g.expand(100_000, 1, 6), cfg, coins())[0] / 100_000
    g_hat = torch.tensor([1.0, -0.75, 0.5, 0.0, -0.125, 0.025])  # clipped at 0.4, divided by 0.4
    assert mean.tolist() == pytest.approx(g_hat.tolist(), abs=0.015)


def test_values_at_the_edge_of_single_precision_stay_within_one_vote() -> None:
    gradients = torch.tensor([[[1e-45, TINY, -TINY, 0.0, 3e38, -3e38], [1e-45, 2e-45, 0.0, 0.0, 0.0, 0.0]]])
    votes = votes_of_each(gradients, config(k=4, teachers=1, stochastic_sign=False))
    assert votes.tolist() == [[[0, 1, -1, 0, 1, -1], [0, 0, 0, 0, 0, 0]]]


@pytest.mark.parametrize("shape", [(0, 4, 6), (8, 0, 6), (0, 0, 6)])
def test_no_teachers_or_no_images(shape: tuple[int, ...]) -> None:
    assert count_votes(torch.zeros(shape), config(), coins()).tolist() == torch.zeros(shape[1:]).tolist()


def test_parts_of_the_teachers_add_up() -> None:
    gradients, cfg = random_gradients(), config(stochastic_sign=False)
    first, second = (count_votes(part, cfg, coins()) for part in (gradients[:3], gradients[3:]))
    assert torch.equal(first + second, count_votes(gradients, cfg, coins()))


def test_the_callers_generator_moves_alike_whatever_the_gradients() -> None:
    """Otherwise what is drawn from it later would depend on private data."""
    states = []
    for gradients in (random_gradients(), torch.zeros(8, 4, 6), torch.full((8, 4, 6), math.nan)):
        generator = coins()
        count_votes(gradients, config(), generator)
        states.append(generator.get_state())
    assert all(torch.equal(states[0], state) for state in states)


def test_release_adds_the_stream_s_noise_and_thresholds_it() -> None:
    cfg = config(stddev=3.0)
    votes = torch.randint(-8, 9, (50, 6), generator=coins(), dtype=torch.int32)
    g_star = noisy_sum(votes, cfg, SecureNoise(bytes(32)))
    drawn = SecureNoise(bytes(32)).discrete_gaussian((50, 6), 3.0)
    assert torch.equal(g_star, votes + torch.from_numpy(drawn))
    g_bar = threshold(g_star, cfg)
    expected = [[1.0 if v >= 4.8 else -1.0 if v <= -4.8 else 0.0 for v in row] for row in g_star.tolist()]
    assert g_bar.tolist() == expected
    assert {-1.0, 0.0, 1.0} == set(g_bar.flatten().tolist())
    at_the_quorum = threshold(torch.tensor([[3, 4, 5, -3, -4, -5]]), config(beta=0.5))
    assert at_the_quorum.tolist() == [[0.0, 1.0, 1.0, 0.0, -1.0, -1.0]]
    assert threshold(torch.full((1, 6), 4), config(threshold=False)).tolist() == [[0.5] * 6]  # the noisy mean vote


def test_gradients_masks_and_votes_that_do_not_fit_are_refused() -> None:
    floats, integers = ((8, 6), (8, 4, 5), (9, 4, 6)), torch.zeros(8, 4, 6, dtype=torch.int32)
    for gradients in (*map(torch.zeros, floats), integers):
        with pytest.raises(InvalidParameter):
            count_votes(gradients, config(), coins())
    for mask in (torch.ones(7, dtype=torch.bool), torch.ones(8)):
        with pytest.raises(InvalidParameter):
            count_votes(random_gradients(), config(), coins(), mask)
    for votes in (torch.zeros(4, 6), torch.zeros(4, 5, dtype=torch.int32), torch.zeros(6, dtype=torch.int64)):
        with pytest.raises(InvalidParameter):
            noisy_sum(votes, config(), SecureNoise(bytes(32)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("switches", [{"stochastic_sign": False}, {"c": 1e-5}, {"top_k": False, "c": 1e-5}])
def test_the_gpu_counts_the_same_votes(switches: dict[str, Any]) -> None:
    gradients = random_gradients(60, 5, 784)
    gradients[3, :, 5] = math.nan
    gradients[4] = gradients[4].round()
    gradients[5] = 0.0
    cfg = config(teachers=60, dimension=784, k=200, **switches)
    here, there = votes_of_each(gradients, cfg), votes_of_each(gradients.cuda(), cfg).cpu()
    assert torch.equal(here, there)
    assert int(there.abs().sum(dim=2, dtype=torch.int32).max()) <= cfg.votes_max


# --- public parameters ---


@pytest.mark.parametrize(("k", "top_k"), [*((k, True) for k in (1, 2, 3, 200, 350, 784)), (3, False)])
def test_sensitivity_is_twice_the_root_of_the_votes_rounded_up(k: int, top_k: bool) -> None:
    cfg = config(k=k, dimension=784, top_k=top_k)
    assert cfg.votes_max == (k if top_k else 784)
    assert Fraction(cfg.sensitivity) ** 2 >= 4 * cfg.votes_max
    assert cfg.sensitivity == pytest.approx(2 * math.sqrt(cfg.votes_max), rel=1e-15)


OUT_OF_RANGE: dict[str, list[Any]] = {
    "k": [0, 7, 1.5, True],
    "teachers": [0, 1 << 21],
    "dimension": [0],
    "c": [0.0, 1e-40, math.nan],
    "stddev": [-1.0, math.inf],
    "beta": [0.0, 1.1],
}


@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name, values in OUT_OF_RANGE.items() for bad in values])
def test_parameters_out_of_range_are_refused(name: str, bad: object) -> None:
    with pytest.raises(InvalidParameter) as caught:
        config(**{name: bad})
    assert caught.value.name in (name, "k")
    with pytest.raises(InvalidParameter):  # too narrow for integers, so it has no event
        config(stddev=1.5).event(1)
