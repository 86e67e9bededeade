"""Compute features of images with a fixed network that was trained on public data and has lost its last layer.

Like scattering (`models.scattering`), it processes one image at a time. Batch normalisation uses the averages in the
file, never those of a batch, so an image's features are a function of that image alone. They cost no privacy if the
network was trained without private images. The file cannot prove this, so the operator who provides it is responsible.
A linear layer on such features is the strongest known private classifier at small budgets (Tramèr & Boneh 2021,
arXiv:2011.11660; De et al. 2022, arXiv:2204.13650).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn import functional

NETWORKS = ("resnet18", "resnet50", "shufflenet_v2_x0_5")  # torchvision's; the last layer of each is called fc
WEIGHTS_BYTES_MAX = 2**29
INPUT_SIZES = (16, 1024)
_CHANNELS = 3
_TEXT_CHARACTERS_MAX = 500
_BLOCK = 32


class ExtractorUnusable(ValueError):
    """The extractor is missing, or its files are invalid. No private image was read."""


@dataclasses.dataclass(frozen=True)
class ExtractorConfig:
    """The public description of an extractor.

    Attributes:
        name: by which a plan's options refer to the extractor.
        input_size: pixels a side, to which every image is resized.
        mean: one number for each of three channels, subtracted from pixels in [0, 1].
        std: one number for each of three channels, by which the differences are divided.
        trained_on: the network's public training data, in words.

    Raises:
        ExtractorUnusable: a field is invalid.
    """

    name: str
    network: str
    input_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    trained_on: str

    def __post_init__(self) -> None:
        low, high = INPUT_SIZES
        if self.network not in NETWORKS:
            raise ExtractorUnusable(f"the network of an extractor must be one of {', '.join(NETWORKS)}")
        if type(self.input_size) is not int or not low <= self.input_size <= high:
            raise ExtractorUnusable(f"the input_size of an extractor must be an integer between {low} and {high}")
        for field in ("mean", "std"):
            values = getattr(self, field)
            numbers = [v for v in values if type(v) in (int, float)] if isinstance(values, list | tuple) else []
            if len(numbers) != _CHANNELS or len(values) != _CHANNELS or not all(map(math.isfinite, numbers)):
                raise ExtractorUnusable(f"the {field} of an extractor must be a list of {_CHANNELS} finite numbers")
            object.__setattr__(self, field, tuple(map(float, values)))
        if min(self.std) <= 0:
            raise ExtractorUnusable("the std of an extractor must be above 0")
        if not isinstance(self.trained_on, str) or not 1 <= len(self.trained_on.strip()) <= _TEXT_CHARACTERS_MAX:
            raise ExtractorUnusable("trained_on must say in words which public data the extractor was trained on")


class Extractor(nn.Module):
    """Maps images (n, 1 or 3, h, w) in [0, 1] to features (n, size). It has no trainable parameters.

    Args:
        weights: the bytes of its safetensors file, which a release carries unchanged.

    Attributes:
        sha256: hexadecimal SHA-256 of the weights' bytes.
        size: number of features of an image.

    Raises:
        ExtractorUnusable: the weights are damaged, not finite, or of another network.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: ExtractorConfig, weights: bytes) -> None:
        super().__init__()
        self.config, self.weights = config, weights
        self.sha256 = hashlib.sha256(weights).hexdigest()
        from torchvision.models import get_model  # imported here, because it takes seconds and few trainings need it

        try:
            tensors = load(weights)
        except SafetensorError:
            raise ExtractorUnusable("the extractor's file is not a safetensors file") from None
        floats = {name: value.float() if value.is_floating_point() else value for name, value in tensors.items()}
        if not all(bool(value.isfinite().all()) for value in floats.values()):
            raise ExtractorUnusable("the extractor has weights that are not finite")
        with torch.device("meta"):  # no memory and no random numbers for weights that are replaced
            network: nn.Module = get_model(config.network, weights=None)
        assert isinstance(network.fc, nn.Linear)
        self.size = network.fc.in_features
        network.fc = nn.Identity()
        kept = {name: value for name, value in floats.items() if not name.startswith("fc.")}
        try:
            network.load_state_dict(kept, assign=True)
        except RuntimeError:
            raise ExtractorUnusable(f"the extractor's weights are not those of a {config.network}") from None
        self.network = network.requires_grad_(False)
        for name in ("mean", "std"):
            values = torch.tensor(getattr(config, name))[:, None, None]  # (3, 1, 1)
            self.register_buffer(name, values, persistent=False)
        self.eval()

    def train(self, _mode: bool = True) -> Extractor:
        """Stay in evaluation mode, because batch normalisation would mix records."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Return the features of images (n, 1 or 3, h, w) in [0, 1]."""
        # Kernels are chosen by size and round differently. To make features independent of the number of other
        # images, to the last bit, all blocks have one size; the last block is padded.
        missing = -len(images) % _BLOCK
        filled = torch.cat([images, images.new_zeros(missing, *images.shape[1:])])
        found = [images.new_zeros(0, self.size)]
        size = (self.config.input_size, self.config.input_size)
        for block in torch.split(filled, _BLOCK) if len(filled) else ():
            colour = block.float().expand(-1, _CHANNELS, -1, -1)
            resized = functional.interpolate(colour, size, mode="bilinear", antialias=True)
            found.append(self.network((resized - self.mean) / self.std))
        return torch.cat(found)[: len(images)]


def described(document: Mapping[str, Any], weights: bytes) -> Extractor:
    """Build a released extractor from its description and its weights.

    Raises:
        ExtractorUnusable: the description and the file do not match, or the file is not the one used in training.
    """
    fields = dict(document)
    if fields.pop("sha256", None) != hashlib.sha256(weights).hexdigest():
        raise ExtractorUnusable("the extractor's file is not the one that the classifier was trained with")
    return Extractor(_config(fields), weights)


def read_extractor(folder: Path, name: str) -> Extractor:
    """Read `NAME.json` and `NAME.safetensors` from the operator's folder.

    Args:
        name: an extractor's name. `privacy.plans.dp_classifier` has checked its form, so it is not a path.

    Raises:
        ExtractorUnusable: a file is missing, too large or damaged, or the two files do not match.
    """
    try:
        document = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        with (folder / f"{name}.safetensors").open("rb") as file:
            weights = file.read(WEIGHTS_BYTES_MAX + 1)
    except OSError:
        raise ExtractorUnusable(f"the extractor {name} needs both {name}.json and {name}.safetensors") from None
    except ValueError:
        raise ExtractorUnusable(f"the description of the extractor {name} is not valid JSON") from None
    if len(weights) > WEIGHTS_BYTES_MAX:
        raise ExtractorUnusable(f"the file of an extractor must have at most {WEIGHTS_BYTES_MAX} bytes")
    if not isinstance(document, dict) or "name" in document:
        raise ExtractorUnusable("the description of an extractor must be a JSON object without a name field")
    return Extractor(_config({**document, "name": name}), weights)


def _config(fields: Mapping[str, Any]) -> ExtractorConfig:
    try:
        return ExtractorConfig(**fields)
    except TypeError:
        known = ", ".join(field.name for field in dataclasses.fields(ExtractorConfig) if field.name != "name")
        raise ExtractorUnusable(f"the description of an extractor must have exactly the fields {known}") from None
