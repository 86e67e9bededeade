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

from models.extractor import Extractor, ExtractorUnusable, described
from models.networks import WideResNet, feature_head, initialise, scatter_head, small_cnn
from models.scattering import MAPS, Scattering

WEIGHTS_FILE = "classifier.safetensors"
CONFIG_FILE = "classifier.json"
EXTRACTOR_FILE = "extractor.safetensors"
PRETRAINED = "pretrained_linear"
_FORMAT = 1
_DEPTHS = {"resnet20": (20, 1), "wrn16_4": (16, 4), "wrn28_4": (28, 4)}
_BLOCK = 512


@dataclasses.dataclass(frozen=True)
class ClassifierConfig:
    """The shape of a classifier.

    Attributes:
        architecture: cnn, resnet20, wrn16_4, wrn28_4, scatter_linear, scatter_cnn or pretrained_linear.
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

    def __init__(self, config: ClassifierConfig, seed: int = 0, extractor: Extractor | None = None) -> None:
        """Build it with initial weights from a public seed.

        Args:
            config: its shape.
            seed: public.
            extractor: of public features; pretrained_linear needs one, and nothing else takes one.

        Raises:
            ValueError: an unknown architecture (ExtractorUnusable: none where one is needed, or the other way round).
        """
        super().__init__()
        self.config = config
        classes, name = len(config.classes), config.architecture
        if (extractor is None) == (name == PRETRAINED):
            raise ExtractorUnusable(f"{PRETRAINED} needs an extractor, and no other architecture takes one")
        self.extractor = extractor
        self.transform: Scattering | Extractor | None = extractor  # what is computed once for each image
        if extractor is not None:
            head = feature_head(extractor.size, classes)
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
        """Fixed public features of each image by itself: an extractor's, scattering maps, or pixels in [-1, 1]."""
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
        """Write weights (safetensors) and shape (JSON) into an existing directory; equal ones give equal bytes.

        An extractor's file goes with them, so that the release predicts by itself.
        """
        tensors = {name: value.detach().cpu().contiguous() for name, value in sorted(self.head.state_dict().items())}
        (directory / WEIGHTS_FILE).write_bytes(save(tensors))
        document: dict[str, Any] = {"format": _FORMAT, "config": dataclasses.asdict(self.config)}
        if self.extractor is not None:
            document["extractor"] = self.extractor.describe()
            (directory / EXTRACTOR_FILE).write_bytes(self.extractor.weights)
        text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        (directory / CONFIG_FILE).write_text(text, encoding="utf-8")


def load_classifier(directory: Path) -> PrivateClassifier:
    """Read what `PrivateClassifier.save` wrote.

    Raises:
        ValueError: the files are damaged, of another format or do not fit each other (ExtractorUnusable: the
            extractor's file has another SHA-256 than the classifier was trained with).
        FileNotFoundError: one of them is missing.
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
