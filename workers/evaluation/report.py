"""The facts and images of a release's report, as JSON, and contact sheets.

They are the guarantee, panels that are computed from synthetic images alone, and technical facts. `service.reports`
renders the page, with later evaluations on public data.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from obscura.wire.provenance import encode_png

SAMPLES_PER_CLASS: Final = 10
FIRST_IMAGES: Final = 9  # on the first page
TILES: Final = 3  # in each row and column of the overview of a release
# Pairwise distances use at most this many images of a class: 200 give 19,900 pairs, enough for a mean.
PAIRED_IMAGES_MAX = 200
# Two images are near twins when their root-mean-square pixel difference is at most this share of the full range.
# The closest of 200 real images of a Fashion-MNIST class differ by 0.07 or more.
TWIN_DISTANCE_MAX = 0.02
TWIN_SHARE_MAX = 0.05
# Distance within a class relative to the distance between classes; real Fashion-MNIST classes lie at 0.57 to 0.93.
RELATIVE_DIVERSITY_MIN = 0.25

MODE_COLLAPSE_RULE = (
    f"A class is flagged when its mean pairwise distance is below {RELATIVE_DIVERSITY_MIN:.0%} of the mean distance "
    f"between images of different classes, or when more than {TWIN_SHARE_MAX:.0%} of its images have a near twin "
    f"(root-mean-square pixel difference of at most {TWIN_DISTANCE_MAX:.0%} of the range). "
    f"Both are computed on at most {PAIRED_IMAGES_MAX} images a class."
)

PAPER = (255, 255, 255)
INK = (38, 43, 51)
MARGIN_PIXELS = 16
GAP_PIXELS = 3
LABEL_GAP_PIXELS = 14
# Small images are enlarged by whole numbers only, so that every pixel stays a square.
SHOWN_HEIGHT_MIN_PIXELS = 56

Floats = npt.NDArray[np.float64]
Encode = Callable[[Image.Image], bytes]  # to PNG, marked as synthetic


def write_report(
    directory: Path,
    *,
    release: Mapping[str, Any],
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.int64],
    technical: Mapping[str, str] | None = None,
    encode: Encode = encode_png,
) -> None:
    """Write report.json into an existing folder. `service.reports` renders it, with the guarantee and evaluations.

    Args:
        release: public facts, as JSON: nothing here may depend on private data. `classes` are in label order.
        images: sample of the release, uint8 (n, h, w) or (n, h, w, c). Synthetic: the report shows them.
        technical: versions, config digest, hardware and similar facts, in display order.
    """
    labels = np.asarray(labels, dtype=np.int64)
    document = {
        "release": release,
        "synthetic": {**asdict(measure(images, labels, release["classes"])), "mode_collapse_rule": MODE_COLLAPSE_RULE},
        "technical": dict(technical or {}),
        "pictures": _pictures(images, labels, release["classes"], encode),
    }
    text = json.dumps(document, indent=2, ensure_ascii=False, sort_keys=True)
    (directory / "report.json").write_text(text + "\n", encoding="utf-8")


def _pictures(
    images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], classes: Sequence[str], encode: Encode
) -> dict[str, Any]:
    pixels = images[..., None] if images.ndim == 3 else images  # (n, h, w, c)

    def uri(members: npt.NDArray[Any]) -> str:
        png = encode(strip(np.rint(members).astype(np.uint8)))
        return "data:image/png;base64," + base64.b64encode(png).decode("ascii")

    shown: list[dict[str, Any]] = []
    for index, name in enumerate(classes):
        members = pixels[labels == index]  # (s, h, w, c)
        some = len(members) > 0
        mean = uri(members.mean(axis=0, keepdims=True)) if some else None
        shown.append({"name": name, "strip": uri(members[:SAMPLES_PER_CLASS]) if some else None, "mean": mean})
    first = [
        {"name": classes[labels[at]], "image": uri(pixels[at : at + 1])} for at in range(min(FIRST_IMAGES, len(labels)))
    ]
    return {"first": first, "classes": shown}


@dataclass(frozen=True)
class ClassPanel:
    """Figures of the synthetic images of one class. Distances are root-mean-square pixel differences in [0, 1]."""

    name: str
    images: int
    diversity: float
    diversity_relative: float
    twin_share: float
    collapsed: bool


@dataclass(frozen=True)
class Panels:
    """Figures of a release, from its synthetic images alone: post-processing, which costs no budget.

    `collapsed` are the names of the classes that the mode-collapse rule flags.
    """

    images: int
    classes: tuple[ClassPanel, ...]
    exact_duplicates: int
    between_class_distance: float
    collapsed: tuple[str, ...]


def measure(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], classes: Sequence[str]) -> Panels:
    """Measure synthetic images; a class without images has diversity 0 and is not flagged."""
    flat = images.reshape(len(images), -1)
    members = [flat[labels == index][:PAIRED_IMAGES_MAX].astype(np.float64) / 255.0 for index in range(len(classes))]
    present = [group for group in members if len(group)]
    means = [float(_distances(left, right).mean()) for i, left in enumerate(present) for right in present[i + 1 :]]
    between = float(np.mean(means)) if means else 0.0  # each pair of classes has equal weight
    panels = []
    for index, (name, group) in enumerate(zip(classes, members, strict=True)):
        diversity, twin_share = 0.0, 0.0
        if len(group) > 1:
            distances = _distances(group, group)
            diversity = float(distances[~np.eye(len(group), dtype=bool)].mean())
            np.fill_diagonal(distances, np.inf)
            twin_share = float((distances.min(axis=1) <= TWIN_DISTANCE_MAX).mean())
        relative = diversity / between if between > 0 else 0.0
        collapsed = len(group) > 1 and (
            twin_share > TWIN_SHARE_MAX or (between > 0 and relative < RELATIVE_DIVERSITY_MIN)
        )
        panels.append(ClassPanel(name, int((labels == index).sum()), diversity, relative, twin_share, collapsed))
    return Panels(
        images=len(images),
        classes=tuple(panels),
        exact_duplicates=len(flat) - len({row.tobytes() for row in np.ascontiguousarray(flat)}),
        between_class_distance=between,
        collapsed=tuple(panel.name for panel in panels if panel.collapsed),
    )


def _distances(left: Floats, right: Floats) -> Floats:
    """Return the root-mean-square difference (a, b) between each row of `left` (a, d) and of `right` (b, d)."""
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :] - 2.0 * left @ right.T
    distances: Floats = np.sqrt(np.maximum(squares, 0.0) / left.shape[1])
    return distances


def strip(images: npt.NDArray[np.uint8]) -> Image.Image:
    """Lay grey or RGB images (n, h, w, c) side by side on white, enlarged by the nearest-neighbour rule."""
    scale = max(1, math.ceil(SHOWN_HEIGHT_MIN_PIXELS / images.shape[1]))
    enlarged = images.repeat(scale, axis=1).repeat(scale, axis=2)
    spaced = np.pad(enlarged, ((0, 0), (0, 0), (0, GAP_PIXELS), (0, 0)), constant_values=255)
    row = np.concatenate(spaced, axis=1)[:, :-GAP_PIXELS]  # (h, w, c)
    return Image.fromarray(np.broadcast_to(row, (*row.shape[:2], 3)).copy())


def draw_grid(images: npt.NDArray[np.uint8], classes: Sequence[str], encode: Encode = encode_png) -> bytes:
    """Return a contact sheet as PNG, marked as synthetic.

    `images` are synthetic, (n, h, w, c), ordered by class, with equally many of each class.
    """
    rows = [strip(row) for row in np.split(images, len(classes))]
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
    return encode(sheet)


def draw_tiles(images: npt.NDArray[np.uint8], encode: Encode) -> bytes:
    """Return TILES x TILES synthetic images (n, h, w, c) as PNG, with transparent gaps, marked as synthetic."""
    _, height, width, _ = images.shape
    gap = max(1, height // 14)
    tiles = np.zeros((TILES, TILES, height + gap, width + gap, 4), dtype=np.uint8)
    tiles[:, :, :height, :width, :3] = images.reshape(TILES, TILES, height, width, -1)
    tiles[:, :, :height, :width, 3] = 255
    sheet = np.concatenate(np.concatenate(tiles, axis=1), axis=1)[:-gap, :-gap]
    return encode(Image.fromarray(sheet))
