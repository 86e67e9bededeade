"""The released classifier: fixed public features, a network, and its files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn import functional

from models.extractor import Extractor, ExtractorUnusable, described
from models.portable.layers import groups_of, initialise
from models.scattering import MAPS, Scattering, scatter_head

WEIGHTS_FILE = "classifier.safetensors"
CONFIG_FILE = "classifier.json"
EXTRACTOR_FILE = "extractor.safetensors"
PRETRAINED = "pretrained_linear"
_FORMAT = 1
_DEPTHS = {"resnet20": (20, 1), "wrn16_4": (16, 4), "wrn28_4": (28, 4)}
_BLOCK = 512


@dataclasses.dataclass(frozen=True)
class ClassifierConfig:
    """The shape of a classifier; `architecture` is cnn, resnet20, wrn16_4, wrn28_4, scatter_linear, scatter_cnn or
    pretrained_linear.
    """

    architecture: str
    classes: tuple[str, ...]
    channels: int
    height: int
    width: int


class PrivateClassifier(nn.Module):
    """Maps images (n, c, h, w) in [0, 1] to logits (n, classes): `head(features(images))`; only the head is trained.

    Args:
        seed: public seed of the initial weights.
        extractor: computes public features; only for pretrained_linear.

    Raises:
        ExtractorUnusable: the extractor is missing or superfluous.
        ValueError: the architecture is unknown.
    """

    def __init__(self, config: ClassifierConfig, seed: int = 0, extractor: Extractor | None = None) -> None:
        super().__init__()
        self.config = config
        classes, name = len(config.classes), config.architecture
        if (extractor is None) == (name == PRETRAINED):
            raise ExtractorUnusable(f"{PRETRAINED} needs an extractor; other architectures must have none")
        self.extractor = extractor
        self.transform: Scattering | Extractor | None = extractor  # the part that is computed once per image
        if extractor is not None:
            # Logistic regression on features; each record is normalised by itself to mean 0 and deviation 1.
            size = extractor.size
            head: nn.Module = nn.Sequential(nn.GroupNorm(1, size, affine=False), nn.Linear(size, classes))
        elif name.startswith("scatter"):
            self.transform = scattering = Scattering(config.height, config.width)
            head = scatter_head(MAPS * config.channels, *scattering.size, classes, convolutional=name == "scatter_cnn")
        elif name == "cnn":
            head = small_cnn(config.channels, config.height, config.width, classes)
        elif name in _DEPTHS:
            depth, widen = _DEPTHS[name]
            head = WideResNet(config.channels, classes, depth, widen)
        else:
            raise ValueError(f"unknown architecture {name!r}")
        self.head = initialise(head, seed)

    def features(self, images: Tensor) -> Tensor:
        """Return fixed public features: an extractor's output, scattering maps, or pixels in [-1, 1].

        An image's features depend on that image alone.
        """
        if self.transform is None:
            return 2 * images - 1
        found: Tensor = self.transform(images)
        return found

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images))
        return logits

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Return the predicted labels (n,) of images (n, c, h, w), uint8 or in [0, 1]."""
        self.eval()
        device = next(self.head.parameters()).device
        parts = []
        for block in torch.split(images, _BLOCK):
            scaled = block.to(device).float() / (255 if block.dtype == torch.uint8 else 1)
            parts.append(self(scaled).argmax(dim=1).cpu())
        return torch.cat(parts)

    def save(self, directory: Path) -> None:
        """Write weights, shape and any extractor into an existing directory; equal classifiers give equal bytes."""
        tensors = {name: value.detach().cpu().contiguous() for name, value in sorted(self.head.state_dict().items())}
        (directory / WEIGHTS_FILE).write_bytes(save(tensors))
        document: dict[str, Any] = {"format": _FORMAT, "config": dataclasses.asdict(self.config)}
        if self.extractor is not None:
            document["extractor"] = {**dataclasses.asdict(self.extractor.config), "sha256": self.extractor.sha256}
            (directory / EXTRACTOR_FILE).write_bytes(self.extractor.weights)
        text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        (directory / CONFIG_FILE).write_text(text, encoding="utf-8")


def load_classifier(directory: Path) -> PrivateClassifier:
    """Read the files of `PrivateClassifier.save`.

    Raises:
        ExtractorUnusable: the extractor's SHA-256 differs from that of the extractor used in training.
        ValueError: the files are damaged, have another format or do not match.
        FileNotFoundError: one of the files is missing.
    """
    document = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
    found = document.get("format") if isinstance(document, dict) else None
    if found != _FORMAT:
        raise ValueError(f"the classifier has format {found!r}; this program reads {_FORMAT}")
    try:
        fields = dict(document["config"])
        extractor = None
        if fields["architecture"] == PRETRAINED:
            extractor = described(document["extractor"], (directory / EXTRACTOR_FILE).read_bytes())
        shape = ClassifierConfig(**{**fields, "classes": tuple(fields["classes"])})
        classifier = PrivateClassifier(shape, extractor=extractor)
        classifier.head.load_state_dict(load_file(directory / WEIGHTS_FILE))
    except (KeyError, TypeError, RuntimeError, SafetensorError):
        raise ValueError("the classifier's weights do not fit its configuration") from None
    return classifier.eval()


def small_cnn(channels: int, height: int, width: int, classes: int) -> nn.Module:
    """Build a CNN of three convolutions with tanh, which suits DP-SGD (Papernot et al. 2021, arXiv:2007.14191)."""
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
        depth: 6 n + 4 for wide networks; 6 n + 2 for ResNet-20 and similar networks, as usual.
        widen: k, by which the numbers of channels 16, 32 and 64 are multiplied.
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
