"""How large teachers are, as `models.sizes` says it of other networks; apart from it, since no release needs this."""

from __future__ import annotations


def teacher_parameters(inputs: int, classes: int, hidden: int) -> int:
    """Return how many numbers one teacher of `models.teacher_ensemble` trains; its label is part of what it sees."""
    columns = inputs + classes
    return hidden * columns + hidden + 1 if hidden else classes * columns


def convolutional_sizes(
    channels: int, height: int, width: int, classes: int, features: int, hidden: int
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what one teacher of `models.convolutional_teachers` trains, by name."""
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
