"""Describe the texture of an image by a few numbers, and generate images that have a given texture.

Each cell of 4 x 4 pixels is described by 16 numbers: the strengths of waves of eight orientations and two lengths. A
strength comes from the responses of an even and an odd wavelet filter: it is the logarithm of their mean modulus. All
strengths together are the first order of a scattering transform (Bruna & Mallat 2013). Unlike pixels, they are close to
Gaussian. So a Gaussian over both draws outlines and patterns that a Gaussian over pixels blurs. `render` finds an image
with the drawn numbers by gradient descent (Angles & Mallat 2018 train a network to invert a scattering transform).
Nothing here is learned, so all of it is public.

The generator draws a vector v by the formula of `models.portable.generator`. Here v consists of the pixels of an image,
followed by the numbers of a target texture. `render` combines both into one image.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from models.portable.generator import Generator, GeneratorConfig
from models.sizes import TEXTURE_CELL, TEXTURE_MAPS, texture_size

ORIENTATIONS = TEXTURE_MAPS // 2  # of fine waves, then of coarse ones
FILTER_UNIT = 2.0**-12  # filters are rounded to integers times this, so that sums of products with pixels are exact
MODULUS_FLOOR, LOG_FLOOR = 1e-4, 0.03
CENTRE, SCALE = -2.8, 0.75  # of a logarithm: about the mean of clip art; texture then varies as much as pixels
_WAVES = ((5, 0.9, 2.2), (7, 1.1, 1.3))  # size, width of the envelope, frequency; the second on half the resolution
_MEMORY, _SQUARES = 0.8, 0.99  # of Adam
STEPS, RATE = 7, 0.45  # of Adam: more steps add specks
_FAITH = 0.2  # weight of the distance to the drawn image
_WINDOW = 8  # pixels per side of the window that all filters of a cell see, at either scale
_BLOCK_PLACES, _BLOCK_MIN = 3136, 8  # cells rendered at once, to stay in the processor's cache; images at least
_EDGE = 0.02  # brightness from which a pixel starts to move


@cache
def filters() -> tuple[Tensor, Tensor]:
    """Return the fine and the coarse wavelets, (16, 1, size, size) float64 each, as integer multiples of FILTER_UNIT.

    In both tensors, each even wavelet is followed by the odd wavelet of the same orientation.
    """
    banks = []
    for size, width, frequency in _WAVES:
        place = torch.arange(size, dtype=torch.float64) - size // 2
        found = []
        for turn in range(ORIENTATIONS):
            cosine, sine = math.cos(math.pi * turn / ORIENTATIONS), math.sin(math.pi * turn / ORIENTATIONS)
            along = place[None, :] * cosine + place[:, None] * sine
            across = place[:, None] * cosine - place[None, :] * sine
            envelope = torch.exp(-(along**2 + (across / 2) ** 2) / (2 * width * width))
            envelope /= envelope.sum()
            for wave in (torch.cos(frequency * along), torch.sin(frequency * along)):
                found.append(envelope * wave - envelope * (envelope * wave).sum())  # response 0 to uniform brightness
        banks.append((torch.stack(found)[:, None] / FILTER_UNIT).round())
    return banks[0], banks[1]


def texture(luma: Tensor) -> Tensor:
    """Return the texture (n, 16, h / 4, w / 4) of grey images (n, 1, h, w) in [0, 1]."""
    fine, coarse = ((bank * FILTER_UNIT).to(luma) for bank in filters())
    scales = (luma, fine, TEXTURE_CELL), (functional.avg_pool2d(luma, 2), coarse, TEXTURE_CELL // 2)
    numbers = []
    for images, bank, cell in scales:
        waves = torch.unflatten(functional.conv2d(images, bank, padding=bank.shape[-1] // 2), 1, (ORIENTATIONS, 2))
        modulus = (waves.square().sum(2) + MODULUS_FLOOR).sqrt()
        numbers.append(((functional.avg_pool2d(modulus, cell) + LOG_FLOOR).log() - CENTRE) * SCALE)
    return torch.cat(numbers, dim=1)


class _Scale:
    """Images of one scale, padded with zeros, and a window of pixels for each cell. Axes: (rows, columns, images)."""

    def __init__(self, bank: Tensor, cell: int, shape: tuple[int, int, int], like: Tensor) -> None:
        rows, columns, count = shape
        edge, self._cell = bank.shape[-1] // 2, cell
        framed = like.new_zeros(rows * cell + 2 * edge, columns * cell + 2 * edge, count)
        self._back = torch.zeros_like(framed)
        self.images, self.gradient = (each[edge:-edge, edge:-edge] for each in (framed, self._back))
        down, right, along = framed.stride()
        strides = (down, right, down * cell, right * cell, along)
        # (8, 8, rows, columns, images): windows overlap, but parts of cell size at one place in each window do not.
        self.windows, self._windows_back = (
            each.as_strided((_WINDOW, _WINDOW, *shape), strides) for each in (framed, self._back)
        )
        # Maps the differences and sums of a window's opposite pixels to the responses at half of its cell's pixels,
        # (2, m, 32). Rows are ordered by orientation, pixel, and even or odd.
        size, half = bank.shape[-1], cell * cell // 2
        found = bank.new_zeros(ORIENTATIONS, half, 2, _WINDOW, _WINDOW)
        for pixel in range(half):
            row, column = divmod(pixel, cell)
            found[:, pixel, :, row : row + size, column : column + size] = bank.view(ORIENTATIONS, 2, size, size)
        first, last = found.view(-1, _WINDOW**2).chunk(2, dim=1)
        opposite = last.flip(1)
        self.filters = (torch.stack([first - opposite, first + opposite]) * (FILTER_UNIT / 2)).to(like)
        self.turned = self.filters.mT.contiguous()
        self.turned[1] *= 2  # half of the gradient of sums arrives

    def put_back(self, gradient: Tensor) -> None:
        """Set `self.gradient` to the sum of the overlapping windows' gradients, (8, 8, rows, columns, images)."""
        self._back.zero_()
        for row in range(0, _WINDOW, self._cell):
            for column in range(0, _WINDOW, self._cell):
                part = slice(row, row + self._cell), slice(column, column + self._cell)
                self._windows_back[part].add_(gradient[part])


class TextureGradient:
    """The gradient of half the squared distance between the images' textures and target textures.

    Matrix products compute it from a window of 8 x 8 pixels around each cell, at both scales. Let s and d be the sums
    and the differences of opposite pixels in a window. Every filter is even or odd about its middle. At two
    opposite pixels of the cell, its responses are a + b and a - b, up to sign: a is its response to s, and b to d.
    This halves the number of products. Axes are (rows, columns, images). Buffers are reused from one call to the next.
    """

    def __init__(self, rows: int, columns: int, count: int, like: Tensor) -> None:
        """Allocate buffers for `count` images of rows x columns cells, with the type and device of `like`."""
        self._shape, places = (rows, columns, count), rows * columns * count
        fine, coarse = filters()
        cells = (fine, TEXTURE_CELL), (coarse, TEXTURE_CELL // 2)
        self._scales = [_Scale(*each, self._shape, like) for each in cells]
        sizes = [scale.filters.shape[1] for scale in self._scales]
        self._answers = like.new_empty(2, sum(sizes), places)
        self._parts = [torch.split(each, sizes) for each in self._answers]
        self._window = like.new_empty(_WINDOW**2, places)
        self._halves = like.new_empty(2, _WINDOW**2 // 2, places)
        self._moduli = like.new_empty(2, sum(sizes) // 2, places)

    def __call__(self, luma: Tensor, half: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients with respect to `luma` and `half`, in the same shapes. The next call overwrites them.

        Args:
            luma: (h, w, n), brightness.
            half: (h / 2, w / 2, n), the same brightness at half size.
            wanted: (16, rows * columns * n), target textures of all cells.
        """
        answers, moduli, window, (differences, sums) = self._answers, self._moduli, self._window, self._halves
        for number, (scale, images) in enumerate(zip(self._scales, (luma, half), strict=True)):
            scale.images.copy_(images)
            window.view(scale.windows.shape).copy_(scale.windows)
            first, opposite = window[: len(sums)], window[len(sums) :].flip(0)
            torch.sub(first, opposite, out=differences)
            torch.add(first, opposite, out=sums)
            for side, part in enumerate(self._parts):
                torch.mm(scale.filters[side], self._halves[side], out=part[number])
        answers[1].add_(answers[0])  # at a pixel: the sums' part and the differences'
        torch.sub(answers[1], answers[0], alpha=2, out=answers[0])  # at the opposite pixel
        waves = torch.unflatten(answers, 1, (-1, 2))  # (2, filters and pixels, even and odd, places)
        moduli.fill_(MODULUS_FLOOR)
        for wave in waves.unbind(2):
            moduli.addcmul_(wave, wave)
        by_scale = torch.split(moduli.sqrt_(), [part.shape[0] // 2 for part in self._parts[0]], dim=1)
        by_orientation = [torch.unflatten(part, 1, (ORIENTATIONS, -1)) for part in by_scale]
        mean = torch.cat([_mean(each) for each in by_orientation]).add_(LOG_FLOOR)  # (16, places)
        gradient = ((mean.log() - CENTRE) * SCALE - wanted) * SCALE / mean
        for each, of_scale in zip(by_orientation, torch.split(gradient, ORIENTATIONS), strict=True):
            torch.div((of_scale / (2 * each.shape[2]))[:, None], each, out=each)
        waves.mul_(moduli[:, :, None])
        torch.sub(answers[1], answers[0], out=answers[0])  # twice the differences' part
        answers[1].sub_(answers[0], alpha=0.5)
        for number, scale in enumerate(self._scales):
            for side, part in enumerate(self._parts):
                torch.mm(scale.turned[side], part[number], out=self._halves[side])
            torch.add(sums, differences, out=window[: len(sums)])
            window[len(sums) :].copy_(sums.sub_(differences).flip(0))
            scale.put_back(window.view(scale.windows.shape))
        return self._scales[0].gradient, self._scales[1].gradient


def _mean(moduli: Tensor) -> Tensor:
    """Return the means (8, cells) of moduli (2, 8, pixels, cells), summed pairwise; `pixels` is a power of two."""
    found = moduli[0] + moduli[1]
    while found.shape[1] > 1:
        first, last = found.chunk(2, dim=1)
        found = first + last
    return found[:, 0] / (2 * moduli.shape[2])


def render(images: Tensor, wanted: Tensor, steps: int = STEPS, rate: float = RATE) -> Tensor:
    """Return images (n, c, h, w) in [0, 1] that approximate both the given images and the wanted textures.

    A few steps of Adam reduce the sum of two squared distances: between the texture and the wanted texture, and between
    the means of 2 x 2 pixels and those of the given images. The gradient needs no automatic differentiation.

    Args:
        images: (n, c, h, w), in units of full brightness; values outside [0, 1] are clipped.
        wanted: (n, 16 * h / 4 * w / 4), the numbers of the wanted textures.
        rate: learning rate of the first step; later rates fall along a cosine to a tenth of it.
    """
    rows, columns = images.shape[2] // TEXTURE_CELL, images.shape[3] // TEXTURE_CELL
    block = max(_BLOCK_MIN, _BLOCK_PLACES // (rows * columns))
    rendered, gradient = [], None
    for drawn, numbers in zip(torch.split(images, block), torch.split(wanted, block), strict=True):
        if gradient is None or len(drawn) != len(rendered[0]):
            gradient = TextureGradient(rows, columns, len(drawn), images)
        numbers = numbers.view(len(drawn), TEXTURE_MAPS, -1).permute(1, 2, 0).flatten(1)
        rates = [rate * (0.55 + 0.45 * math.cos(math.pi * step / steps)) for step in range(steps)]
        found = _render(drawn.permute(1, 2, 3, 0).contiguous(), numbers, gradient, rates)
        rendered.append(found.permute(3, 0, 1, 2))
    return torch.cat(rendered)


def _render(images: Tensor, wanted: Tensor, texture_gradient: TextureGradient, rates: Sequence[float]) -> Tensor:
    """Render a block of images (c, h, w, n) to the wanted textures (16, rows * columns * n) of their cells."""
    coarse, channels = _halved(images), len(images)
    x = images.clamp(_EDGE, 1 - _EDGE)
    w = torch.log(x / (1 - x))  # moves freely, while x stays in [0, 1]
    moment, square, scale = torch.zeros_like(w), torch.zeros_like(w), torch.empty_like(w)
    for step, rate in enumerate(rates, 1):
        half = _halved(x)
        at_full, at_half = texture_gradient(x.mean(0), half.mean(0), wanted)
        below = torch.add(at_half / (4 * channels), half.sub_(coarse), alpha=_FAITH)
        below = below[:, :, None, :, None].expand(-1, -1, 2, -1, 2, -1)
        gradient = torch.add(below, at_full.view(below.shape[1:]), alpha=1 / channels).view(x.shape)
        gradient.mul_(x).mul_(1 - x)
        moment.lerp_(gradient, 1 - _MEMORY)
        square.mul_(_SQUARES).addcmul_(gradient, gradient, value=1 - _SQUARES)
        unbiased = math.sqrt(1 - _SQUARES**step)
        torch.sqrt(square, out=scale).add_(1e-8 * unbiased)
        w.addcdiv_(moment, scale, value=-rate * unbiased / (1 - _MEMORY**step))
        torch.sigmoid(w, out=x)
    return x


def _halved(images: Tensor) -> Tensor:
    """Return images (c, h, w, n) at half size: each pixel is the mean of 2 x 2 pixels."""
    rows = images[:, 0::2] + images[:, 1::2]
    return (rows[:, :, 0::2] + rows[:, :, 1::2]).mul_(0.25)


@dataclasses.dataclass(frozen=True)
class TexturedConfig(GeneratorConfig):
    """The shape of a generator with texture; sides are multiples of 4.

    Attributes:
        steps: number of gradient steps that give images their texture.
        rate: learning rate of the first of these steps.
    """

    steps: int = STEPS
    rate: float = RATE

    @property
    def outputs(self) -> int:
        """Length of v: the pixels of an image and the numbers of its texture."""
        return self.pixels + texture_size(self.height, self.width)


class TexturedGenerator(Generator):
    """Draws labelled images with texture; see the module."""

    config: TexturedConfig

    def decode(self, latents: Tensor, labels: Tensor) -> Tensor:
        """Map latents (n, d) of classes (n,) to images (n, c, h, w) in [0, 1]."""
        values, config = self.values(latents, labels), self.config
        images = values[:, : config.pixels].view(-1, config.channels, config.height, config.width)
        return render(images, values[:, config.pixels :], config.steps, config.rate)


def new_generator(config: GeneratorConfig, texture: bool, steps: int = STEPS, rate: float = RATE) -> Generator:
    """Return a generator with zeroed buffers. Its Gaussians cover images and, if requested, their textures."""
    if not texture:
        return Generator(config)
    return TexturedGenerator(TexturedConfig(**dataclasses.asdict(config), steps=steps, rate=rate))
