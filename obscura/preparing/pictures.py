"""One picture: what it is, and how it becomes an image of the dataset.

The service takes eight bits a channel, one frame, no transparency and one size, and keeps pictures exactly. What does
not fit is made to fit here, on the owner's side, and whoever calls counts what was done.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from obscura.pictures.parts import SCANS_MAX
from obscura.pictures.types import names_of, open_picture, picture_header, require_few_parts, taken_suffixes
from obscura.preparing.choices import Colour, Fit, Size
from obscura.preparing.errors import Unreadable
from obscura.preparing.sources import Pixels
from obscura.wire.faults import Fault, Refused

FILE_BYTES_MAX = 256 * 2**20
PIXELS_MAX = 80_000_000  # 320 MB decoded; the largest photograph of a full-frame camera has about 60 million
_PLAIN_MODES = frozenset({"1", "L", "P", "RGB", "LA", "PA", "RGBA"})
_GREY_MODES = frozenset({"1", "L", "LA"})
_DEEP_MODES = frozenset({"I", "I;16", "I;16B", "I;16L", "I;16N"})
_READ_MODES = _PLAIN_MODES | _DEEP_MODES | {"CMYK", "YCbCr", "HSV", "RGBX", "RGBa"}
_DEEP_WHITE = 2**16 - 1
_MADE_TO_LAST = {
    Fault.IMAGE_SCANS: f"it has more than {SCANS_MAX} scans; save it anew",
    Fault.IMAGE_PARTS: "it is made of far more parts than its size explains; save it anew, without metadata",
}
_ORIENTATION_TAG = 0x0112
_TURNS = {  # EXIF 2.32, tag 274: what brings each orientation upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_LYING = frozenset({5, 6, 7, 8})


@dataclass(frozen=True, slots=True)
class Look:
    """What a picture is, standing upright."""

    width: int
    height: int
    grey: bool
    transparent: bool
    turned: bool = False
    printed: bool = False  # CMYK
    deep: bool = False  # more than eight bits a channel
    animated: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """What every picture becomes."""

    width: int
    height: int
    channels: int
    fit: Fit
    background: Colour


def look(content: bytes | Pixels) -> Look:
    """Decode a picture and say what it is.

    Raises:
        Unreadable: It cannot be decoded to its end, or is too large.
    """
    if isinstance(content, np.ndarray):
        return Look(content.shape[1], content.shape[0], grey=content.ndim == 2, transparent=False)
    with _opened(content) as image:
        turn = _orientation(image)
        width, height = reversed(image.size) if turn in _LYING else image.size
        animated, deep = bool(getattr(image, "is_animated", False)), _is_deep(image, content)
        image.draft(image.mode, (1, 1))  # of a JPEG, an eighth is enough to see whether it is whole
        image.load()
        _check_brightness(image)
        return Look(
            width,
            height,
            grey=_is_grey(image),
            transparent=_is_transparent(image),
            turned=turn in _TURNS,
            printed=image.mode == "CMYK",
            deep=deep,
            animated=animated,
        )


def prepare_picture(content: bytes | Pixels, target: Target) -> tuple[str, bytes]:
    """Return (suffix, content) of a picture file that fits the target: the same bytes where they do, else a PNG.

    Raises:
        Unreadable: It cannot be decoded.
    """
    if isinstance(content, np.ndarray):
        return _png(_fitted(Image.fromarray(content), target))
    with _opened(content) as image:
        turn = _orientation(image)
        if turn not in _TURNS and _is_plain(image, content, target):
            return taken_suffixes()[str(image.format)], content
        aim = (2 * target.width, 2 * target.height)
        image.draft(image.mode, aim[::-1] if turn in _LYING else aim)  # a large JPEG is decoded at a part of its size
        flat = _flat(image, target)
        upright = flat.transpose(_TURNS[turn]) if turn in _TURNS else flat
        return _png(_fitted(upright, target))


def has_shape(width: int, height: int, size: Size) -> bool:
    """Whether a picture can be brought to `size` by scaling alone, to within a pixel."""
    scale = max(size[0] / width, size[1] / height)
    return (round(width * scale), round(height * scale)) == size


@contextmanager
def _opened(data: bytes) -> Iterator[Image.Image]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about damaged metadata, which is not sent
            require_few_parts(data)
            if data.startswith(b"RIFF"):
                _, width, height = picture_header(data)  # Pillow's decoder of WEBP allocates before its own check
                _bound(width, height)
            with open_picture(data) as image:
                _bound(*image.size)
                yield image
    except Unreadable:
        raise
    except Refused as refused:
        if refused.fault not in _MADE_TO_LAST:
            raise Unreadable("it is damaged") from None
        raise Unreadable(_MADE_TO_LAST[refused.fault]) from None
    except UnidentifiedImageError:
        raise Unreadable(f"it is not a {names_of(taken=False, last='or')} picture") from None
    except (Image.DecompressionBombError, MemoryError):
        raise Unreadable(f"it has more than {PIXELS_MAX:,} pixels") from None
    except Exception as error:  # decoders of damaged files fail in many ways
        raise Unreadable(f"it is damaged ({type(error).__name__})") from None


def _bound(width: int, height: int) -> None:
    if width * height > PIXELS_MAX:
        raise Unreadable(f"it has {width:,} x {height:,} pixels, more than {PIXELS_MAX:,}")


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # damaged metadata says nothing, and the pixels are whole
        return 1


def _check_brightness(image: Image.Image) -> None:
    """Refuse pixels that are no brightness: measured values, and colour spaces that Pillow does not convert."""
    if image.mode not in _READ_MODES:
        raise Unreadable(f"its pixels are of a kind that is not taken ({image.mode})")
    lowest, highest = image.getextrema() if image.mode in _DEEP_MODES else (0, 0)
    if not (isinstance(lowest, int | float) and isinstance(highest, int | float)):
        raise Unreadable("it has several channels of 16 bits")
    if lowest < 0 or highest > _DEEP_WHITE:
        raise Unreadable("it holds numbers outside of 16 bits")


def _is_deep(image: Image.Image, data: bytes) -> bool:
    if image.format != "PNG":
        return image.mode in _DEEP_MODES
    try:
        picture_header(data)
    except Refused:  # Pillow opens a colour PNG of 16 bits as if it had eight
        return True
    return False


def _is_grey(image: Image.Image) -> bool:
    if image.mode == "P":
        palette = image.convert("RGBA").getcolors(256)
        return palette is not None and all(c[0] == c[1] == c[2] for _, c in palette if isinstance(c, tuple) and c[3])
    return image.mode in _GREY_MODES or image.mode in _DEEP_MODES


def _has_alpha(image: Image.Image) -> bool:
    return image.mode in ("LA", "PA", "RGBA", "RGBa") or "transparency" in image.info


def _is_transparent(image: Image.Image) -> bool:
    if not _has_alpha(image) or image.mode in _DEEP_MODES:
        return False
    lowest, _ = image.convert("RGBA").getchannel("A").getextrema()
    return bool(isinstance(lowest, int | float) and lowest < 255)


def _is_plain(image: Image.Image, data: bytes, target: Target) -> bool:
    """Whether the service takes the file as it is."""
    if (
        image.format not in taken_suffixes()
        or image.size != (target.width, target.height)
        or image.mode not in _PLAIN_MODES
    ):
        return False
    if getattr(image, "is_animated", False) or _is_deep(image, data):
        return False
    if target.channels == 1 and image.mode not in ("1", "L"):
        return False
    return not _is_transparent(image)


def _flat(image: Image.Image, target: Target) -> Image.Image:
    """Return the first frame as L or RGB, eight bits a channel, laid on the background."""
    if image.mode in _DEEP_MODES:
        return _shallow(image)
    if _is_transparent(image):
        ground = Image.new("RGBA", image.size, (*target.background, 255))
        ground.alpha_composite(image.convert("RGBA"))
        return ground.convert("RGB")
    return image.convert("L" if image.mode in _GREY_MODES else "RGB")


def _shallow(image: Image.Image) -> Image.Image:
    """Scale 16 bits to eight, the same for every picture: 65,535 is white."""
    values: np.ndarray[Any, Any] = np.asarray(image).astype(np.int64)
    return Image.fromarray(((values * 255 + _DEEP_WHITE // 2) // _DEEP_WHITE).astype(np.uint8))


def _fitted(image: Image.Image, target: Target) -> Image.Image:
    mode = "L" if target.channels == 1 else "RGB"
    size = (target.width, target.height)
    if image.size != size:
        if target.fit == "pad":
            image = ImageOps.pad(image.convert("RGB"), size, Image.Resampling.LANCZOS, color=target.background)
        else:
            image = ImageOps.fit(image, size, Image.Resampling.LANCZOS)
    return image.convert(mode)


def _png(image: Image.Image) -> tuple[str, bytes]:
    file = io.BytesIO()
    image.info = {}  # no profile, no text, no transparency
    image.save(file, "PNG")
    return ".png", file.getvalue()
