"""A released generator of any network, and its two files: weights (safetensors) and a description (JSON).

The networks are in `models.portable`, which needs only torch.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from models.portable.guided import GuidedGenerator
from models.program import PROGRAMS

WEIGHTS_FILE = "generator.safetensors"
CONFIG_FILE = "generator.json"
_FORMAT = 1


class ReleasedGenerator(Protocol):
    """A network that draws labelled images from public randomness alone."""

    def sample(self, labels: Tensor, stream: torch.Generator) -> Tensor:
        """Draw one image for each label. Memory, apart from the result, does not grow with n.

        Args:
            labels: (n,) int64, each below the number of classes.
            stream: CPU generator with a public seed; equal seeds give equal images.

        Returns:
            (n, c, h, w) float32 in [0, 1], on the labels' device.
        """

    def eval(self) -> Any: ...

    def modules(self) -> Iterator[nn.Module]: ...

    def to(self, device: torch.device) -> Any: ...


# Each network and its shape, by "network" in a release's description; missing for the affine generator.
NETWORKS: Mapping[str | None, tuple[Callable[[Any], Any], Callable[..., Any]]] = {
    kind: (getattr(module := import_module(f"models.{name}"), network), getattr(module, shape))
    for kind, (name, network, shape) in PROGRAMS.items()
}


def save_released(generator: Any, directory: Path) -> None:
    """Write a generator's weights and shape into an existing directory; equal generators give equal bytes."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(generator.state_dict().items())}
    (directory / WEIGHTS_FILE).write_bytes(save(tensors))
    kind = next(name for name, (network, _) in NETWORKS.items() if network is type(generator))
    document = {"format": _FORMAT, "config": dataclasses.asdict(generator.config)} | ({"network": kind} if kind else {})
    (directory / CONFIG_FILE).write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def load_released(directory: Path, which: Literal["final", "warm_start"] = "final") -> ReleasedGenerator:
    """Read a released generator of any network. `which="warm_start"` returns a guided generator without its guide.

    Raises:
        ValueError: the files are damaged, of another format, of an unknown network or do not match.
        FileNotFoundError: one of the files is missing.
    """
    document = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
    found = document.get("format") if isinstance(document, dict) else None
    if found != _FORMAT:
        raise ValueError(f"the generator has format {found!r}; this program reads {_FORMAT}")
    kind = document.get("network")
    if kind not in NETWORKS:
        raise ValueError(f"the generator is a {kind!r}; this program reads {', '.join(filter(None, NETWORKS))}")
    network, shape = NETWORKS[kind]
    if which == "warm_start" and network is not GuidedGenerator:
        raise ValueError(f"only a guided generator contains a warm start; this one is a {kind}")
    if not isinstance(document.get("config"), dict):
        raise ValueError("the generator's description has no configuration")
    try:
        generator = network(shape(**document["config"]))
        generator.load_state_dict(load_file(directory / WEIGHTS_FILE))
    except (KeyError, TypeError, RuntimeError, SafetensorError):
        raise ValueError("the generator's weights do not fit its configuration") from None
    loaded: ReleasedGenerator = (generator.first if which == "warm_start" else generator).eval()
    return loaded
