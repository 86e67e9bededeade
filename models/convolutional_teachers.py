"""Convolutional discriminators as published by DataLens' authors, one per shard, stacked in one tensor program.

Two convolutions and two dense layers, each with the class as input (Wang et al. 2021, arXiv:2103.11109). The teachers'
weights are stacked along a leading axis, so one batched product replaces a loop over networks. It runs in blocks of
teachers, which bounds temporary tensors. BatchNorm normalises one teacher's real images and synthetic images
separately, which is allowed because a teacher is private anyway. Everything in here is private.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.portable.drawing import ImageShape
from models.shards import ShardBatch, Shards, blocks
from models.sizes import convolutional_sizes

_DEVIATION, _KERNEL, _LEAK = 0.02, 5, 0.2
_BETAS = (0.5, 0.999)  # of Adam
_BLOCK_BYTES = {"cpu": 64 * 2**20, "cuda": 2**30}


@dataclass(frozen=True)
class ConvolutionalConfig(ImageShape):
    """The architecture of one teacher; the defaults are the published ones.

    Attributes:
        features: channels of the second convolution; the first has one for each image channel and each class.
    """

    features: int = 32
    hidden: int = 256
    learning_rate: float = 1e-3


class ConvolutionalTeachers:
    """Teachers with stacked weights and their Adam moments. PRIVATE.

    A teacher abstains from classes of which it has no record. It ignores synthetic images of these classes, because it
    would learn the class itself as a sign of a synthetic image.

    Args:
        shards: determine the classes in which each teacher may vote. PRIVATE.
        generator: a CPU generator for the initial weights. A teacher's weights do not depend on the slice.
        block_bytes: size of temporary tensors, which limits the number of teachers per block; None: a size that suits
            the device.
    """

    def __init__(
        self,
        config: ConvolutionalConfig,
        shards: Shards,
        teachers: slice = slice(None),
        *,
        generator: torch.Generator,
        device: torch.device | str = "cpu",
        block_bytes: int | None = None,
    ) -> None:
        self.config = c = config
        self.device = torch.device(device)
        self._there = (shards.counts(c.classes, teachers) > 0).to(self.device)  # (N, classes)
        self.teachers = len(self._there)
        seeds = torch.randint(1 << 62, (shards.teachers,), generator=generator)[teachers].tolist()
        shapes = convolutional_sizes(c.channels, c.height, c.width, c.classes, c.features, c.hidden)
        self._parameters = {
            name: nn.Parameter(torch.full((self.teachers, *shape), float(name in ("scale1", "scale2"))))
            for name, shape in shapes.items()
        }
        with torch.no_grad():
            for place, seed in enumerate(seeds):
                stream = torch.Generator().manual_seed(seed)
                for name in ("conv1", "conv2", "dense", "head"):
                    self._parameters[name][place].normal_(std=_DEVIATION, generator=stream)
        for name, tensor in self._parameters.items():
            self._parameters[name] = moved = nn.Parameter(tensor.detach().to(self.device))
            moved.grad = torch.zeros_like(moved)
        self._optimizer = torch.optim.Adam(self._parameters.values(), lr=c.learning_rate, betas=_BETAS, fused=True)
        # Per image: four bytes for each number of the patches, and the same for their gradients.
        cells = -(-c.height // 2) * -(-c.width // 2)
        patches = _KERNEL**2 * (c.channels * cells + shapes["conv1"][0] * shapes["dense"][0] // c.features)
        self._bytes_each = 4 * (2 * patches + 6 * shapes["conv1"][0] * cells)
        self._block_bytes = block_bytes or _BLOCK_BYTES.get(self.device.type, _BLOCK_BYTES["cuda"])

    def update(self, real: ShardBatch, fake: Tensor, fake_labels: Tensor) -> None:
        """Train every teacher for one Adam step on its own records and on synthetic images (m, d) that all share.

        A shard smaller than the batch repeats its records.
        """
        images = real.private_rows.shape[1] + len(fake)
        for block in blocks(self.teachers, self._block_bytes // (self._bytes_each * images)):
            x, y = real.read(block)  # (n, r, d), (n, r)
            own = self._own(block)
            spoken_of = self._there[block][:, fake_labels].float()  # (n, m)
            with torch.enable_grad():
                true = self._logits(own, x, y)  # (n, r)
                made = self._logits(own, fake.expand(len(x), -1, -1), fake_labels.expand(len(x), -1))  # (n, m)
                weight = spoken_of / spoken_of.sum(1, keepdim=True).clamp(min=1)
                loss = functional.softplus(-true).mean(1).sum() + (functional.softplus(made) * weight).sum()
                slopes = torch.autograd.grad(loss, list(own.values()))
            for name, slope in zip(own, slopes, strict=True):
                gradient = self._parameters[name].grad
                assert gradient is not None  # allocated once
                gradient[block] = slope
        self._optimizer.step()

    def image_gradients(self, images: Tensor, labels: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield each block of teachers and all d log D_i / d x_j: (n, m, d), zero where a teacher abstains. PRIVATE."""
        for block in blocks(self.teachers, self._block_bytes // (self._bytes_each * 2 * len(images))):
            n = block.stop - block.start
            with torch.enable_grad():
                shown = images.repeat(n, 1, 1).requires_grad_()
                said = self._logits(self._own(block), shown, labels.expand(n, -1))
                (slope,) = torch.autograd.grad(-functional.softplus(-said).sum(), shown)
            yield block, slope * self._there[block][:, labels, None]

    def state_dict(self) -> dict[str, Tensor]:
        """Return weights and Adam moments, stacked by teacher, and step counts, without copying them. PRIVATE."""
        state = {name: tensor.detach() for name, tensor in self._parameters.items()}
        for name, tensor in self._parameters.items():
            state |= {f"{name}.{key}": value for key, value in self._optimizer.state.get(tensor, {}).items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the result of `state_dict`; raise ValueError if a tensor is missing or has another shape."""
        for name, tensor in self._parameters.items():
            if name not in state or state[name].shape != tensor.shape:
                raise ValueError(f"the state has no {name} of shape {tuple(tensor.shape)}")
        for name, tensor in self._parameters.items():
            tensor.data.copy_(state[name])
            self._optimizer.state.pop(tensor, None)
            if f"{name}.step" in state:
                moments = {key: state[f"{name}.{key}"].to(tensor).clone() for key in ("exp_avg", "exp_avg_sq")}
                step = state[f"{name}.step"].to(tensor.device, torch.float32).clone()
                self._optimizer.state[tensor] = {"step": step, **moments}

    def _own(self, block: slice) -> dict[str, Tensor]:
        return {name: tensor.detach()[block].requires_grad_() for name, tensor in self._parameters.items()}

    def _logits(self, own: Mapping[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        """Return the logits (n, m) of n teachers for m images each, given images (n, m, d) and labels (n, m)."""
        c, (n, m, _) = self.config, images.shape
        known = functional.one_hot(labels, c.classes).to(images)  # (n, m, classes)
        x = images.reshape(n, m, c.channels, c.height, c.width).transpose(1, 2)
        x = functional.leaky_relu(_convolved(x, known, own["conv1"]) + own["bias1"][..., None, None, None], _LEAK)
        x = _convolved(x, known, own["conv2"])  # BatchNorm cancels a preceding bias
        x = functional.leaky_relu(_normalised(x, own["scale1"], own["bias2"]), _LEAK)  # (n, features, m, h / 4, w / 4)
        x = x.movedim(2, 4).flatten(1, 3)  # (n, numbers, m)
        x = _normalised(_dense(x, known, own["dense"]), own["scale2"], own["bias3"])  # (n, hidden, m)
        return _dense(functional.leaky_relu(x, _LEAK), known, own["head"])[:, 0] + own["bias4"]


def _convolved(x: Tensor, known: Tensor, weights: Tensor) -> Tensor:
    """Convolve each teacher's images with its weights (n, out, c + classes, 5, 5) at stride 2.

    `x` (n, c, m, h, w) has the images of n teachers, `known` (n, m, classes) their one-hot labels. The result is
    (n, out, m, h / 2, w / 2), rounded up. One batched product of weights and patches replaces a grouped convolution
    with one group per teacher. The plane of ones that encodes an image's class adds the same to all images of that
    class, so its contribution is computed once.
    """
    n, channels, m = x.shape[:3]
    columns = _patches(x)  # (n, c 25, m, h / 2, w / 2)
    height, width = columns.shape[3:]
    said = torch.bmm(weights[:, :, :channels].flatten(2), columns.flatten(2)).view(n, -1, m, height * width)
    ones = _patches(x.new_ones(1, 1, 1, *x.shape[3:])).flatten(1)[0].view(_KERNEL**2, -1)  # (25, cells)
    planes = weights[:, :, channels:].flatten(3) @ ones  # (n, out, classes, cells)
    return (said + known[:, None] @ planes).view(n, -1, m, height, width)


def _patches(x: Tensor) -> Tensor:
    """Return the patches of x (n, c, m, h, w) at stride 2, flattened: (n, c * 25, m, h / 2, w / 2)."""
    around = functional.pad(x, [_KERNEL // 2] * 4).unfold(3, _KERNEL, 2).unfold(4, _KERNEL, 2)
    return around.permute(0, 1, 5, 6, 2, 3, 4).flatten(1, 3)


def _dense(x: Tensor, known: Tensor, weights: Tensor) -> Tensor:
    """Multiply x (n, numbers, m) and labels (n, m, classes) by weights (n, numbers + classes, out): (n, out, m)."""
    numbers = x.shape[1]
    return torch.bmm(weights[:, :numbers].mT, x) + torch.bmm(weights[:, numbers:].mT, known.mT)


def _normalised(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Apply BatchNorm to x (n, c, m, ...) over each teacher's m images, with scale and bias (n, c)."""
    flat = x.flatten(2)
    return (functional.layer_norm(flat, flat.shape[2:]) * scale[..., None] + bias[..., None]).view_as(x)
