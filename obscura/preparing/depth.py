"""Numbers of more than eight bits, signed or measured: which of them is black and which is white.

White is what the format says, what the file says of itself (a window), or what its owner states. It is never read off
the pictures: a window that follows from the brightest of them would change with one record.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from obscura.preparing.errors import ChoiceNeeded, PackingError, Unreadable

BITS_MIN, BITS_MAX = 9, 32
Window = tuple[float, float]  # what becomes black, and what becomes white
_USED_MIN = 0.5  # of the numbers that a format can hold; below it a bit or more of them is never used
_DARK = 0.25  # a picture whose numbers stay below this part of white, beside brighter ones
_STATE_WINDOW = "--window LOW,HIGH"
_FAR_BELOW = (
    "stay far below what their format calls white, as those of devices with 10, 12 or 14 bits do: the pictures would "
    "be almost black"
)
COLOUR_LIMITS: Window = (0, 2**16 - 1)


@dataclass(frozen=True, slots=True)
class Numbers:
    """A grey picture before it has eight bits.

    Attributes:
        values: (h, w), integers or floats.
        limits: The numbers that its format calls black and white; None where it names none, as of measured values.
        own: The same picture as the window that stands in its file shows it, where one does.
        inverted: Whether the smallest number is the brightest.
        integers: Whether the values are counted from 0 on, so that a depth in bits says what white is.
    """

    values: np.ndarray[Any, Any]
    limits: Window | None
    own: Numbers | None = None
    inverted: bool = False
    integers: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """What the owner of the pictures has stated about all of them.

    Attributes:
        depth: Bits of the brightest number.
        window: The numbers that become black and white; "auto" takes the window that stands in each file.
    """

    depth: int | None = None
    window: Window | Literal["auto"] | None = None

    @property
    def stated(self) -> bool:
        """Whether anything was."""
        return self.depth is not None or self.window is not None


FORMAT_SCALE = Scale()


def read_scale(depth: str | int | None, window: str | Sequence[float] | None) -> Scale:
    """Read what was stated: `depth=12`, `window="-160,240"` or `(-160, 240)` or `"auto"`.

    Raises:
        PackingError: It is not understood.
    """
    if depth is not None and window is not None:
        raise PackingError("Give --depth or --window: each says which number is white.")
    if depth is not None:
        bits = int(depth) if re.fullmatch(r"\d{1,2}", str(depth)) else 0
        if not BITS_MIN <= bits <= BITS_MAX:
            raise PackingError(f"--depth is how many bits the numbers have, {BITS_MIN} to {BITS_MAX}, not {depth}.")
        return Scale(bits)
    if window is None:
        return FORMAT_SCALE
    if window == "auto":
        return Scale(window="auto")
    words = re.split(r"[,\s]+", window.strip()) if isinstance(window, str) else list(window)
    try:
        low, high = map(float, words)
    except ValueError:
        low, high = math.nan, math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise PackingError(
            "--window is the number that becomes black and the larger one that becomes white, such as -160,240, or "
            f"auto; not {window!r}."
        )
    return Scale(None, (low, high))


def eight_bits(numbers: Numbers, scale: Scale) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bring a picture to eight bits: (h, w), the same for every picture of one scale. What lies outside is cut off.

    Raises:
        Unreadable: Neither the format nor the file nor its owner says what black and white are, or a value is NaN.
    """
    shown, limits = _shown(numbers, scale)
    if limits is None:
        raise Unreadable("nothing says which of its numbers is black and which is white")
    _require_numbers(shown)
    low, high = limits
    part = (shown.astype(np.float64) - low) / (high - low)
    bright = np.rint(np.clip(part, 0, 1) * 255).astype(np.uint8)
    return 255 - bright if numbers.inverted else bright


def _shown(numbers: Numbers, scale: Scale) -> tuple[np.ndarray[Any, Any], Window | None]:
    if isinstance(scale.window, tuple):
        return numbers.values, scale.window
    if numbers.own is not None:
        return numbers.own.values, numbers.own.limits
    if scale.depth is not None and numbers.integers:
        return numbers.values, (0, 2**scale.depth - 1)
    return numbers.values, numbers.limits


def _require_numbers(values: np.ndarray[Any, Any]) -> None:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise Unreadable("some of its values are no numbers (NaN or infinity)")


@dataclass(frozen=True, slots=True)
class Depth:
    """What one picture's numbers are, as its owner's machine sees them. Stays there.

    Attributes:
        limits: As of its `Numbers`.
        lowest: Smallest of them.
        highest: Largest of them.
        windowed: Whether its file states a window.
        integers: As of its `Numbers`.
        colour: Whether it is a colour picture, of which the upper eight bits are read.
    """

    limits: Window | None
    lowest: float
    highest: float
    windowed: bool = False
    integers: bool = True
    colour: bool = False


def depth_of(numbers: Numbers) -> Depth | None:
    """Say what the numbers of a picture are; None of one that has eight bits and its format's own white.

    Raises:
        Unreadable: It has no pixels, or a value is NaN.
    """
    if not numbers.values.size:
        raise Unreadable("it has no pixels")
    _require_numbers(numbers.values)
    low, high = numbers.limits or (0.0, math.inf)
    if high - low <= 255 and low == 0 and numbers.own is None:
        return None
    return Depth(
        numbers.limits,
        float(numbers.values.min()),
        float(numbers.values.max()),
        numbers.own is not None,
        numbers.integers,
    )


@dataclass
class Depths:
    """What the numbers of all pictures are: whether their owner must say what white is."""

    private_used: dict[Window, Window] = field(default_factory=dict)  # the numbers in use, by those that can be
    private_colour: Window | None = None  # the same of colour pictures of 16 bits
    unlimited: int = 0
    windowed: int = 0
    counted: bool = False  # whether a depth in bits says what white is
    dark: bool = False
    bright: bool = False

    def add(self, depth: Depth) -> None:
        """Count one picture of more than eight bits."""
        if depth.windowed:
            self.windowed += 1
        elif depth.limits is None:
            self.unlimited += 1
        elif depth.colour:
            self.private_colour = _wider(self.private_colour, depth)
        else:
            self.private_used[depth.limits] = _wider(self.private_used.get(depth.limits), depth)
            self.counted = self.counted or depth.integers
            part = _used(depth.limits, (depth.lowest, depth.highest))
            self.dark, self.bright = self.dark or 0 < part < _DARK, self.bright or part >= _USED_MIN

    def require(self, scale: Scale, others: int) -> None:
        """Let pictures pass whose white is known. others: how many have eight bits.

        Raises:
            ChoiceNeeded: Only their owner knows it.
            PackingError: What was stated does not go with the pictures.
        """
        if scale.stated:
            self._require_kept(scale)
            return
        if self.unlimited:
            raise ChoiceNeeded(
                "Some pictures hold signed or measured values, and nothing in them says which number is black and "
                "which is white. State it, the same for all pictures, such as -160,240 for soft tissue in a CT; it is "
                "not read off the pictures, for then one of them would change all.",
                [_STATE_WINDOW],
            )
        if len(self.private_used) > 1 or (self.private_used and others):
            self._ask("Some pictures have more bits than others, so that one number is not equally bright in all.")
        if any(_used(limits, used) < _USED_MIN for limits, used in self.private_used.items()):
            self._ask(f"The numbers in these pictures {_FAR_BELOW}.")
        if self.private_colour is not None and _used(COLOUR_LIMITS, self.private_colour) < _USED_MIN:
            raise ChoiceNeeded(
                f"The numbers in these colour pictures {_FAR_BELOW}, and the upper eight bits alone are read. Save "
                "them with eight bits a channel first, or say that they are as dark as that.",
                ["--depth 16"],
            )
        if self.dark and self.bright:
            self._ask("Some pictures use all bits of their format, and others stay far below, as of another device.")

    def _ask(self, why: str) -> None:
        if not self.counted:
            raise ChoiceNeeded(f"{why} State which number is black and which is white.", [_STATE_WINDOW])
        raise ChoiceNeeded(
            f"{why} State how many bits your device stores, such as 12 (16 if they are as they should be), or with "
            f"{_STATE_WINDOW} which number is black and which is white.",
            ["--depth 12"],
        )

    def _require_kept(self, scale: Scale) -> None:
        if self.private_colour is not None and scale != Scale(depth=16):
            raise PackingError(
                "Of colour pictures with 16 bits a channel the upper eight are read, so --depth and --window are for "
                "grey ones. Save the colour pictures with eight bits a channel first."
            )
        if scale.window == "auto":
            if self.unlimited or self.private_used or not self.windowed:
                raise PackingError(
                    "--window auto takes the window that stands in each DICOM or NIfTI file, and some of these "
                    "pictures have none. A window that follows from the pictures' own numbers would change with one "
                    f"of them: state it ({_STATE_WINDOW})."
                )
        elif scale.depth is None:
            if not (self.unlimited or self.private_used or self.windowed):
                raise PackingError("--window is for pictures of more than eight bits, and none of these has more.")
        elif self.unlimited:
            raise ChoiceNeeded(
                "Some pictures hold signed or measured values, for which a depth in bits does not say what white is.",
                [_STATE_WINDOW],
            )
        elif not (self.counted or self.private_colour):
            raise PackingError("--depth is for pictures that count from 0 in more than eight bits, and there is none.")
        elif any(used[1] > 2**scale.depth - 1 for used in self.private_used.values()):
            raise PackingError(
                f"Some pictures hold numbers above those of {scale.depth} bits: state a larger --depth, or which "
                f"number is white with {_STATE_WINDOW}."
            )


def _wider(used: Window | None, depth: Depth) -> Window:
    low, high = used or (depth.lowest, depth.highest)
    return min(low, depth.lowest), max(high, depth.highest)


def _used(limits: Window, used: Window) -> float:
    """Which part of the numbers that can be is in use: up to the largest where they begin at 0, else between both."""
    low = limits[0] if limits[0] >= 0 else used[0]
    return (used[1] - low) / (limits[1] - limits[0])
