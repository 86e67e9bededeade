"""Any generator that was released, whatever its network: what can be done with it, and how it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from models import dcgan, edm, textured
from models.dcgan import DcganConfig, DcganGenerator
from models.edm import EdmConfig, EdmDenoiser
from models.generator import load_generator
from models.released_files import read_description, read_weights
from models.textured import TexturedConfig, TexturedGenerator


class ReleasedGenerator(Protocol):
    """A network that draws labelled images from public randomness alone."""

    def sample(self, labels: Tensor, stream: torch.Generator) -> Tensor:
        """Draw one image for each label.

        Args:
            labels: (n,) int64, each below the number of classes.
            stream: CPU generator with a public seed; equal seeds give equal images.

        Returns:
            (n, c, h, w) float32 in [0, 1], on the labels' device. Memory beside it does not grow with n.
        """

    def eval(self) -> Any:
        """Leave training mode."""

    def modules(self) -> Iterator[nn.Module]:
        """Go through the network and all its parts."""

    def to(self, device: torch.device) -> Any:
        """Move the weights to a device, in place."""

    def save(self, directory: Path) -> None:
        """Write the release's files into an existing directory."""


def load_released(directory: Path, which: Literal["final", "warm_start"] = "final") -> ReleasedGenerator:
    """Read a released generator of any kind; "network" in its description says which, none means the affine one.

    Args:
        directory: of the release.
        which: "warm_start" leaves out what came after the start; only the affine generator keeps that apart.

    Raises:
        ValueError: the files are damaged, of another format, of an unknown network or do not fit each other.
        FileNotFoundError: one of them is missing.
    """
    network, config = read_description(directory)
    if network is None:
        return load_generator(directory, which)
    if network not in _NETWORKS:
        raise ValueError(f"the generator is a {network!r}; this program reads {', '.join(_NETWORKS)}")
    if which != "final":
        raise ValueError(f"a {network} generator has no warm start of its own")
    return _NETWORKS[network](directory, config)


def _dcgan(directory: Path, config: Mapping[str, Any]) -> DcganGenerator:
    return read_weights(directory, lambda: DcganGenerator(DcganConfig(**config))).eval()


def _edm(directory: Path, config: Mapping[str, Any]) -> EdmDenoiser:
    return read_weights(directory, lambda: EdmDenoiser(EdmConfig(**config))).eval()


def _textured(directory: Path, config: Mapping[str, Any]) -> TexturedGenerator:
    return read_weights(directory, lambda: TexturedGenerator(TexturedConfig(**config))).eval()


_NETWORKS: Mapping[str, Callable[[Path, Mapping[str, Any]], ReleasedGenerator]] = {
    dcgan.NETWORK: _dcgan,
    edm.NETWORK: _edm,
    textured.NETWORK: _textured,
}


def known_networks() -> set[str | None]:
    """Return the kinds of network that `load_released` reads, by "network" in their description."""
    return {None, *_NETWORKS}
