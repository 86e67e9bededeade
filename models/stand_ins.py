"""Public patterns, and public stand-ins for a private image set of declared size, classes and shape.

A training on a stand-in forecasts the same training on private images. The images come from a public set, or are
generated. If each class is named by one letter or digit, the images show that character with varying slant, weight and
distortion. Otherwise each class has a pattern (`public_patterns`). Every image is a shifted, scaled and recoloured copy
of the pattern behind its own clutter, so that classes differ in more than one pixel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional

from models.portable.drawing import turns

TEST_MAX = 2000
_SEED = 20
_BLOCK = 512
_SHAPES = 24  # in a pattern
_SHIFT, _SCALE, _CLUTTER = 0.35, 0.6, 0.45  # share of a side; share of the size; share of an image covered by clutter
_CHROMA, _TINT = 0.4, 0.4  # saturation as in photographs, and its variation between images
_CANVAS, _WEIGHTS = 48, (0, 1, 2)  # pixels on which a character is drawn; widths of the outline that makes it bolder
_WRITTEN = 0.9  # of the canvas: the size of a character
_SLANT, _STRETCH, _BEND, _BENDS = 0.3, 0.25, 0.12, 4  # largest shear; share of size; share of side, places


class StandInUnusable(ValueError):
    """These public images cannot replace the declared images."""


@dataclass(frozen=True)
class StandIn:
    """Public images instead of private ones, and further images of the same kind for testing.

    Attributes:
        images: (n, h, w) or (n, h, w, 3) uint8.
        labels: (n,) int64, class numbers from 0.
        test_images: (m, c, h, w) uint8.
        test_labels: (m,) int64.
        classes: class names of the stand-in, in label order.
        name: the public set's name, shown to users.
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    test_images: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]
    name: str


def from_public(
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.int64],
    names: tuple[str, ...],
    *,
    name: str,
    count: int,
    classes: int,
    shape: tuple[int, int, int],
    shares: Sequence[float] | None = None,
) -> StandIn:
    """Make a stand-in from the first `classes` classes of a public set, converted to the declared size and colours.

    A fifth of its images, at most 2,000, are reserved for testing. If fewer images remain than declared, they repeat.

    Args:
        images: (m, h, w) or (m, h, w, 3) uint8.
        shape: declared (channels, height, width).
        shares: stated share of each declared class; None: as in the public set.

    Raises:
        StandInUnusable: one of these classes has no images, or too few.
    """
    stream = np.random.Generator(np.random.PCG64(_SEED))
    chosen = np.flatnonzero(np.asarray(labels) < classes)
    if len(np.unique(np.asarray(labels)[chosen])) < classes:
        raise StandInUnusable(f"one of the first {classes} classes of the public set has no images")
    chosen = stream.permutation(chosen)
    tested = min(TEST_MAX, len(chosen) // 5)
    test, own = chosen[:tested], chosen[tested:]
    drawn = np.resize(own, count)
    if shares is not None:
        wanted = np.bincount(turns(count, range(len(shares)), shares).numpy(), minlength=len(shares))
        of_class = [own[np.asarray(labels)[own] == label] for label in range(len(shares))]
        lacking = [label for label, places in enumerate(of_class) if wanted[label] and not len(places)]
        if lacking:
            raise StandInUnusable(f"class {lacking[0]} of the public set has too few images to train and to test")
        parts = [np.resize(places, number) for places, number in zip(of_class, wanted, strict=True) if number]
        drawn = stream.permutation(np.concatenate(parts))
    as_array = _fitted(images, drawn, shape).permute(0, 2, 3, 1).contiguous().numpy()  # (n, h, w, c)
    return StandIn(
        as_array[..., 0] if shape[0] == 1 else as_array,
        np.asarray(labels)[drawn].astype(np.int64),
        _fitted(images, test, shape),
        torch.from_numpy(np.asarray(labels)[test].astype(np.int64)),
        names[:classes],
        name,
    )


def are_characters(names: Sequence[str]) -> bool:
    """Return whether each class is named by one English letter or digit."""
    return all(len(name) == 1 and name.isascii() and name.isalnum() for name in names)


def generated(
    names: tuple[str, ...],
    *,
    count: int,
    shape: tuple[int, int, int],
    shares: Sequence[float] | None = None,
    look: Callable[[], None] = lambda: None,
) -> StandIn:
    """Make a stand-in of written characters if `are_characters(names)`, otherwise of generated patterns.

    Call `look` every few hundred images. The test set has equally many images of every class, whatever the shares.

    Args:
        names: the declared classes. Stand-ins of patterns have other names.
        count: declared records.
        shape: declared (channels, height, width).
        shares: stated share of each class; None: equal shares.
    """
    channels, height, width = shape
    if are_characters(names):
        name, copies, prototypes = "written characters", _character_copies, _written(names)
    else:
        name, copies = "generated patterns", _pattern_copies
        prototypes = public_patterns(len(names), channels, 2 * height, 2 * width, _SEED)
        names = tuple(f"pattern {index + 1}" for index in range(len(names)))
    stream = torch.Generator().manual_seed(_SEED)
    labels = torch.arange(count + TEST_MAX)[torch.randperm(count + TEST_MAX, generator=stream)] % len(names)
    if shares is not None:
        own = turns(count, range(len(names)), shares)
        labels = torch.cat([own[torch.randperm(count, generator=stream)], torch.arange(TEST_MAX) % len(names)])
    made = np.empty((len(labels), height, width, channels), dtype=np.uint8)
    for start in range(0, len(labels), _BLOCK):
        look()
        block = copies(prototypes, labels[start : start + _BLOCK], shape, stream)
        made[start : start + len(block)] = (block * 255).round().byte().permute(0, 2, 3, 1).numpy()
    learned = made[:count]
    tested = torch.from_numpy(made[count:]).permute(0, 3, 1, 2).contiguous()
    return StandIn(
        learned[..., 0] if channels == 1 else learned, labels[:count].numpy(), tested, labels[count:], names, name
    )


def _written(names: Sequence[str]) -> Tensor:
    """Return each character in each weight, (n, weights, 1, h, w) from 0 (paper) to 1 (ink)."""
    font = ImageFont.load_default(round(_WRITTEN * _CANVAS))
    written = torch.zeros(len(names), len(_WEIGHTS), 1, _CANVAS, _CANVAS)
    for label, name in enumerate(names):
        for place, weight in enumerate(_WEIGHTS):
            picture = Image.new("L", (_CANVAS, _CANVAS))
            middle = (_CANVAS / 2, _CANVAS / 2)
            ImageDraw.Draw(picture).text(middle, name, 255, font, anchor="mm", stroke_width=weight)
            written[label, place, 0] = torch.from_numpy(np.asarray(picture, dtype=np.float32) / 255)
    return written


def public_patterns(count: int, channels: int, height: int, width: int, seed: int) -> Tensor:
    """Return patterns (count, channels, height, width) float32 in [0, 1]; equal public seeds give equal patterns.

    They are overlapping rectangles and discs of random size and brightness ("dead leaves"; Baradad et al. 2021,
    arXiv:2106.05963, train on such images). Sizes follow a power law, so edges occur at every scale as in photographs.
    The patterns also replace missing public auxiliary images.
    """
    uniform = partial(torch.rand, generator=torch.Generator().manual_seed(seed))
    y = (torch.arange(height) + 0.5)[None, :, None] / height
    x = (torch.arange(width) + 0.5)[None, None] / width
    images = uniform(count, channels, 1, 1).expand(count, channels, height, width).clone()
    for _ in range(_SHAPES):
        centre, colour = uniform(count, 2, 1, 1), uniform(count, channels, 1, 1)
        radius = 0.5 / (1 + 15 * uniform(count, 1, 1))  # many small ones, few large ones
        stretch = 0.5 + uniform(count, 1, 1)
        dy, dx = (y - centre[:, 0]).abs() * stretch, (x - centre[:, 1]).abs()
        box, disc = torch.maximum(dy, dx), (dy**2 + dx**2).sqrt()
        inside = torch.where(uniform(count, 1, 1) < 0.5, box, disc) < radius  # (m, h, w)
        images = torch.where(inside[:, None], colour, images)
    return images


def _character_copies(
    prototypes: Tensor, labels: Tensor, shape: tuple[int, int, int], stream: torch.Generator
) -> Tensor:
    """Return images (b, c, h, w) in [0, 1]: light ink on dark paper if grey, otherwise two random colours."""
    channels, height, width = shape
    b = len(labels)

    uniform = partial(torch.rand, generator=stream)
    move = torch.zeros(b, 2, 3)
    move[:, 0, 0], move[:, 1, 1] = 1 + _STRETCH * (2 * uniform(2, b) - 1)
    move[:, 0, 1], move[:, 1, 0] = _SLANT * (2 * uniform(2, b) - 1) * torch.tensor([[1.0], [0.5]])
    grid = functional.affine_grid(move, [b, 1, height, width], align_corners=False)
    bends = functional.interpolate(_BEND * (2 * uniform(b, 2, _BENDS, _BENDS) - 1), (height, width), mode="bicubic")
    ink = prototypes[labels, (len(_WEIGHTS) * uniform(b)).long()]
    ink = functional.grid_sample(ink, grid + bends.permute(0, 2, 3, 1), align_corners=False)
    if channels == 1:
        return ink * (0.7 + 0.3 * uniform(b, 1, 1, 1))
    paper, pen = uniform(b, channels, 1, 1), uniform(b, channels, 1, 1)
    return paper + ink * (pen - paper)


def _pattern_copies(prototypes: Tensor, labels: Tensor, shape: tuple[int, int, int], stream: torch.Generator) -> Tensor:
    """Return images (b, c, h, w) in [0, 1]: copies of their class's pattern, behind clutter."""
    channels, height, width = shape
    b = len(labels)

    uniform = partial(torch.rand, generator=stream)
    scale = 0.5 * (1 + _SCALE * (uniform(b) - 0.5))
    move = torch.zeros(b, 2, 3)
    move[:, 0, 0], move[:, 1, 1] = scale, scale
    move[:, :, 2] = _SHIFT * (2 * uniform(b, 2) - 1)
    grid = functional.affine_grid(move, [b, channels, height, width], align_corners=False)
    copies = functional.grid_sample(prototypes[labels], grid, padding_mode="reflection", align_corners=False)
    clutter = public_patterns(b, channels, height, width, int(torch.randint(2**31, (), generator=stream)))
    mask = functional.interpolate(uniform(b, 1, 4, 4), (height, width), mode="bilinear") < _CLUTTER
    images = torch.where(mask, clutter, copies)
    grey = images.mean(dim=1, keepdim=True)
    pale = grey + _CHROMA * (images - grey)
    return (pale * (0.6 + 0.4 * uniform(b, 1, 1, 1)) + _TINT * (uniform(b, channels, 1, 1) - 0.5)).clamp(0, 1)


def _fitted(images: npt.NDArray[np.uint8], rows: npt.NDArray[np.int64], shape: tuple[int, int, int]) -> Tensor:
    """Return the images `rows` as (n, c, h, w) uint8, converted to `shape` block by block to bound memory."""
    channels, height, width = shape
    fitted = torch.empty(len(rows), *shape, dtype=torch.uint8)
    for at in range(0, len(rows), _BLOCK):
        pixels = torch.from_numpy(np.array(images[rows[at : at + _BLOCK]])).float()
        pixels = pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)
        if pixels.shape[1] != channels:
            pixels = pixels.mean(dim=1, keepdim=True).expand(-1, channels, -1, -1)
        if pixels.shape[2:] != (height, width):
            pixels = functional.interpolate(pixels, (height, width), mode="bilinear", antialias=True)
        fitted[at : at + _BLOCK] = pixels.round().clamp(0, 255).byte()
    return fitted
