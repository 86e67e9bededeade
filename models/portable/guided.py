"""A generator whose images are moved by a classifier's gradient (classifier guidance; Dhariwal & Nichol 2021).

Here l(x) are the centred logits of image x, and t_y the logits of an image that the classifier assigns to class y with
certainty. Let g be the gradient of f(x) = |l(x) - t_y|^2 / 2. A step subtracts g f / |g|^2 from x. A linear f would
then be 0 (Polyak 1969). f is not linear, so a few steps do not reach 0.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.portable.generator import GeneratorConfig
from models.portable.textured import TexturedConfig, new_generator
from models.scattering import MAPS, Scattering, scatter_head

_MOVED_AT_ONCE = 64  # images, which bounds memory; part of the format: another value rounds otherwise
_FLAT = 1e-9  # below this squared gradient nothing moves


@dataclasses.dataclass(frozen=True)
class GuidedConfig(TexturedConfig):
    """The shape of a guided generator.

    Attributes:
        guide_steps: number of steps that move each drawn image; 0: there is no guide.
        guide_logit: difference in t_y between the logit of class y and the other logits, which are equal.
    """

    textured: bool = True
    guide_steps: int = 0
    guide_logit: float = 0.0


class GuidedGenerator(nn.Module):
    """Draws labelled images with the generator `first`, and moves them by the gradient of the classifier `guide`."""

    def __init__(self, config: GuidedConfig) -> None:
        super().__init__()
        self.config = config
        shape = {field.name: getattr(config, field.name) for field in dataclasses.fields(GeneratorConfig)}
        self.first = new_generator(GeneratorConfig(**shape), config.textured, config.steps, config.rate)
        self.scattering = Scattering(config.height, config.width)
        maps = MAPS * config.channels
        self.guide = scatter_head(maps, *self.scattering.size, config.classes, convolutional=False).requires_grad_(
            requires_grad=False
        )

    def logits(self, images: Tensor) -> Tensor:
        """Return the guide's centred logits (n, classes) of images (n, c, h, w) in [0, 1]."""
        found: Tensor = self.guide(self.scattering(images))
        return found - found.mean(dim=1, keepdim=True)

    def sample(self, labels: Tensor, stream: torch.Generator) -> Tensor:
        """Draw one image for each label; see `models.released.ReleasedGenerator`."""
        images = self.first.sample(labels, stream)
        if self.config.guide_steps == 0:
            return images
        parts = zip(torch.split(images, _MOVED_AT_ONCE), torch.split(labels, _MOVED_AT_ONCE), strict=True)
        return torch.cat([self._moved(*part) for part in parts])

    def _moved(self, images: Tensor, labels: Tensor) -> Tensor:
        with torch.inference_mode(mode=False), torch.enable_grad():
            x, own = images.clone(), functional.one_hot(labels.clone(), self.config.classes).float()
            wanted = self.config.guide_logit * (own - 1 / self.config.classes)  # t_y, centred: (n, classes)
            for _ in range(self.config.guide_steps):
                x.requires_grad_()
                distance = (self.logits(x) - wanted).square().sum(dim=1) / 2
                (gradient,) = torch.autograd.grad(distance.sum(), x)
                length = distance.detach() / gradient.square().sum(dim=(1, 2, 3)).clamp(min=_FLAT)
                x = (x.detach() - length[:, None, None, None] * gradient).clamp(0, 1)
            return x
