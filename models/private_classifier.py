"""The released classifier: fixed public features, a network, and what it takes to load them again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from models.networks import WideResNet, initialise, scatter_head, small_cnn
from models.scattering import MAPS, Scattering

WEIGHTS_FILE = "classifier.safetensors"
CONFIG_FILE = "classifier.json"
_FORMAT = 1
_DEPTHS = {"resnet20": (20, 1), "wrn16_4": (16, 4), "wrn28_4": (28, 4)}
_BLOCK = 512


@dataclasses.dataclass(frozen=True)
class ClassifierConfig:
    """The shape of a classifier.

    Attributes:
        architecture: cnn, resnet20, wrn16_4, wrn28_4, scatter_linear or scatter_cnn.
        classes: the declared class names, in label order.
        channels: 1 or 3.
        height: pixels.
        width: pixels.
    """

    architecture: str
    classes: tuple[str, ...]
    channels: int
    height: int
    width: int


class PrivateClassifier(nn.Module):
    """Images (n, c, h, w) in [0, 1] to logits (n, classes): `head(features(images))`, of which only the head learns."""

    def __init__(self, config: ClassifierConfig, seed: int = 0) -> None:
        """Build it with initial weights from a public seed.

        Raises:
            ValueError: an unknown architecture.
        """
        super().__init__()
        self.config = config
        classes, name = len(config.classes), config.architecture
        self.scattering = Scattering(config.height, config.width) if name.startswith("scatter") else None
        if self.scattering is not None:
            maps = MAPS * config.channels
            head = scatter_head(maps, *self.scattering.size, classes, convolutional=name == "scatter_cnn")
        elif name == "cnn":
            head = small_cnn(config.channels, config.height, config.width, classes)
        elif name in _DEPTHS:
            depth, widen = _DEPTHS[name]
            head = WideResNet(config.channels, classes, depth, widen)
        else:
            raise ValueError(f"unknown architecture {name!r}")
        self.head = initialise(head, seed)

    def features(self, images: Tensor) -> Tensor:
        """Fixed public features of each image by itself: scattering maps, or pixels moved to [-1, 1]."""
        if self.scattering is None:
            return 2 * images - 1
        found: Tensor = self.scattering(images)
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
        """Write weights (safetensors) and shape (JSON) into an existing directory; equal ones give equal bytes."""
        tensors = {name: value.detach().cpu().contiguous() for name, value in sorted(self.head.state_dict().items())}
        (directory / WEIGHTS_FILE).write_bytes(save(tensors))
        document: dict[str, Any] = {"format": _FORMAT, "config": dataclasses.asdict(self.config)}
        text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        (directory / CONFIG_FILE).write_text(text, encoding="utf-8")


def load_classifier(directory: Path) -> PrivateClassifier:
    """Read what `PrivateClassifier.save` wrote.

    Raises:
        ValueError: the files are damaged, of another format or do not fit each other.
        FileNotFoundError: one of them is missing.
    """
    document = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
    found = document.get("format") if isinstance(document, dict) else None
    if found != _FORMAT:
        raise ValueError(f"the classifier has format {found!r}; this program reads {_FORMAT}")
    try:
        fields = dict(document["config"])
        classifier = PrivateClassifier(ClassifierConfig(**{**fields, "classes": tuple(fields["classes"])}))
        classifier.head.load_state_dict(load_file(directory / WEIGHTS_FILE))
    except (KeyError, TypeError, RuntimeError, SafetensorError):
        raise ValueError("the classifier's weights do not fit its configuration") from None
    return classifier.eval()
