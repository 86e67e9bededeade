"""What the owner of the pictures has chosen, in the words of the command line and of the SDK."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import ImageColor

from service.client.preparing.errors import PackingError

SIDE_MIN, SIDE_MAX = 8, 128  # of the images that generators are made for

Size = tuple[int, int]  # width, height
Colour = tuple[int, int, int]
Fit = Literal["crop", "pad"]


@dataclass(frozen=True)
class Choices:
    """How the pictures of a folder become the images of a dataset.

    Attributes:
        size: (width, height) that every picture is brought to; None where all are alike already.
        fit: "crop" fills the size and cuts off what stands out, the same on both sides; "pad" shows the whole picture
            and fills the rest with the background, or with black.
        background: What transparent pictures are laid on.
        grey: Whether colours are given up. Without it pictures become grey only if all of them are.
        labels: A table with the columns file and label, instead of class folders.
        attributes: Of CelebA: one makes two classes, several make one class each.
        split: Which part of a dataset that comes in parts: train, test, t10k, ...
        skip_broken: Whether pictures that cannot be read are left out.
    """

    size: Size | None = None
    fit: Fit = "crop"
    background: Colour | None = None
    background_name: str = "black"
    grey: bool = False
    labels: Path | None = None
    attributes: tuple[str, ...] = ()
    split: str | None = None
    skip_broken: bool = False

    @property
    def touch_every_picture(self) -> bool:
        """Whether even pictures that are all alike must be made anew."""
        return self.size is not None or self.grey


def read_choices(
    *,
    size: str | int | Size | None = None,
    fit: str = "crop",
    background: str | None = None,
    grey: bool = False,
    labels: str | Path | None = None,
    attribute: str | None = None,
    split: str | None = None,
    skip_broken: bool = False,
) -> Choices:
    """Read choices as people write them: `size="64x48"` (width x height), `background="white"` or `"#ffeedd"`.

    Raises:
        PackingError: A word is not understood.
    """
    if fit not in ("crop", "pad"):
        raise PackingError(f"--fit is crop or pad, not {fit!r}.")
    attributes = tuple(name.strip() for name in attribute.split(",")) if attribute else ()
    return Choices(
        size=None if size is None else _size(size),
        fit="pad" if fit == "pad" else "crop",
        background=None if background is None else _colour(background),
        background_name=background or "black",
        grey=grey,
        labels=None if labels is None else Path(labels),
        attributes=attributes,
        split=split,
        skip_broken=skip_broken,
    )


def fits(width: int, height: int) -> bool:
    """Whether images may have this size."""
    return min(width, height) >= SIDE_MIN and max(width, height) <= SIDE_MAX


def _size(size: str | int | Size) -> Size:
    text = "x".join(map(str, size)) if isinstance(size, tuple) else str(size)
    found = re.fullmatch(r"\s*(\d{1,6})(?:\s*[xX×]\s*(\d{1,6}))?\s*", text)
    if found is None:
        raise PackingError(f"--size is a number of pixels such as 64, or width x height such as 64x48, not {text!r}.")
    width, height = int(found[1]), int(found[2] or found[1])
    if not fits(width, height):
        raise PackingError(f"--size takes sides of {SIDE_MIN} to {SIDE_MAX} pixels, not {width} x {height}.")
    return width, height


def _colour(text: str) -> Colour:
    try:
        red, green, blue = ImageColor.getrgb(text.strip())[:3]
    except ValueError:
        raise PackingError(
            f"--background is the name of a colour, such as white, or a hex number, such as #ffeedd, not {text!r}."
        ) from None
    return red, green, blue
