"""Images and a training that take a moment."""

import numpy as np

SMALL = {"components": 10}  # of moments
SMALL_DATALENS = {"teachers": 10, "images": 30}
# Minutes, on any machine: ten thousand votes of one image, each after twenty steps of every teacher.
LONG = {
    "teachers": 10,
    "top_k": 4,
    "images": 10_000,
    "images_per_iteration": 2,
    "teacher_network": "convolutional",
    "teacher_steps": 20,
}


def two_classes(count: int) -> tuple[np.ndarray, list[str]]:
    """Make uint8 images (count, 8, 8) of two simple classes, new ones each time; a page must escape one's name."""
    rng = np.random.default_rng()
    labels = np.arange(count) % 2
    images = rng.integers(0, 60, (count, 8, 8))
    images[labels == 0, :4] += 150
    images[labels == 1, :, :4] += 150
    return images.astype(np.uint8), [("<top>", "left")[label] for label in labels]
