"""A generator that draws images and the texture that they should have, and makes one image of both.

The formula of `models.generator`, in which the numbers of a texture follow the pixels of v; `models.texture.render`
finds an image near those pixels that has that texture.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from torch import Tensor

from models.generator import Generator, GeneratorConfig
from models.released_files import write_released
from models.sizes import texture_size
from models.texture import render

NETWORK = "textured"  # its kind in the description of a release


@dataclasses.dataclass(frozen=True)
class TexturedConfig(GeneratorConfig):
    """The shape of a generator with texture; sides are multiples of 4."""

    @property
    def outputs(self) -> int:
        """Numbers in v, of an image and of its texture."""
        return self.pixels + texture_size(self.height, self.width)


class TexturedGenerator(Generator):
    """Draws labelled images; see the module."""

    def decode(self, latents: Tensor, labels: Tensor) -> Tensor:
        """Map bent latents (n, d) of classes (n,) to images (n, c, h, w) in [0, 1]."""
        values, config = self.values(latents, labels), self.config
        images = values[:, : config.pixels].view(-1, config.channels, config.height, config.width)
        return render(images, values[:, config.pixels :])

    def save(self, directory: Path) -> None:
        """Write weights (safetensors) and shape (JSON) into an existing directory."""
        write_released(directory, self, dataclasses.asdict(self.config), NETWORK)


def new_generator(config: GeneratorConfig, texture: bool) -> Generator:
    """Return a generator of zeros, for Gaussians of images, or of images and their texture."""
    return TexturedGenerator(TexturedConfig(**dataclasses.asdict(config))) if texture else Generator(config)
