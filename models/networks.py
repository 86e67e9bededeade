"""Networks whose gradient falls apart by record: GroupNorm in place of BatchNorm, each layer used once."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def groups_of(channels: int, most: int = 16) -> int:
    """Return the largest number of groups, at most `most`, that divides the channels into groups of two or more."""
    return max(count for count in range(1, min(most, max(1, channels // 2)) + 1) if channels % count == 0)


def small_cnn(channels: int, height: int, width: int, classes: int) -> nn.Module:
    """Three convolutions with tanh, as small as DP-SGD likes them (Papernot et al. 2021, arXiv:2007.14191)."""
    rows, columns = max(1, height // 8), max(1, width // 8)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 5, stride=2, padding=2),
        nn.GroupNorm(4, 16),
        nn.Tanh(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.GroupNorm(8, 32),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d((2 * rows, 2 * columns)),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.GroupNorm(8, 32),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d((rows, columns)),
        nn.Flatten(),
        nn.Linear(32 * rows * columns, classes),
    )


class _Block(nn.Module):
    """Two convolutions and a shortcut (He et al. 2016), normalised before each convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups_of(inputs), inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2 = nn.GroupNorm(groups_of(outputs), outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        active = functional.relu(self.norm1(x))
        kept = x if self.shortcut is None else self.shortcut(active)
        changed: Tensor = self.conv2(functional.relu(self.norm2(self.conv1(active))))
        return kept + changed


class WideResNet(nn.Module):
    """A wide residual network (Zagoruyko & Komodakis 2016, arXiv:1605.07146) with GroupNorm.

    Args:
        channels: of an image.
        classes: outputs.
        depth: 6 n + 4 for wide networks; 6 n + 2 counts ResNet-20 and its kin the usual way.
        widen: k, factor of the channels 16, 32, 64.
    """

    def __init__(self, channels: int, classes: int, depth: int, widen: int) -> None:
        super().__init__()
        blocks = (depth - 2) // 6 if widen == 1 else (depth - 4) // 6
        self.stem = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
        inputs, layers = 16, []
        for stage in range(3):
            for block in range(blocks):
                outputs = 16 * widen * 2**stage
                layers.append(_Block(inputs, outputs, 2 if stage > 0 and block == 0 else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*layers)
        self.norm = nn.GroupNorm(groups_of(inputs), inputs)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        features = functional.relu(self.norm(self.blocks(self.stem(images))))
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


def scatter_head(maps: int, rows: int, columns: int, classes: int, *, convolutional: bool) -> nn.Module:
    """Logistic regression, or a small CNN, on scattering maps (n, maps, rows, columns), normalised by record.

    The normalisation has no weights: mean and deviation of groups of a record's own maps (Tramèr & Boneh 2021).
    """
    norm = nn.GroupNorm(groups_of(maps, 27), maps, affine=False)
    if not convolutional:
        return nn.Sequential(norm, nn.Flatten(), nn.Linear(maps * rows * columns, classes))
    return nn.Sequential(
        norm,
        nn.Conv2d(maps, 64, 3, padding=1),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d((max(1, rows // 2), max(1, columns // 2))),
        nn.Conv2d(64, 32, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(32 * max(1, rows // 2) * max(1, columns // 2), classes),
    )


def feature_head(size: int, classes: int) -> nn.Module:
    """Logistic regression on features (n, size), each record's moved to mean 0 and deviation 1 by itself."""
    return nn.Sequential(nn.GroupNorm(1, size, affine=False), nn.Linear(size, classes))


def with_planes(images: Tensor, *numbers: Tensor) -> Tensor:
    """Put numbers of a row beside its image, so that a network of one input knows them too.

    Args:
        images: (n, c, h, w).
        numbers: (n,) each; whole ones below 2^24 come back exactly.

    Returns:
        (n, c + len(numbers), h, w): a constant plane for each number; `plane` reads it.
    """
    planes = [number.to(images)[:, None, None, None].expand(-1, 1, *images.shape[2:]) for number in numbers]
    return torch.cat([images, *planes], dim=1)


def plane(packed: Tensor, place: int) -> Tensor:
    """Return (n,) the number that `with_planes` put into one channel."""
    return packed[:, place, 0, 0]


def initialise(model: nn.Module, seed: int) -> nn.Module:
    """Draw the weights anew from a public seed, on the CPU, whatever the state of torch's own generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in model.modules():
            reset = getattr(layer, "reset_parameters", None)
            if callable(reset):
                reset()
    return model
