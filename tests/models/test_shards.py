"""Shards are disjoint, batches have a public shape and each teacher sees only its own records."""

import numpy as np
import pytest
import torch

from models.shards import Shards
from tests.models.checks import stream


def shards(members: list[list[int]], records: int = 10) -> Shards:
    values = torch.arange(records, dtype=torch.float32).unsqueeze(1)
    return Shards(values, torch.zeros(records, dtype=torch.int64), [np.array(m, dtype=np.int64) for m in members])


def test_a_batch_holds_each_teachers_own_records_without_repetition():
    members = [[0, 3, 5, 7], [], [1], [2, 4, 6, 8, 9]]
    for seed in range(20):
        x, _ = shards(members).batch(3, stream(seed)).read(slice(0, 4))
        assert x.shape == (4, 3, 1)
        for teacher, own in enumerate(members):
            seen = set(x[teacher, :, 0].tolist())
            assert not own or (seen <= set(own) and len(seen) == min(3, len(own)))


def test_a_part_of_the_teachers_gets_the_rows_that_it_gets_among_all():
    owned = shards([[0, 3, 5, 7], [], [1], [2, 4, 6, 8, 9]])
    one, other = stream(4), stream(4)
    for _ in range(5):  # generators stay in step
        whole = owned.batch(3, one).read(slice(0, 4))
        part = owned.batch(3, other, slice(1, 4)).read(slice(0, 3))
        assert all(torch.equal(here, there[1:]) for here, there in zip(part, whole, strict=True))


def test_every_record_is_drawn_equally_often():
    owned, generator = shards([list(range(7)), [7]]), stream(0)
    counts = torch.zeros(10)
    for _ in range(3000):
        x, _ = owned.batch(2, generator).read(slice(0, 1))
        counts[x[0, :, 0].long()] += 1
    assert (counts[:7] / 3000 - 2 / 7).abs().max() < 0.04


def test_bytes_become_fractions():
    owned = Shards(torch.tensor([[255, 0]], dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), [np.array([0])])
    x, _ = owned.batch(2, torch.Generator()).read(slice(0, 1))
    assert x[0, 0].tolist() == [1.0, 0.0]


def test_empty_shards_are_inactive():
    assert shards([[], [2], []]).active.tolist() == [False, True, False]
    assert shards([[], []], records=0).batch(2, torch.Generator()).read(slice(0, 2))[0].shape == (2, 2, 1)


@pytest.mark.parametrize("members", [[[0, 1], [1]], [[10]], [[-1]], []])
def test_a_broken_partition_is_refused(members):
    with pytest.raises(ValueError, match="shard"):
        shards(members)


def test_text_forms_show_no_records():
    owned = shards([[0, 1]])
    assert "tensor" not in repr(owned) + repr(owned.batch(1, torch.Generator()))
