"""Public pictures from a source of their own: Debian's package openclipart-png, or a folder of PNGs.

Clip art is drawn on white or on nothing. For GEP's anchors it stands on black, as light as the ink is dark, which is
how the images of the MNIST family stand; for `select_public` it stays in colour on white.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from benchmarks.fetching import debian_folder

_FOLDER = Path("/usr/share/openclipart/png")
_SEED = 1
_BYTES_MAX = 100_000  # larger files are posters of up to 600 million pixels


def load_clipart(count: int, size: int, *, colour: bool = False) -> npt.NDArray[np.uint8]:
    """Return pictures (n, size, size[, 3]), n at most `count`: a draw of a public seed from all that the folder has."""
    named = os.environ.get("OBSCURA_OPENCLIPART")
    folder = Path(named) if named else debian_folder("openclipart-png", _FOLDER)
    paths = [path for path in sorted(folder.rglob("*.png")) if path.stat().st_size <= _BYTES_MAX]
    if not paths:
        raise FileNotFoundError(
            "Public pictures were not found: install Debian's package openclipart-png, or set OBSCURA_OPENCLIPART to a "
            "folder of PNG files"
        )
    order = np.random.Generator(np.random.PCG64(_SEED)).permutation(len(paths))
    pictures = []
    for place in order[:count]:
        with Image.open(paths[place]) as picture:
            white = _on_white(picture).convert("RGB" if colour else "L")
        resized = np.asarray(white.resize((size, size), Image.Resampling.BOX), dtype=np.uint8)
        pictures.append(resized if colour else 255 - resized)
    return np.stack(pictures)


def _on_white(picture: Image.Image) -> Image.Image:
    """Return one picture in colour, whole and in the middle."""
    drawn = picture.convert("RGBA")
    side = max(drawn.size)
    white = Image.new("RGBA", (side, side), "white")
    white.alpha_composite(drawn, ((side - drawn.width) // 2, (side - drawn.height) // 2))
    return white
