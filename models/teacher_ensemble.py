"""Thousands of small conditional discriminators trained as one tensor program.

All teachers have one architecture, so their weights are stacked along a leading axis and one batched product replaces a
loop over modules. The network is small enough for its gradients to be written out, which avoids autograd's memory and
bookkeeping. Temporary tensors are cut into blocks of teachers, so the ensemble needs its parameters, their gradients,
two Adam moments and a bounded rest.

Everything here is private: weights, gradients and losses have seen records and leave only through a mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from models.precision import bfloat16_is_fast
from models.teacher_sizes import teacher_parameters


@dataclass(frozen=True)
class TeacherConfig:
    """One teacher: [inputs, one-hot label] -> hidden -> one logit, or a linear head per class when `hidden` is 0.

    Attributes:
        inputs: numbers per record: pixels, or features from a public map.
        hidden: width of the hidden layer; 0 for logit = w_label . x + b_label.
        learning_rate: of Adam.
        betas: of Adam; the defaults are DC-GAN's.
        weight_decay: decoupled (AdamW).
        instance_noise: standard deviation of the Gaussian noise added to real and synthetic inputs in each step.
        label_smoothing: the target of real records is 1 - label_smoothing.
        negative_slope: of the leaky ReLU.
        zero_head: start the last layer at zero, so that a young teacher is undecided.

    Raises:
        ValueError: a field is out of range.
    """

    inputs: int
    classes: int
    hidden: int = 32
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.5, 0.999)
    weight_decay: float = 0.0
    instance_noise: float = 0.0
    label_smoothing: float = 0.0
    negative_slope: float = 0.2
    zero_head: bool = False

    def __post_init__(self) -> None:
        if self.inputs < 1 or self.classes < 1 or self.hidden < 0:
            raise ValueError("a teacher needs at least one input, one class and a non-negative hidden width")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError("the learning rate must be positive and finite")
        for name, low, high in (
            ("weight_decay", 0.0, math.inf),
            ("instance_noise", 0.0, math.inf),
            ("label_smoothing", 0.0, 1.0),
        ):
            if not low <= getattr(self, name) < high:
                raise ValueError(f"{name} must be in [{low}, {high})")

    @property
    def columns(self) -> int:
        """Width of the first layer's input: the record and its one-hot label, which also plays the bias."""
        return self.inputs + self.classes

    @property
    def rows(self) -> int:
        """Height of the first layer: hidden units, or one linear head per class."""
        return self.hidden or self.classes

    @property
    def parameters_per_teacher(self) -> int:
        return teacher_parameters(self.inputs, self.classes, self.hidden)


class RealBatch(Protocol):
    """Each teacher's real records of one step, read block by block (PRIVATE)."""

    @property
    def width(self) -> int:
        """Rows per teacher, padding included."""
        ...

    def read(self, block: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return inputs (n, r, d) float32, labels (n, r) int64 in range also where padded, mask (n, r) bool."""
        ...


class TeacherEnsemble:
    """N teachers with stacked parameters, their Adam moments and their analytic gradients.

    Args:
        config: the architecture and optimiser of each teacher.
        teachers: N.
        generator: of initial weights and instance noise. Keep it secret and apart from released seeds: no privacy rests
            on it, yet nothing else should know it.
        block_bytes: largest temporary tensor, which bounds the number of teachers in a block.
    """

    def __init__(
        self,
        config: TeacherConfig,
        teachers: int,
        *,
        generator: torch.Generator,
        device: torch.device | str = "cpu",
        block_bytes: int = 8 * 2**20,
    ) -> None:
        if teachers < 1:
            raise ValueError("an ensemble needs at least one teacher")
        self.config = config
        self.teachers = teachers
        self.device = torch.device(device)
        self.block_bytes = block_bytes
        self._generator = generator
        self._half = self.device.type == "cuda" and bfloat16_is_fast("cuda")
        c = config
        self.first = nn.Parameter(torch.empty(teachers, c.rows, c.columns, device=self.device))
        tensors = [self.first]
        if c.hidden:
            self.head = nn.Parameter(torch.empty(teachers, c.hidden, device=self.device))
            self.bias = nn.Parameter(torch.zeros(teachers, device=self.device))
            tensors += [self.head, self.bias]
        with torch.no_grad():
            undecided = c.zero_head and not c.hidden  # the first layer is the last
            self.first.uniform_(-1, 1, generator=generator).mul_(0.0 if undecided else c.columns**-0.5)
            if c.hidden:
                self.head.uniform_(-1, 1, generator=generator).mul_(0.0 if c.zero_head else c.hidden**-0.5)
        for tensor in tensors:
            tensor.grad = torch.zeros_like(tensor)
        self._optimizer = torch.optim.AdamW(
            tensors, lr=c.learning_rate, betas=c.betas, weight_decay=c.weight_decay, fused=True
        )

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all teachers' weights; gradients and each Adam moment take as much again."""
        return 4 * self.teachers * self.config.parameters_per_teacher

    @torch.no_grad()
    def update(self, real: RealBatch, fake: torch.Tensor, fake_labels: torch.Tensor) -> None:
        """Take one Adam step of every teacher on its own records against a synthetic batch that all of them share.

        Each teacher descends mean BCE(real, 1 - smoothing) + mean BCE(fake, 0), means over its own unpadded records and
        over the m synthetic ones. A teacher without records learns from the synthetic batch alone: exclude it from
        votes.

        Args:
            real: each teacher's records of this step (PRIVATE).
            fake: (m, d) inputs.
            fake_labels: (m,) int64.
        """
        c = self.config
        shared = self._with_labels(self._noised(fake), fake_labels)  # (m, d + C)
        target = 1.0 - c.label_smoothing
        for block in self._blocks(max(real.width * c.columns, (len(fake) + real.width) * c.rows * 4)):
            x, y, mask = real.read(block)
            x = self._with_labels(self._noised(x), y)  # (n, r, d + C)
            a, slope = self._activate(self._product(x, self.first[block].transpose(1, 2)), y, block)  # (n, r, h) each
            count = mask.sum(1, keepdim=True).clamp_(min=1)
            delta = (torch.sigmoid(self._logits(a, y, block)) - target) * mask / count  # (n, r)
            weights = self.first[block]
            n, h, columns = weights.shape
            z = self._product(shared, weights.reshape(n * h, columns).T).view(len(fake), n, h).transpose(0, 1)
            labels = fake_labels.expand(n, -1)
            a_fake, slope_fake = self._activate(z, labels, block)  # (n, m, h) each
            delta_fake = torch.sigmoid(self._logits(a_fake, labels, block)) / len(fake)  # (n, m)
            gradient = self._gradient(self.first)[block]
            gradient.copy_(self._product((slope * delta.unsqueeze(2)).transpose(1, 2), x))
            # The synthetic rows are one matrix for all teachers: expanding it costs nothing.
            back = (slope_fake * delta_fake.unsqueeze(2)).transpose(1, 2).contiguous()  # (n, h, m)
            if self._half:
                gradient.add_(self._product(back, shared))
            else:
                gradient.baddbmm_(back, shared.expand(n, -1, -1))
            if c.hidden:
                head = torch.einsum("nr,nrh->nh", delta, a) + torch.einsum("nm,nmh->nh", delta_fake, a_fake)
                self._gradient(self.head)[block] = head
                self._gradient(self.bias)[block] = delta.sum(1) + delta_fake.sum(1)
        self._optimizer.step()

    @torch.no_grad()
    def image_gradients(self, images: torch.Tensor, labels: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield blocks of teachers with d log D_i / d x_j, (n, m, d) float32, of images x (m, d) of classes (m,)
        (PRIVATE).

        They point to where x_j looks more real.
        """
        c = self.config
        x = self._with_labels(images, labels)  # (m, d + C)
        for block in self._blocks(len(images) * (c.inputs + 3 * c.rows)):
            weights = self.first[block]
            n, h, columns = weights.shape
            z = self._product(x, weights.reshape(n * h, columns).T).view(len(images), n, h).transpose(0, 1)
            y = labels.expand(n, -1)
            a, slope = self._activate(z, y, block)  # (n, m, h) each
            doubt = torch.sigmoid(-self._logits(a, y, block))  # 1 - D, without cancellation
            yield block, self._product(slope * doubt.unsqueeze(2), weights[:, :, : c.inputs])

    @torch.no_grad()
    def image_logits(self, images: torch.Tensor, labels: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield logits that images (m, d) are real, (n, m), for blocks of teachers (PRIVATE)."""
        x = self._with_labels(images, labels)  # (m, d + C)
        for block in self._blocks(3 * len(images) * self.config.rows):
            y = labels.expand(len(self.first[block]), -1)
            a, _ = self._activate(self._product(x, self.first[block].transpose(1, 2)), y, block)
            yield block, self._logits(a, y, block)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return weights, Adam moments and step count (PRIVATE); they share memory with the ensemble."""
        return stacked_state(dict(self._named()), self._optimizer)

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restore the result of `state_dict`.

        Raises:
            ValueError: a tensor is missing or has another shape.
        """
        load_stacked(state, dict(self._named()), self._optimizer)

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        named = [("first", self.first)]
        return [*named, ("head", self.head), ("bias", self.bias)] if self.config.hidden else named

    @staticmethod
    def _gradient(tensor: nn.Parameter) -> torch.Tensor:
        assert tensor.grad is not None  # allocated once, filled by `update`
        return tensor.grad

    def _blocks(self, numbers_per_teacher: int) -> Iterator[slice]:
        size = max(1, min(self.teachers, self.block_bytes // (4 * numbers_per_teacher)))
        return (slice(start, min(start + size, self.teachers)) for start in range(0, self.teachers, size))

    def _noised(self, x: torch.Tensor) -> torch.Tensor:
        if not self.config.instance_noise:
            return x
        noise = torch.empty_like(x).normal_(std=self.config.instance_noise, generator=self._generator)
        return noise.add_(x)

    def _with_labels(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        joined = x.new_zeros(*x.shape[:-1], self.config.columns)
        joined[..., : self.config.inputs] = x
        return joined.scatter_(-1, (labels + self.config.inputs).unsqueeze(-1), 1.0)

    def _product(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        if self._half:
            return (left.bfloat16() @ right.bfloat16()).float()
        return left @ right

    def _activate(self, z: torch.Tensor, labels: torch.Tensor, block: slice) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.config.hidden:
            return z, nn.functional.one_hot(labels, self.config.classes).to(z.dtype)
        negative = self.config.negative_slope
        head = self.head[block].unsqueeze(1).expand_as(z)
        slope = torch.ops.aten.leaky_relu_backward(head, z, negative, False)  # head where z > 0, head * negative else
        return nn.functional.leaky_relu(z, negative), slope

    def _logits(self, a: torch.Tensor, labels: torch.Tensor, block: slice) -> torch.Tensor:
        if not self.config.hidden:
            return a.gather(2, labels.unsqueeze(2)).squeeze(2)
        return torch.einsum("nrh,nh->nr", a, self.head[block]) + self.bias[block].unsqueeze(1)


def stacked_state(parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return weights, Adam moments and step counts by name (PRIVATE); they share memory with the teachers."""
    state = {name: tensor.detach() for name, tensor in parameters.items()}
    for name, tensor in parameters.items():
        state |= {f"{name}.{key}": value for key, value in optimizer.state.get(tensor, {}).items()}
    return state


def load_stacked(
    state: Mapping[str, torch.Tensor], parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> None:
    """Restore the result of `stacked_state`.

    Raises:
        ValueError: a tensor is missing or has another shape.
    """
    for name, tensor in parameters.items():
        if name not in state or state[name].shape != tensor.shape:
            raise ValueError(f"the state has no {name} of shape {tuple(tensor.shape)}")
    for name, tensor in parameters.items():
        tensor.data.copy_(state[name])
        optimizer.state.pop(tensor, None)
        if f"{name}.step" in state:
            moments = {key: state[f"{name}.{key}"].to(tensor).clone() for key in ("exp_avg", "exp_avg_sq")}
            step = state[f"{name}.step"].to(tensor.device, torch.float32).clone()
            optimizer.state[tensor] = {"step": step, **moments}
