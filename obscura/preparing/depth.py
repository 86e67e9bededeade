"""Decide which number is black and which is white, in images with more than eight bits or with measured values.

The format, a window stored in the file, or the owner defines white. White is never derived from the images: a window
set by the brightest image would change with one record.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from obscura.errors import ChoiceNeeded, PackingError, Unreadable

BITS_MIN, BITS_MAX = 9, 32
Window = tuple[float, float]  # the numbers that become black and white
_USED_MIN = 0.5  # of a format's range; below this share at least one bit is never used
_DARK = 0.25  # of white; an image whose numbers are all below it is dark
_STATE_WINDOW = "--window LOW,HIGH"
_BINS = 2**16
_LEVELS_MIN = 64  # required of 256 levels, unless the images have hardly more themselves
_MOST, _FEW_LEVELS = 0.9, 32  # too few levels for this share of the pixels, without background and clipped pixels
_PIXELS_COUNTED_MAX = 2**20  # pixels sampled from one image
_USUAL_WINDOWS: tuple[Window, ...] = ((0, 1), (-1, 1), (0, 255), (-1024, 3071))  # the last one is CT's
_CT_OFFSETS = (0, 1024, 2**15)  # added to Hounsfield units, -1024 to 3071, in files without negative numbers
_FAR_BELOW = (
    "stay far below the white of their format, as is usual for devices with 10, 12 or 14 bits: the images would be "
    "almost black"
)
COLOUR_LIMITS: Window = (0, 2**16 - 1)


@dataclass(frozen=True, slots=True)
class Numbers:
    """A grey image before conversion to eight bits: (h, w) integers or floats.

    Attributes:
        limits: Black and white as the format defines them; None for measured values.
        own: The same image after applying the window stored in its file, if any.
        inverted: True if the smallest number is the brightest.
        integers: True if values are integers from 0, so that a depth in bits defines white.
    """

    values: np.ndarray[Any, Any]
    limits: Window | None
    own: Numbers | None = None
    inverted: bool = False
    integers: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """Black and white, stated by the owner for all images: the bit depth of white, or a window."""

    depth: int | None = None
    window: Window | Literal["auto"] | None = None  # "auto" uses the window stored in each file


FORMAT_SCALE = Scale()


def read_scale(depth: str | int | None, window: str | Sequence[float] | None) -> Scale:
    """Parse the options: `depth=12`, `window="-160,240"`, `(-160, 240)` or `"auto"`."""
    if depth is not None and window is not None:
        raise PackingError("Give --depth or --window, not both: each states which number is white.")
    if depth is not None:
        bits = int(depth) if re.fullmatch(r"\d{1,2}", str(depth)) else 0
        if not BITS_MIN <= bits <= BITS_MAX:
            raise PackingError(f"--depth takes the bits per grey value, {BITS_MIN} to {BITS_MAX}, not {depth}.")
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
            "--window takes auto, or two increasing numbers that become black and white, such as -160,240; not "
            f"{window!r}."
        )
    return Scale(None, (low, high))


def eight_bits(numbers: Numbers, scale: Scale) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Convert numbers to (h, w) uint8, in the same way for all images. Values outside the scale are clipped."""
    shown, limits = _shown(numbers, scale)
    if limits is None:
        raise Unreadable("nothing says which of its numbers is black and which is white")
    _require_numbers(shown)
    low, high = limits
    part = (shown.astype(np.float64) - low) / (high - low)
    bright = np.rint(np.clip(part, 0, 1) * 255).astype(np.uint8)
    return 255 - bright if numbers.inverted else bright


def _loses_contrast(counts: np.ndarray[Any, np.dtype[np.int64]]) -> bool:
    bright = np.rint(np.arange(_BINS) / (_BINS - 1) * 255).astype(np.int64)
    levels = np.bincount(bright, counts, 256)
    kept = int(np.count_nonzero(levels))
    if kept < _LEVELS_MIN and np.count_nonzero(counts) > 2 * kept:
        return True
    tissue = _tissue(counts)
    kept = _covering(np.bincount(bright, tissue, 256))
    return bool(20 * tissue.sum() > counts.sum()) and kept < _FEW_LEVELS and _covering(tissue) > 2 * kept


def _tissue(counts: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    rest = counts.copy()
    rest[[0, -1, int(counts.argmax())]] = 0
    return rest


def _covering(counts: np.ndarray[Any, Any]) -> int:
    most = np.cumsum(np.sort(counts)[::-1])
    return int(np.searchsorted(most, _MOST * most[-1])) + 1


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
        raise Unreadable("some of its values are not numbers (NaN or infinity)")


@dataclass(frozen=True, slots=True)
class Depth:
    """Range of the numbers of one image. Never leaves this machine.

    Attributes:
        limits, integers: As in `Numbers`.
        windowed: True if the file stores a window.
        colour: True for a 16-bit colour image, of which only the upper eight bits are read.
        brightness: (n,) sampled pixels, 0 for black to 65535 for white; empty if black and white are not defined.
    """

    limits: Window | None
    lowest: float
    highest: float
    windowed: bool = False
    integers: bool = True
    colour: bool = False
    brightness: np.ndarray[Any, np.dtype[np.uint16]] | None = field(default=None, repr=False, compare=False)


def depth_of(numbers: Numbers) -> Depth | None:
    """Return the range of an image's numbers; None if black is 0, white is at most 255, and no window is stored."""
    if not numbers.values.size:
        raise Unreadable("it has no pixels")
    _require_numbers(numbers.values)
    low, high = numbers.limits or (0.0, math.inf)
    if high - low <= 255 and low == 0 and numbers.own is None:
        return None
    shown, limits = _shown(numbers, FORMAT_SCALE)
    brightness = np.zeros(0, np.uint16)
    if limits is not None:
        low, high = limits
        pixels = shown.ravel()[:: -(-shown.size // _PIXELS_COUNTED_MAX)].astype(np.float64)
        brightness = np.rint(np.clip((pixels - low) / (high - low), 0, 1) * (_BINS - 1)).astype(np.uint16)
    lowest, highest = float(numbers.values.min()), float(numbers.values.max())
    windowed = numbers.own is not None
    return Depth(numbers.limits, lowest, highest, windowed, numbers.integers, brightness=brightness)


@dataclass
class Depths:
    """Ranges of all images, to decide whether the owner must state which number is white."""

    private_used: dict[Window, Window] = field(default_factory=dict)  # range of used numbers, by format limits
    private_colour: Window | None = None  # range of used numbers in colour images of 16 bits
    private_measured: Window | None = None  # range of used numbers in images whose format has no limits
    windowed: bool = False
    counted: bool = False  # whether a depth in bits defines white
    dark: bool = False
    bright: bool = False
    # Pixels by brightness, scaled by the format's limits and by the windows in the files.
    private_histogram: np.ndarray[Any, np.dtype[np.int64]] = field(default_factory=lambda: np.zeros(_BINS, np.int64))
    private_windows: np.ndarray[Any, np.dtype[np.int64]] = field(default_factory=lambda: np.zeros(_BINS, np.int64))

    def add(self, depth: Depth) -> None:
        if depth.brightness is not None:
            np.add.at(self.private_windows if depth.windowed else self.private_histogram, depth.brightness, 1)
        if depth.windowed:
            self.windowed = True
        elif depth.limits is None:
            self.private_measured = _wider(self.private_measured, depth)
        elif depth.colour:
            self.private_colour = _wider(self.private_colour, depth)
        else:
            self.private_used[depth.limits] = _wider(self.private_used.get(depth.limits), depth)
            self.counted = self.counted or depth.integers
            part = _used(depth.limits, (depth.lowest, depth.highest))
            self.dark, self.bright = self.dark or 0 < part < _DARK, self.bright or part >= _USED_MIN

    def require(self, scale: Scale, others: int) -> None:
        """Raise unless white is defined for all images. `others` is the number of images with eight bits."""
        if scale != FORMAT_SCALE:
            self._require_applies(scale)
            return
        if self.private_measured is not None:
            raise ChoiceNeeded(
                "Some images contain signed or measured values, and their files do not define black and white. State "
                "which number is black and which is white in all images, such as -160,240 for soft tissue in a CT. "
                "Obscura never derives these numbers from the images, because then one image could change all others.",
                [_usual_window([self.private_measured, *self.private_used.values()])],
            )
        if len(self.private_used) > 1 or (self.private_used and others):
            self._ask("Some images have more bits than others, so the same number is not equally bright in all.")
        if any(_used(limits, used) < _USED_MIN for limits, used in self.private_used.items()):
            self._ask(f"The numbers in these images {_FAR_BELOW}.")
        if self.private_colour is not None and _used(COLOUR_LIMITS, self.private_colour) < _USED_MIN:
            raise ChoiceNeeded(
                f"The numbers in these colour images {_FAR_BELOW}. Only the upper eight bits of each channel are read. "
                "Save the images with eight bits per channel first; or, if they are meant to be dark, confirm it.",
                ["--depth 16"],
            )
        if self.private_colour is not None and self.private_colour[1] - self.private_colour[0] < _LEVELS_MIN * 257:
            raise ChoiceNeeded(
                f"These colour images have 16 bits per channel, and would keep fewer than {_LEVELS_MIN} of 256 levels, "
                "because only the upper eight bits are read. Save them with eight bits per channel first; or, if they "
                "are correct, confirm it.",
                ["--depth 16"],
            )
        if self.dark and self.bright:
            self._ask("Some images use all bits of their format, and others stay far below, as if from another device.")
        if _loses_contrast(self.private_windows):
            raise ChoiceNeeded(
                f"With the windows in these files, most pixels would get fewer than {_LEVELS_MIN} of 256 grey levels. "
                "If these windows are correct, confirm them with --window auto. Otherwise, state which number is black "
                "and which is white.",
                [_STATE_WINDOW],
            )
        if _loses_contrast(self.private_histogram):
            low, high = next(iter(self.private_used))
            asis = f"--depth {round(math.log2(high + 1))}" if self.counted else f"--window {low:.9g},{high:.9g}"
            window = _window_for(self.private_histogram, (low, high))
            raise ChoiceNeeded(
                f"The format of these images defines {low:,.9g} as black and {high:,.9g} as white, but most pixels are "
                f"so close together that they would get fewer than {_LEVELS_MIN} of 256 grey levels. If the images are "
                f"correct as they are, add {asis}. If you know the window of your device, state it with --window. A "
                f"window of {window} contains most pixels of these images.",
                [f"--window {window}"],
            )

    def _ask(self, why: str) -> None:
        if not self.counted:
            flag = _usual_window(list(self.private_used.values()))
            raise ChoiceNeeded(f"{why} State which number is black and which is white.", [flag])
        raise ChoiceNeeded(
            f"{why} State which number is black and which is white with {_STATE_WINDOW}. Or state how many bits your "
            "device stores, such as 12 (16 if the images are correct as they are).",
            ["--depth 12"],
        )

    def _require_applies(self, scale: Scale) -> None:
        if self.private_colour is not None and scale != Scale(depth=16):
            raise PackingError(
                "Only the upper eight bits of each channel of a 16-bit colour image are read, so --depth and --window "
                "work only for grey images. Save the colour images with eight bits per channel first."
            )
        if scale.window == "auto":
            if self.private_measured is not None or self.private_used or not self.windowed:
                raise PackingError(
                    "--window auto uses the window stored in each DICOM or NIfTI file, but some of these images have "
                    "none. A window derived from the images would change with one image: state the window "
                    f"({_STATE_WINDOW})."
                )
        elif scale.depth is None:
            if self.private_measured is None and not (self.private_used or self.windowed):
                raise PackingError("Leave --window out: no image has more than eight bits.")
        elif self.private_measured is not None:
            raise ChoiceNeeded(
                "Some images contain signed or measured values, so a depth in bits does not define white. State black "
                "and white.",
                [_STATE_WINDOW],
            )
        elif not (self.counted or self.private_colour):
            raise PackingError("Leave --depth out: no image is unsigned with more than eight bits.")
        elif any(used[1] > 2**scale.depth - 1 for used in self.private_used.values()):
            raise PackingError(
                f"Some images contain numbers that need more than {scale.depth} bits: state a larger --depth, or state "
                f"black and white with {_STATE_WINDOW}."
            )


def _window_for(counts: np.ndarray[Any, np.dtype[np.int64]], limits: Window) -> str:
    share = np.cumsum(_tissue(counts)) / max(_tissue(counts).sum(), 1)
    unit = (limits[1] - limits[0]) / (_BINS - 1)
    low, high = (limits[0] + unit * int(np.searchsorted(share, part)) for part in (0.01, 0.99))
    for offset in _CT_OFFSETS:
        if offset - 1024 <= low and high <= offset + 3071 and high - low >= 1024 and offset - 1024 >= limits[0]:
            return f"{offset - 1024},{offset + 3071}"
    step = 2.0 ** math.ceil(math.log2(max(high - low, unit) / 4))
    return f"{max(limits[0], math.floor(low / step) * step):.9g},{min(limits[1], math.ceil(high / step) * step):.9g}"


def _usual_window(used: Sequence[Window | None]) -> str:
    for low, high in _USUAL_WINDOWS:
        if all(ends is not None and low <= ends[0] and ends[1] <= high for ends in used):
            return f"--window {low:g},{high:g}"
    return _STATE_WINDOW


def _wider(used: Window | None, depth: Depth) -> Window:
    low, high = used or (depth.lowest, depth.highest)
    return min(low, depth.lowest), max(high, depth.highest)


def _used(limits: Window, used: Window) -> float:
    low = limits[0] if limits[0] >= 0 else used[0]
    return (used[1] - low) / (limits[1] - limits[0])
