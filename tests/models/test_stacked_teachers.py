"""Teachers without a loop over them: each sees only its shard, and is what it would be alone."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from models import closed_form_teachers as kernel_teachers
from models.closed_form_teachers import KernelTeachers, LinearTeachers
from models.convolutional_teachers import ConvolutionalConfig, ConvolutionalTeachers
from models.shards import Shards
from tests.models.checks import stream

CLASSES, SIDE, TEACHERS = 3, 8, 6
CONFIG = ConvolutionalConfig(CLASSES, 1, SIDE, SIDE, features=4, hidden=5, learning_rate=1e-2)
IMAGES, LABELS = torch.rand(4, SIDE**2, generator=stream(5)), torch.tensor([0, 1, 2, 0])


def shards(without: int | None = None) -> Shards:
    """Six teachers of 30 records; the last has none, and the first none of class 2."""
    labels = torch.arange(30) % CLASSES
    owner = np.random.default_rng(0).integers(0, TEACHERS - 1, 30)
    owner[(labels.numpy() == 2) & (owner == 0)] = 1
    rows = [np.flatnonzero((owner == i) & (np.arange(30) != without)) for i in range(TEACHERS)]
    return Shards(torch.randint(0, 256, (30, SIDE**2), generator=stream(1), dtype=torch.uint8), labels, rows)


def records_of(teacher: int, label: int) -> torch.Tensor:
    records, labels, _ = shards().records_of(slice(teacher, teacher + 1))
    return records[labels == label] / 255


def convolutional(teachers: slice = slice(None), **changes: int) -> ConvolutionalTeachers:
    return ConvolutionalTeachers(CONFIG, shards(), teachers, generator=stream(2), **changes)


def taught(made: ConvolutionalTeachers, teachers: slice = slice(None), steps: int = 3) -> ConvolutionalTeachers:
    rows = stream(3)
    for _ in range(steps):
        made.update(shards().batch(5, rows, teachers), IMAGES, LABELS)
    return made


def kernel(without: int | None = None, teachers: slice = slice(None), **more: Any) -> KernelTeachers:
    """Teachers that have seen 40 synthetic images."""
    made = KernelTeachers(shards(without), CLASSES, more.pop("bandwidth", 2.0), teachers, **more)
    shown = torch.rand(40, SIDE**2, generator=stream(7)), torch.arange(40) % CLASSES
    made.update(shards().batch(5, stream()), *shown)
    return made


def directions(made: LinearTeachers | KernelTeachers | ConvolutionalTeachers) -> torch.Tensor:
    found = torch.zeros(made.teachers, len(IMAGES), SIDE**2)
    for block, part in made.image_gradients(IMAGES, LABELS):
        found[block] = part
    return found


def test_a_linear_teacher_points_to_the_mean_of_its_records_of_the_class():
    found = directions(LinearTeachers(shards(), CLASSES))
    for teacher in range(TEACHERS):
        for image, label in enumerate(LABELS.tolist()):
            own = records_of(teacher, label)
            expected = own.mean(0) - IMAGES[image] if len(own) else torch.zeros(SIDE**2)
            torch.testing.assert_close(found[teacher, image], expected)
    assert not found[0, 2].any()
    assert not found[-1].any()


def test_a_kernel_teacher_climbs_the_witness_of_its_records_against_the_synthetic_images():
    found, made = directions(kernel()), kernel()
    for teacher in range(TEACHERS):
        for image, label in enumerate(LABELS.tolist()):
            own = records_of(teacher, label)
            if not len(own):
                assert not found[teacher, image].any()
                continue
            x = IMAGES[image].clone().requires_grad_()
            shown = made._shown[made._shown_labels == label]
            near = [torch.exp(-(some - x).square().sum(1) / (2 * 2.0**2)).mean() for some in (own, shown)]
            (expected,) = torch.autograd.grad(near[0] - near[1], x)
            unit = 255 * kernel_teachers._GRID * kernel_teachers._WEIGHTS * 2.0**2
            torch.testing.assert_close(found[teacher, image] / unit, expected, rtol=2e-2, atol=2e-4)
    assert not found[-1].any()


def linear(without: int | None) -> LinearTeachers:
    return LinearTeachers(shards(without), CLASSES)


@pytest.mark.parametrize("left_out", [0, 13, 29])
@pytest.mark.parametrize("make", [linear, kernel, partial(kernel, block_bytes=1)])
def test_a_record_changes_its_own_teacher_alone_to_the_last_bit(left_out, make):
    both = [directions(make(without)) for without in (None, left_out)]
    assert [not torch.equal(*pair) for pair in zip(*both, strict=True)].count(True) == 1


def test_a_kernel_teacher_is_what_it_is_alone_whatever_the_block():
    together, alone = directions(kernel()), directions(kernel(teachers=slice(2, 4)))
    assert torch.equal(alone, together[2:4])
    assert torch.equal(directions(kernel(block_bytes=1)), together)
    assert kernel().state_dict() == {}


def test_a_convolutional_teacher_is_what_it_is_alone_whatever_the_block():
    together, one_by_one = taught(convolutional()), taught(convolutional(block_bytes=1))
    torch.testing.assert_close(directions(together), directions(one_by_one), rtol=1e-3, atol=1e-6)
    alone = taught(convolutional(slice(2, 3)), slice(2, 3))
    torch.testing.assert_close(directions(alone)[0], directions(together)[2], rtol=1e-3, atol=1e-6)


def test_convolutional_teachers_abstain_from_classes_they_have_no_record_of():
    found = directions(taught(convolutional()))
    assert not found[0, 2].any()
    assert not found[-1].any()
    assert found[0, 0].any()
    assert found[1:-1].flatten(1).any(1).all()


def test_convolutional_teachers_learn_to_tell_their_records_from_synthetic_images():
    made, rows = convolutional(slice(0, 2)), stream(3)
    batch = shards().batch(5, rows, slice(0, 2))
    before = directions(made)
    for _ in range(30):
        made.update(batch, IMAGES, LABELS)
    x, y = batch.read(slice(0, 2))
    own = made._own(slice(0, 2))
    real = made._logits(own, x, y)
    assert real.mean() > made._logits(own, IMAGES.expand(2, -1, -1), LABELS.expand(2, -1))[:, :2].mean() + 0.3
    assert not torch.equal(before, directions(made))


def test_teachers_come_back_from_their_state():
    made, other = taught(convolutional()), convolutional()
    other.load_state_dict(made.state_dict())
    assert torch.equal(directions(taught(made, steps=1)), directions(taught(other, steps=1)))
    assert LinearTeachers(shards(), CLASSES).state_dict() == {}


# --- their shards -----------------------------------------------------------------------------------------------------


def shards_of(members: list[list[int]], records: int = 10) -> Shards:
    values = torch.arange(records, dtype=torch.float32).unsqueeze(1)
    return Shards(values, torch.zeros(records, dtype=torch.int64), [np.array(m, dtype=np.int64) for m in members])


def test_a_batch_holds_each_teachers_own_records_without_repetition():
    members = [[0, 3, 5, 7], [], [1], [2, 4, 6, 8, 9]]
    for seed in range(20):
        x, _ = shards_of(members).batch(3, stream(seed)).read(slice(0, 4))
        assert x.shape == (4, 3, 1)
        for teacher, own in enumerate(members):
            seen = set(x[teacher, :, 0].tolist())
            assert not own or (seen <= set(own) and len(seen) == min(3, len(own)))


def test_a_part_of_the_teachers_gets_the_rows_that_it_gets_among_all():
    owned = shards_of([[0, 3, 5, 7], [], [1], [2, 4, 6, 8, 9]])
    one, other = stream(4), stream(4)
    for _ in range(5):  # generators stay in step
        whole = owned.batch(3, one).read(slice(0, 4))
        part = owned.batch(3, other, slice(1, 4)).read(slice(0, 3))
        assert all(torch.equal(here, there[1:]) for here, there in zip(part, whole, strict=True))


def test_every_record_is_drawn_equally_often():
    owned, generator = shards_of([list(range(7)), [7]]), stream(0)
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
    assert shards_of([[], [2], []]).active.tolist() == [False, True, False]
    assert shards_of([[], []], records=0).batch(2, torch.Generator()).read(slice(0, 2))[0].shape == (2, 2, 1)


@pytest.mark.parametrize("members", [[[0, 1], [1]], [[10]], [[-1]], []])
def test_a_broken_partition_is_refused(members):
    with pytest.raises(ValueError, match="shard"):
        shards_of(members)


def test_text_forms_show_no_records():
    owned = shards_of([[0, 1]])
    assert "tensor" not in repr(owned) + repr(owned.batch(1, torch.Generator()))
