"""Scattering coefficients of small images: fixed wavelets and moduli, nothing learned (Bruna & Mallat 2013).

Two scales (J = 2), eight orientations, two orders: a channel of h x w pixels becomes 81 maps of h/4 x w/4 (rounded up).
The transform processes one image at a time and is not fitted to data, so it is public and costs no privacy. A linear
classifier on its coefficients is hard to beat under differential privacy (Tramèr & Boneh 2021, arXiv:2011.11660).
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.portable.layers import groups_of

SCALES, _ANGLES = 2, 8
MAPS = 1 + SCALES * _ANGLES + _ANGLES**2  # maps per channel: orders 0, 1 and 2
_STEP = 2**SCALES
_SLANT = 4 / _ANGLES
_BLOCK, _BLOCK_IN_CACHE = 256, 16  # images at once; few on a CPU, so that spectra fit into its cache


class Scattering(nn.Module):
    """The scattering transform for images of one size."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.size = (math.ceil(height / _STEP), math.ceil(width / _STEP))
        below, right = self.size[0] * _STEP - height, self.size[1] * _STEP - width  # up to a multiple of four
        self._pad = (_STEP, _STEP + right, _STEP, _STEP + below)
        shape = (self.size[0] * _STEP + 2 * _STEP, self.size[1] * _STEP + 2 * _STEP)
        angles = [math.pi * (_ANGLES - _ANGLES / 2 - 1 - index) / _ANGLES for index in range(_ANGLES)]
        spectra = []
        for j, angle in itertools.product(range(SCALES), angles):
            # A wave in an envelope, minus a multiple of the envelope that makes the mean zero.
            wave = _gabor(shape, 0.8 * 2**j, 3 * math.pi / 4 / 2**j, angle, _SLANT)
            envelope = _gabor(shape, 0.8 * 2**j, 0.0, angle, _SLANT)
            spectra.append(torch.fft.fft2(wave - wave.sum() / envelope.sum() * envelope).real.float())
        wavelets = torch.unflatten(torch.stack(spectra), 0, (SCALES, _ANGLES))  # (J, L, H, W), of Morlet wavelets
        self.register_buffer("wavelets", wavelets, persistent=False)
        low_pass = torch.fft.fft2(_gabor(shape, 0.8 * 2 ** (SCALES - 1), 0.0, 0.0, 1.0)).real.float()
        self.register_buffer("low_pass", low_pass, persistent=False)

    wavelets: Tensor
    low_pass: Tensor

    def forward(self, images: Tensor) -> Tensor:
        """Return the scattering maps (n, c * 81, h / 4, w / 4), rounded up, of images (n, c, h, w)."""
        block = _BLOCK_IN_CACHE if images.device.type == "cpu" else _BLOCK
        mode = "reflect" if min(images.shape[2:]) > max(self._pad) else "replicate"
        found = []
        for part in torch.split(images, block):
            x = torch.fft.fft2(functional.pad(part.float(), self._pad, mode=mode))  # (n, c, H, W)
            maps = [self._average(x[:, :, None], 1)]
            fine = torch.fft.ifft2(x[:, :, None] * self.wavelets[0]).abs()  # (n, c, L, H, W)
            fine_hat = torch.fft.fft2(fine)
            maps.append(self._average(fine_hat, 1))
            coarse = torch.fft.ifft2(_fold(x[:, :, None] * self.wavelets[1], 2)).abs()
            maps.append(self._average(torch.fft.fft2(coarse), 2))
            for one in range(_ANGLES):
                second = torch.fft.ifft2(_fold(fine_hat[:, :, one, None] * self.wavelets[1], 2)).abs()
                maps.append(self._average(torch.fft.fft2(second), 2))
            found.append(torch.cat(maps, dim=2).flatten(1, 2))
        return torch.cat(found)

    def _average(self, spectra: Tensor, step: int) -> Tensor:
        """Smooth maps with the low-pass filter and crop the border.

        The spectra describe maps with every `step`-th pixel; the results have every fourth pixel.
        """
        height, width = (length // step for length in self.low_pass.shape)
        low_pass = _fold(self.low_pass[None], step)[0] * step * step if step > 1 else self.low_pass
        kept: Tensor = torch.fft.ifft2(_fold(spectra * low_pass[:height, :width], _STEP // step)).real
        return kept[..., 1:-1, 1:-1]


def scatter_head(maps: int, rows: int, columns: int, classes: int, *, convolutional: bool) -> nn.Module:
    """Return a classifier of scattering maps (n, maps, rows, columns): logistic regression, or a small CNN.

    It first normalises groups of a record's maps by their own mean and deviation (Tramèr & Boneh 2021).
    """
    norm = nn.GroupNorm(groups_of(maps, 27), maps, affine=False)
    if not convolutional:
        return nn.Sequential(norm, nn.Flatten(), nn.Linear(maps * rows * columns, classes))
    return nn.Sequential(
        norm,
        nn.Conv2d(maps, 64, 3, padding=1),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d((max(1, rows // 2), max(1, columns // 2))),
        nn.Conv2d(64, 32, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(32 * max(1, rows // 2) * max(1, columns // 2), classes),
    )


def _fold(spectra: Tensor, factor: int) -> Tensor:
    """Return the spectra of maps after subsampling by `factor`: the mean of the aliases in `spectra` (..., H, W)."""
    if factor == 1:
        return spectra
    height, width = spectra.shape[-2] // factor, spectra.shape[-1] // factor
    total = torch.zeros_like(spectra[..., :height, :width])
    for row in range(factor):  # summing slices is several times as fast as a mean over two axes
        for column in range(factor):
            total += spectra[..., row * height : (row + 1) * height, column * width : (column + 1) * width]
    return total / factor**2


def _gabor(shape: tuple[int, int], sigma: float, frequency: float, angle: float, slant: float) -> Tensor:
    """Return a complex Gabor filter (H, W), periodic on the grid: a wave times a Gaussian envelope of width sigma."""
    height, width = shape
    total = torch.zeros(shape, dtype=torch.complex128)
    cosine, sine = math.cos(angle), math.sin(angle)
    for row in range(-2, 3):
        for column in range(-2, 3):
            x = torch.arange(row * height, (row + 1) * height, dtype=torch.float64)[:, None]
            y = torch.arange(column * width, (column + 1) * width, dtype=torch.float64)[None]
            along, across = cosine * x + sine * y, -sine * x + cosine * y
            envelope = torch.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma * sigma))
            total += envelope * torch.exp(1j * frequency * along)
    return total / (2 * math.pi * sigma * sigma / slant)
