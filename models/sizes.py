"""Sizes of the networks, for plans made before a network is built. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping

# Number of layers with trainable parameters in each architecture of `models.private_classifier`.
CLASSIFIER_LAYERS: Mapping[str, int] = {
    "cnn": 7,
    "resnet20": 41,
    "wrn16_4": 30,
    "wrn28_4": 54,
    "scatter_linear": 1,
    "scatter_cnn": 3,
    "pretrained_linear": 1,
}

TEXTURE_CELL, TEXTURE_MAPS = 4, 16  # pixels per side of a cell of `models.portable.textured`; numbers per cell


def texture_size(height: int, width: int) -> int:
    """Return how many numbers describe the texture of an image."""
    return TEXTURE_MAPS * (height // TEXTURE_CELL) * (width // TEXTURE_CELL)


def convolutional_sizes(
    channels: int, height: int, width: int, classes: int, features: int, hidden: int
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters of one teacher of `models.convolutional_teachers`, by name."""
    first = channels + classes  # channels after the first convolution, as published
    cells = -(-height // 4) * -(-width // 4)
    return {
        "conv1": (first, channels + classes, 5, 5),
        "bias1": (first,),
        "conv2": (features, first + classes, 5, 5),
        "scale1": (features,),
        "bias2": (features,),
        "dense": (features * cells + classes, hidden),
        "scale2": (hidden,),
        "bias3": (hidden,),
        "head": (hidden + classes, 1),
        "bias4": (1,),
    }


def discriminator_layers(height: int, width: int) -> int:
    """Return how many layers of `workers.recipes.dpgan.Discriminator` have parameters."""
    halvings = 1 + sum(-(-min(height, width) // 2**count) >= 4 for count in (2, 3, 4))
    return 2 * halvings + 1  # a convolution per size, norms after all but the first, and two for the logit


def denoiser_layers(height: int, width: int, blocks: int) -> int:
    """Return how many layers of a `models.portable.unet.UNet` with `blocks` blocks at each size have parameters."""
    halvings = sum(min(height, width) >= 7 * 2**count for count in (1, 2, 3, 4))
    sizes = halvings + 1
    down = 5 * blocks * sizes + (halvings > 0)  # the channels change once; that block has a shortcut
    up = 6 * (blocks + 1) * sizes
    return 4 + down + halvings + 15 + up + halvings + 2  # condition and stem, middle with attention, the end
