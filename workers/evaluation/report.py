"""The report on a release: one self-contained HTML file, and the same facts as JSON; and contact sheets of images.

The page shows the guarantee, panels that are computed from synthetic images alone, and technical facts. Evaluations on
public data come later, and `service.reports` inserts them when it serves the report.
"""

from __future__ import annotations

import base64
import functools
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import jinja2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from obscura.wire.wording import ADJACENCIES, EARLY_ENDS, FILTERS
from privacy.accounting.filter import attacker_certainty_max, open_filter
from privacy.plans.moments import VISIBLE

SAMPLES_PER_CLASS: Final = 10
TILES: Final = 3  # in each row and column of the overview of a release
# The odds table of the report; the account's limit is added as a row.
EPSILON_EXAMPLES: Final = (0.5, 1.0, 2.0, 3.0, 8.0)
UNIT_KEYS: Final = {
    "record": "protected unit: each record by itself",
    "subject": "protected unit: all records of a subject together",
}


HISTOGRAM_BINS = 32
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


@dataclass(frozen=True)
class PaidStage:
    """One stage of the plan: the number of its releases, their noise and their total cost."""

    name: str
    releases: int
    noise_multiplier: float
    cost_nano: int


@dataclass(frozen=True)
class ReleaseFacts:
    """Public facts about a release. Nothing here may depend on private data.

    Attributes:
        classes: declared class names, in label order.
        created_at: ISO 8601, UTC.
        facts: further public numbers of the plan (teachers, images to aggregate, ...).
        notes: the plan's notes for its reader, as sentences.
        account_epsilon: epsilon of everything that the account may ever publish, at the card's delta. This is the
            account's limit or, if larger, the epsilon that was spent and held when the limit was lowered.
        account_attacker_certainty_max: highest certainty, in [0, 1], that everything ever published gives an attacker
            who started at 50%.
        account_nano: upper bound on the cost of everything that the account may ever publish.
        account_spent_nano: total spent by the account, including this release; None if unknown.
        incomplete: `reason` and completed `fraction` of the planned releases, if the training ended early; otherwise
            None.
    """

    name: str
    dataset: str
    account: str
    recipe: str
    classes: tuple[str, ...]
    created_at: str
    account_epsilon: float
    account_attacker_certainty_max: float
    account_nano: int
    stages: tuple[PaidStage, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    account_spent_nano: int | None = None
    incomplete: Mapping[str, Any] | None = None


def write_report(
    directory: Path,
    *,
    card: Mapping[str, Any],
    release: ReleaseFacts,
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.int64],
    technical: Mapping[str, str] | None = None,
) -> None:
    """Write report.html and report.json into an existing folder.

    Args:
        card: the release's privacy card, as JSON; KeyError if it lacks a fact that the guarantee needs.
        images: sample of the release, uint8 (n, h, w) or (n, h, w, c). Synthetic: the report shows them.
        technical: versions, config digest, hardware and similar facts, in display order.
    """
    labels = np.asarray(labels, dtype=np.int64)
    panels = measure(images, labels, release.classes)
    copied = ("delta", "unit", "adjacency", "accounting", "rate", "base", "capacity_nano", "cost_nano")
    guarantee = {
        **{key: card[key] for key in copied},
        "epsilon": float(card["epsilon"]),
        "pld_epsilon": card.get("pld_epsilon"),
        "accountant": " ".join(str(card[key]) for key in ("accountant", "accountant_version") if card.get(key)),
        "attacker_certainty_max": release.account_attacker_certainty_max,
        "assumed_public": list(card["assumed_public"]),
        "not_covered": list(card["not_covered"]),
    }
    facts = {str(name): value for name, value in release.facts.items()}
    document = {
        "release": {**asdict(release), "facts": facts},
        "guarantee": guarantee,
        "synthetic": {**asdict(panels), "mode_collapse_rule": MODE_COLLAPSE_RULE},
        "technical": dict(technical or {}),
    }
    document = json.loads(json.dumps(document, default=str))
    (directory / "report.json").write_text(
        json.dumps(document, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8"
    )
    odds = [(release.account_epsilon, release.account_attacker_certainty_max, True)]
    for epsilon in EPSILON_EXAMPLES:
        if not math.isclose(epsilon, release.account_epsilon, rel_tol=0.02):  # omit a nearly equal row
            odds.append((epsilon, attacker_certainty_max(open_filter(epsilon, card["delta"])), False))
    page = template().render(
        **document,
        pictures=_pictures(images, labels, release.classes),
        odds=sorted(odds),
        histogram_peak=max(panels.histogram),
        early_words=EARLY_ENDS,
        unit_keys=UNIT_KEYS,
        adjacencies=ADJACENCIES,
        visible=VISIBLE,
    )
    (directory / "report.html").write_text(page, encoding="utf-8")


@functools.cache
def template() -> jinja2.Template:
    """Return the page's template, compiled once for a process."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= FILTERS
    return environment.get_template("report.html")


def _pictures(
    images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], classes: Sequence[str]
) -> list[dict[str, Any]]:
    pixels = images[..., None] if images.ndim == 3 else images  # (n, h, w, c)
    shown: list[dict[str, Any]] = []
    for index, name in enumerate(classes):
        members = pixels[labels == index]
        shown.append({"name": name, "strip": None, "mean": None})
        if len(members):
            parts = {"strip": members[:SAMPLES_PER_CLASS], "mean": members.mean(axis=0, keepdims=True)}  # (s, h, w, c)
            for key, part in parts.items():
                buffer = io.BytesIO()
                strip(as_pixels(np.moveaxis(part, -1, 1) / 255.0)).save(buffer, format="PNG")
                shown[-1][key] = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
    return shown


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
    histogram: tuple[float, ...]
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
    counts, _ = np.histogram(images, bins=HISTOGRAM_BINS, range=(0, 256))
    return Panels(
        images=len(images),
        classes=tuple(panels),
        exact_duplicates=len(flat) - len({row.tobytes() for row in np.ascontiguousarray(flat)}),
        between_class_distance=between,
        histogram=tuple(float(share) for share in counts / max(1, counts.sum())),
        collapsed=tuple(panel.name for panel in panels if panel.collapsed),
    )


def _distances(left: Floats, right: Floats) -> Floats:
    """Return the root-mean-square difference (a, b) between each row of `left` (a, d) and of `right` (b, d)."""
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :] - 2.0 * left @ right.T
    distances: Floats = np.sqrt(np.maximum(squares, 0.0) / left.shape[1])
    return distances


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


def draw_tiles(images: npt.NDArray[np.uint8]) -> bytes:
    """Return TILES x TILES synthetic images (n, h, w, c) as PNG, with transparent gaps."""
    _, height, width, _ = images.shape
    gap = max(1, height // 14)
    tiles = np.zeros((TILES, TILES, height + gap, width + gap, 4), dtype=np.uint8)
    tiles[:, :, :height, :width, :3] = images.reshape(TILES, TILES, height, width, -1)
    tiles[:, :, :height, :width, 3] = 255
    sheet = np.concatenate(np.concatenate(tiles, axis=1), axis=1)[:-gap, :-gap]
    buffer = io.BytesIO()
    Image.fromarray(sheet).save(buffer, format="PNG")
    return buffer.getvalue()
