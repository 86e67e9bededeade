"""The stacked ensemble equals a loop over modules, keeps teachers apart and can be saved."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from models.shards import Shards
from models.teacher_ensemble import TeacherConfig, TeacherEnsemble
from tests.models.checks import stream

TEACHERS, RECORDS, IMAGES, INPUTS, CLASSES = 7, 40, 6, 12, 3


def config(**fields: object) -> TeacherConfig:
    return dataclasses.replace(TeacherConfig(inputs=INPUTS, classes=CLASSES, hidden=5), **fields)  # type: ignore[arg-type]


def ensemble(cfg: TeacherConfig, block_bytes: int = 2**20, seed: int = 0) -> TeacherEnsemble:
    return TeacherEnsemble(cfg, TEACHERS, generator=stream(seed), block_bytes=block_bytes)


@pytest.fixture
def shards() -> Shards:
    rng = np.random.default_rng(0)
    owner = rng.integers(0, TEACHERS - 1, RECORDS)  # the last teacher has none
    records = torch.randn(RECORDS, INPUTS, generator=stream(1))
    labels = torch.from_numpy(rng.integers(0, CLASSES, RECORDS))
    return Shards(records, labels, [np.flatnonzero(owner == i) for i in range(TEACHERS)])


@pytest.fixture
def fake() -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(IMAGES, INPUTS, generator=stream(2))
    return images, torch.arange(IMAGES) % CLASSES


def collected(teachers: TeacherEnsemble, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.cat([gradient for _, gradient in teachers.image_gradients(images, labels)])


class SlowTeacher(nn.Module):
    """The same network by autograd."""

    def __init__(self, source: TeacherEnsemble, index: int) -> None:
        super().__init__()
        self.config = source.config
        self.first = nn.Parameter(source.first[index].detach().clone())
        if self.config.hidden:
            self.head = nn.Parameter(source.head[index].detach().clone())
            self.bias = nn.Parameter(source.bias[index].detach().clone())

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.cat([x, nn.functional.one_hot(y, self.config.classes).float()], dim=1) @ self.first.T
        if not self.config.hidden:
            return z[torch.arange(len(y)), y]
        return nn.functional.leaky_relu(z, self.config.negative_slope) @ self.head + self.bias


@pytest.mark.parametrize("hidden", [0, 5])
@pytest.mark.parametrize("block_bytes", [1, 2**20])
def test_steps_and_gradients_equal_modules_with_their_own_adam(hidden, block_bytes, shards, fake):
    cfg = config(hidden=hidden, label_smoothing=0.1, weight_decay=0.02)
    fast = ensemble(cfg, block_bytes)
    slow = [SlowTeacher(fast, i) for i in range(TEACHERS)]
    rates = {"lr": cfg.learning_rate, "betas": cfg.betas, "weight_decay": cfg.weight_decay}
    adams = [torch.optim.AdamW(teacher.parameters(), **rates) for teacher in slow]
    for step in range(4):
        batch = shards.batch(4, stream(step))
        fast.update(batch, *fake)
        x, y, mask = batch.read(slice(0, TEACHERS))
        for i, (teacher, adam) in enumerate(zip(slow, adams, strict=True)):
            on_fake = teacher(*fake)
            loss = nn.functional.binary_cross_entropy_with_logits(on_fake, torch.zeros_like(on_fake))
            if mask[i].any():
                on_real = teacher(x[i][mask[i]], y[i][mask[i]])
                target = torch.full_like(on_real, 1 - cfg.label_smoothing)
                loss = loss + nn.functional.binary_cross_entropy_with_logits(on_real, target)
            adam.zero_grad()
            loss.backward()
            adam.step()
    for i, teacher in enumerate(slow):
        torch.testing.assert_close(fast.first[i], teacher.first, rtol=1e-4, atol=2e-5)
        images = fake[0].clone().requires_grad_()
        (expected,) = torch.autograd.grad(nn.functional.logsigmoid(teacher(images, fake[1])).sum(), images)
        torch.testing.assert_close(collected(fast, *fake)[i], expected, rtol=1e-3, atol=1e-4)


def test_blocks_cover_every_teacher_once(fake):
    whole, pieces = collected(ensemble(config()), *fake), collected(ensemble(config(), block_bytes=1), *fake)
    assert whole.shape == (TEACHERS, IMAGES, INPUTS)
    torch.testing.assert_close(whole, pieces)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_changed_record_changes_its_teacher_only(noise, fake):
    """Bit for bit, sizes of shards included: the sensitivity of the votes rests on it."""
    records = torch.randn(RECORDS, INPUTS, generator=stream(3))
    labels = torch.arange(RECORDS) % CLASSES
    members = np.array_split(np.arange(RECORDS), TEACHERS)
    without = [m[1:] if i == 2 else m for i, m in enumerate(members)]
    outcomes = []
    for shard_members in (members, without):
        teachers, rows = ensemble(config(instance_noise=noise)), stream(5)
        owned = Shards(records, labels, shard_members)
        for _ in range(3):
            teachers.update(owned.batch(6, rows), *fake)
        outcomes.append(collected(teachers, *fake))
    same = [torch.equal(one, other) for one, other in zip(*outcomes, strict=True)]
    assert same == [i != 2 for i in range(TEACHERS)]


def test_a_zero_head_starts_undecided(shards, fake):
    for hidden in (0, 5):
        teachers = ensemble(config(hidden=hidden, zero_head=True))
        assert not collected(teachers, *fake).any()
        teachers.update(shards.batch(4, stream(0)), *fake)
        assert collected(teachers, *fake)[: TEACHERS - 1].abs().sum((1, 2)).gt(0).all()


def test_a_saturated_teacher_gives_finite_gradients(shards):
    teachers = ensemble(config())
    gradient = collected(teachers, torch.full((1, INPUTS), 1e6), torch.zeros(1, dtype=torch.int64))
    assert torch.isfinite(gradient).all()


def test_a_restored_ensemble_goes_on_as_if_never_stopped(shards, fake):
    one = ensemble(config())
    one.update(shards.batch(4, stream(0)), *fake)
    saved = {name: value.clone() for name, value in one.state_dict().items()}
    other = ensemble(config(), seed=9)
    other.load_state_dict(saved)
    for teachers in (one, other):
        teachers.update(shards.batch(4, stream(1)), *fake)
    assert torch.equal(collected(one, *fake), collected(other, *fake))
    with pytest.raises(ValueError, match="first"):
        ensemble(config(hidden=4)).load_state_dict(saved)


def test_teachers_learn_to_tell_real_from_synthetic(fake):
    records = torch.randn(RECORDS, INPUTS, generator=stream(4)) + 2.0
    owned = Shards(records, torch.arange(RECORDS) % CLASSES, np.array_split(np.arange(RECORDS), TEACHERS))
    teachers = ensemble(config(learning_rate=1e-2))
    for step in range(50):
        teachers.update(owned.batch(6, stream(step)), *fake)
    assert collected(teachers, *fake).mean() > 0  # towards the records


@pytest.mark.parametrize(
    "fields",
    [{"inputs": 0}, {"hidden": -1}, {"learning_rate": 0.0}, {"label_smoothing": 1.0}, {"instance_noise": -1.0}],
)
def test_an_impossible_teacher_is_refused(fields):
    with pytest.raises(ValueError, match=r"teacher|rate|must be"):
        config(**fields)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_cuda_ensemble_agrees_with_a_cpu_one(shards, fake):
    cpu = ensemble(config())
    gpu = TeacherEnsemble(config(), TEACHERS, generator=torch.Generator("cuda").manual_seed(0), device="cuda")
    gpu.load_state_dict(cpu.state_dict())
    there = collected(gpu, fake[0].cuda(), fake[1].cuda()).cpu()
    assert (there - collected(cpu, *fake)).norm() < 0.02 * there.norm()
