"""Contact sheets of synthetic images: one row per class, its name on the left."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

PAPER = (255, 255, 255)
INK = (38, 43, 51)
MARGIN_PIXELS = 16
GAP_PIXELS = 3
LABEL_GAP_PIXELS = 14
# Small images are enlarged by whole numbers only, so that every pixel stays a square.
SHOWN_HEIGHT_MIN_PIXELS = 56


def as_pixels(images: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """Convert float images (n, c, h, w) in [0, 1] to uint8 RGB (n, h, w, 3)."""
    array = np.asarray(images, dtype=np.float32)
    pixels = np.rint(np.clip(np.nan_to_num(array), 0.0, 1.0) * 255.0).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(pixels, (len(pixels), 3, *pixels.shape[2:])).transpose(0, 2, 3, 1))


def strip(pixels: npt.NDArray[np.uint8]) -> Image.Image:
    """Lay RGB images (n, h, w, 3) side by side on white, enlarged by the nearest-neighbour rule."""
    count, height, width, _ = pixels.shape
    scale = max(1, math.ceil(SHOWN_HEIGHT_MIN_PIXELS / height))
    step = width * scale + GAP_PIXELS
    canvas = np.full((height * scale, count * step - GAP_PIXELS, 3), 255, dtype=np.uint8)
    enlarged = pixels.repeat(scale, axis=1).repeat(scale, axis=2)
    for column, picture in enumerate(enlarged):
        left = column * step
        canvas[:, left : left + width * scale] = picture
    return Image.fromarray(canvas)


def draw_grid(images: npt.ArrayLike, classes: Sequence[str]) -> bytes:
    """Return a contact sheet as PNG.

    `images` are synthetic, float (n, c, h, w) in [0, 1], ordered by class, with equally many of each class.
    """
    pixels = as_pixels(images)
    columns = len(pixels) // len(classes)
    rows = [strip(pixels[i * columns : (i + 1) * columns]) for i in range(len(classes))]
    font = ImageFont.load_default(size=15)
    labels = [name if len(name) <= 24 else name[:23] + "…" for name in classes]
    label_width = math.ceil(max(font.getlength(label) for label in labels))

    left = MARGIN_PIXELS + label_width + LABEL_GAP_PIXELS
    row_height = rows[0].height + GAP_PIXELS
    sheet = Image.new(
        "RGB", (left + rows[0].width + MARGIN_PIXELS, 2 * MARGIN_PIXELS + row_height * len(rows) - GAP_PIXELS), PAPER
    )
    draw = ImageDraw.Draw(sheet)
    for index, (label, row) in enumerate(zip(labels, rows, strict=True)):
        top = MARGIN_PIXELS + index * row_height
        sheet.paste(row, (left, top))
        draw.text((left - LABEL_GAP_PIXELS, top + row.height / 2), label, fill=INK, font=font, anchor="rm")
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG")
    return buffer.getvalue()
