"""An extractor that takes no download: torchvision's smallest network here, its weights drawn from a seed."""

import functools
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from models.extractor import Extractor, ExtractorConfig
from models.stand_ins import public_patterns

SPEC: dict[str, Any] = {
    "network": "shufflenet_v2_x0_5",
    "input_size": 32,
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
    "trained_on": "nothing: weights from a seed, averages of public patterns",
}


@functools.cache
def network(seed: int = 0, kind: str = "shufflenet_v2_x0_5") -> nn.Module:
    """Return the whole network, whose batch normalisation has seen patterns: untouched averages would silence it."""
    from torchvision.models import get_model  # here, for it takes seconds that most tests need not spend

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = get_model(kind, weights=None)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None
    mean, std = (torch.tensor(SPEC[name])[:, None, None] for name in ("mean", "std"))
    with torch.no_grad():
        model.train()((public_patterns(64, 3, 32, 32, seed) - mean) / std)
    return model.eval()


@functools.cache
def weights(seed: int = 0, kind: str = "shufflenet_v2_x0_5") -> bytes:
    return save({name: value.contiguous() for name, value in network(seed, kind).state_dict().items()})


def extractor(seed: int = 0, **changes: Any) -> Extractor:
    config = ExtractorConfig(**{"name": "tiny", **SPEC, **changes})
    return Extractor(config, weights(seed, config.network))


def write_extractor(folder: Path, name: str = "tiny", /, *, seed: int = 0, **changes: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.safetensors").write_bytes(weights(seed))
    (folder / f"{name}.json").write_text(json.dumps({**SPEC, **changes}))
