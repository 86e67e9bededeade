"""The two files of a released generator: weights (safetensors) and a description (JSON) of the network they fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

WEIGHTS_FILE = "generator.safetensors"
CONFIG_FILE = "generator.json"
_FORMAT = 1
N = TypeVar("N", bound=nn.Module)


def write_released(directory: Path, weights: nn.Module, config: Mapping[str, Any], network: str | None = None) -> None:
    """Write both files into an existing directory; equal generators give equal bytes.

    Args:
        directory: of the release.
        weights: the network.
        config: its shape, JSON-able.
        network: its kind; None for the affine generator, whose description names none.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(weights.state_dict().items())}
    (directory / WEIGHTS_FILE).write_bytes(save(tensors))
    document: dict[str, Any] = {"format": _FORMAT, "config": dict(config)}
    if network is not None:
        document["network"] = network
    (directory / CONFIG_FILE).write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_description(directory: Path) -> tuple[str | None, dict[str, Any]]:
    """Return the network's kind (None for the affine generator) and shape.

    Raises:
        ValueError: the description is damaged or of another format.
        FileNotFoundError: it is missing.
    """
    document = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
    found = document.get("format") if isinstance(document, dict) else None
    if found != _FORMAT:
        raise ValueError(f"the generator has format {found!r}; this program reads {_FORMAT}")
    config = document.get("config")
    if not isinstance(config, dict):
        raise ValueError("the generator's description has no configuration")
    return document.get("network"), config


def read_weights(directory: Path, build: Callable[[], N]) -> N:
    """Build a network and put the released weights into it.

    Raises:
        ValueError: the weights are damaged or do not fit the network, or the network cannot be built.
        FileNotFoundError: they are missing.
    """
    try:
        network = build()
        network.load_state_dict(load_file(directory / WEIGHTS_FILE))
    except (KeyError, TypeError, RuntimeError, SafetensorError):
        raise ValueError("the generator's weights do not fit its configuration") from None
    return network
