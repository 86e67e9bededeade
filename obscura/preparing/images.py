"""Open one image within limits, describe it, and convert it to fit the dataset.

The service accepts eight bits per channel, one frame, no transparency and one size, and stores images exactly. Other
images are converted here, on the owner's machine, and the caller counts the conversions.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from warnings import catch_warnings

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import ImageFileDirectory_v2

import obscura.fitting as fitting
from obscura import image_types
from obscura.errors import Unreadable
from obscura.image_types import PIXELS_MAX
from obscura.preparing.depth import COLOUR_LIMITS, FORMAT_SCALE, Depth, Numbers, Scale, depth_of, eight_bits
from obscura.preparing.dicom import begins_like_dicom, open_dicom, read_frame
from obscura.preparing.sources import Content
from obscura.wire.uploads import Fault, Refused

_BITS, _PHOTOMETRIC, _CHANNELS, _PLANAR, _EXTRA, _FORMAT = 258, 262, 277, 284, 338, 339  # TIFF 6.0, sections 4 and 19
_MIN_IS_WHITE, _SIGNED = 0, 2
_RGB, _COLOURS = 2, {2: 3, 5: 4, 6: 3, 8: 3}  # by photometric interpretation, if there are several
_BIG = 43  # version number of a TIFF with 64-bit offsets
_ALPHA, _FLOAT, _COMPLEX, _APART = frozenset({1, 2}), 3, (5, 6), 2
_INTEGER_BITS, _FLOAT_BITS, _COLOUR_BITS_MAX = (1, 2, 4, 8, 12, 16, 32), (32,), 16
_SAVE = ", which is not supported: save it as PNG or JPEG"
_OTHERS = (
    (rb"II[*+]\0|MM\0[*+]", "a TIFF of an unsupported kind: save it with 8 or 16 bits a channel, grey or in colour"),
    (rb"....ftyp(?:hei|hev|mif|msf)", f"a HEIC image{_SAVE}"),
    (rb"....ftypavi", f"an AVIF image{_SAVE}"),
    (rb"....ftyp|\x1aE\xdf\xa3", f"a video{_SAVE}"),
    (rb"\xff\x0a|\x00\x00\x00\x0cJXL", f"a JPEG XL image{_SAVE}"),
    (rb"8BPS", f"a Photoshop file{_SAVE}"),
    (rb"%PDF", f"a PDF{_SAVE}"),
    (rb"v/1\x01", f"an OpenEXR image{_SAVE}"),
    (rb"PK\x03\x04|\x1f\x8b|7z\xbc\xaf|Rar!", "an archive, not an image: unpack it"),
    (rb"\x93NUMPY|\x89HDF", f"an array{_SAVE}"),
    (rb"\s*<svg|\s*<\?xml", f"a vector drawing (SVG){_SAVE}"),
    (rb"version https://git-lfs", "a Git LFS pointer without the image: run git lfs pull"),
    (rb"\s*(?i:<!doctype html|<html)", "a web page, not an image: the download failed"),
)
_MADE_TO_LAST = {
    Fault.IMAGE_SCANS: f"it has more than {image_types.SCANS_MAX} scans; save it again",
    Fault.IMAGE_PARTS: "it is made of far more parts than its size explains; save it again, without metadata",
}


@contextmanager
def opened(data: bytes) -> Iterator[Image.Image]:
    """Open an image file; pixels are decoded on access. Raise Unreadable if opening, or reading in the block, fails."""
    try:
        with catch_warnings(action="ignore"):  # warnings about damaged metadata, which is not sent
            image_types.require_few_parts(data)
            if data.startswith(image_types.TIFF_MAGICS):
                _require_readable_tiff(data)
            if data.startswith(b"RIFF"):
                _, width, height = image_types.image_header(data)  # Pillow's WEBP decoder allocates before its check
                _bound(width, height)
            with image_types.open_image(data) as image:
                _bound(*image.size)
                yield image
    except Unreadable:
        raise
    except Refused as refused:
        if refused.fault not in _MADE_TO_LAST:
            raise Unreadable("it is damaged") from None
        raise Unreadable(_MADE_TO_LAST[refused.fault]) from None
    except UnidentifiedImageError:
        other = next((kind for begin, kind in _OTHERS if re.match(begin, data[:200], re.DOTALL)), None)
        unknown = f"not a {image_types.names_of(taken=False, last='or')} image" if data else "empty"
        raise Unreadable(f"it is {other or unknown}") from None
    except (Image.DecompressionBombError, MemoryError):
        raise Unreadable(f"it has more than {PIXELS_MAX:,} pixels") from None
    except Exception as error:  # decoders of damaged files fail in many ways
        raise Unreadable(f"it is damaged ({type(error).__name__})") from None


def _require_readable_tiff(data: bytes) -> None:
    try:
        tags = ImageFileDirectory_v2(data[: 16 if _BIG in data[2:4] else 8])
        file = io.BytesIO(data)
        file.seek(tags.next)
        tags.load(file)
        channels, planar, kind = (int(tags.get(tag, 1)) for tag in (_CHANNELS, _PLANAR, _PHOTOMETRIC))
        bits, formats, extra = (tuple(tags.get(tag) or ()) for tag in (_BITS, _FORMAT, _EXTRA))
    except Exception:  # damaged files fail in many ways
        return
    deep, form = max(bits, default=1), max(formats, default=1)
    colours = _COLOURS.get(kind, 1)
    surplus = channels - colours - bool(_ALPHA.intersection(extra))
    if surplus > (kind == _RGB and channels == 4):  # the fourth channel is dropped, and counted
        called = "" if colours == 3 or channels not in (3, 4) else ", which it does not declare as colours"
        raise Unreadable(f"it has {channels} channels{called}: save only 1 (grey) or 3 (red, green, blue)")
    number = "floats" if form == _FLOAT else "complex numbers" if form in _COMPLEX else "numbers"
    if form in _COMPLEX or (deep not in _FLOAT_BITS if form == _FLOAT else deep not in _INTEGER_BITS):
        raise Unreadable(f"it is a TIFF with {number} of {deep} bits: save it with 8, 16 or 32 bits")
    if channels > 1 and (form == _FLOAT or deep > _COLOUR_BITS_MAX):
        raise Unreadable(f"it is a colour TIFF with {number} of {deep} bits: save it with 8 or 16 bits a channel")
    if planar == _APART and deep > 8:
        raise Unreadable(
            f"it is a TIFF of {deep} bits with separate (planar) channels, which is not supported: save it interleaved"
        )


def _bound(width: int, height: int) -> None:
    if width * height > PIXELS_MAX:
        raise Unreadable(f"it has {width:,} x {height:,} pixels, more than {PIXELS_MAX:,}")


FILE_BYTES_MAX = 256 * 2**20
_DEEP_MODES = frozenset({"I", "I;16", "I;16B", "I;16L", "I;16N", "F"})
_COMPARED_SIDE = 128  # pixels per side to which a large JPEG is reduced while decoding


@dataclass(frozen=True, slots=True)
class Look:
    """Properties of an upright image. `digest` is a hash of its pixels, equal for copies."""

    width: int
    height: int
    grey: bool
    transparent: bool
    digest: int
    turned: bool = False
    printed: bool = False  # CMYK
    animated: bool = False
    surplus: bool = False  # more channels than colours, such as infrared
    depth: Depth | None = None  # for an image with more than eight bits per channel


@dataclass(frozen=True, slots=True)
class Target:
    width: int
    height: int
    channels: int
    scale: Scale = FORMAT_SCALE


def look(content: Content) -> Look:
    content = _decoded(content)
    if not isinstance(content, bytes):
        values, depth = (content.values, depth_of(content)) if isinstance(content, Numbers) else (content, None)
        digest = _digest(values.shape, values)
        return Look(values.shape[1], values.shape[0], values.ndim == 2, transparent=False, digest=digest, depth=depth)
    with opened(content) as image:
        size, animated = image.size, bool(getattr(image, "is_animated", False))
        of_tiff = fitting.turn_of(image) if image.format == "TIFF" else None  # lost once Pillow has turned the image
        image.draft(image.mode, (_COMPARED_SIDE, _COMPARED_SIDE))  # an eighth is enough to compare
        image.load()  # before reading metadata, which would hide the damage
        turn = None if image.format == "TIFF" else fitting.turn_of(image)
        width, height = fitting.upright_size(size, turn)
        if image.mode not in fitting.READ_MODES | _DEEP_MODES:
            raise Unreadable(f"its pixels are of an unsupported kind ({image.mode})")
        grey = image.mode in fitting.GREY_MODES or image.mode in _DEEP_MODES
        if image.mode == "P":
            palette = image.convert("RGBA").getcolors(256)
            used = [colour for _, colour in palette or () if isinstance(colour, tuple) and colour[3]]
            grey = palette is not None and all(red == green == blue for red, green, blue, _ in used)
        numbers, transparent = _numbers(image), _is_transparent(image)
        if numbers is None:  # upright RGB or RGBA, so copies match across file types
            depth = None
            if _is_deep_colour(image, content):
                bands = [image.getchannel(band).getextrema() for band in image.getbands() if band != "A"]
                ends = [float(end) * 257 for band in bands for end in band if isinstance(end, int | float)]
                depth = Depth(COLOUR_LIMITS, min(ends), max(ends), integers=False, colour=True)
            flat = image.convert("RGBA" if transparent else "RGB")
            compared: np.ndarray[Any, Any] = np.asarray(flat if turn is None else flat.transpose(turn))
        else:
            depth, compared = depth_of(numbers), numbers.values
        return Look(
            width,
            height,
            grey,
            transparent,
            digest=_digest((width, height), compared),
            turned=turn is not None or of_tiff is not None,
            printed=image.mode == "CMYK",
            animated=animated,
            surplus=getattr(image, "tag_v2", {}).get(_CHANNELS) == 4 and len(image.getbands()) == 3,
            depth=depth,
        )


def _digest(shape: tuple[int, ...], pixels: np.ndarray[Any, Any]) -> int:
    content = hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=8, person=str(shape).encode()[:16])
    return int.from_bytes(content.digest(), "little")


def prepare_image(content: Content, target: Target) -> tuple[str, bytes]:
    """Return (suffix, content) of a file that fits the target: the original bytes if they fit, otherwise a PNG."""
    content = _decoded(content)
    if not isinstance(content, bytes):
        pixels = eight_bits(content, target.scale) if isinstance(content, Numbers) else content
        return _fitted_png(Image.fromarray(pixels), None, target)
    with opened(content) as image:
        turn = None if image.format == "TIFF" else fitting.turn_of(image)  # Pillow itself turns a decoded TIFF
        plain = (
            image.format in image_types.taken_suffixes()
            and turn is None
            and image.size == (target.width, target.height)
            and image.mode in (fitting.PLAIN_MODES if target.channels == 3 else ("1", "L"))
            and not getattr(image, "is_animated", False)
            and not _is_deep_colour(image, content)
            and not _is_transparent(image)
        )
        if plain:
            return image_types.taken_suffixes()[str(image.format)], content
        fitting.decode_small(image, (target.width, target.height), turn)
        return _fitted_png(_flat(image, target), turn, target)


def _decoded(content: Content) -> Content:
    if isinstance(content, bytes) and begins_like_dicom(content):
        return read_frame(open_dicom(content))
    return content


def _numbers(image: Image.Image) -> Numbers | None:
    tags: Any = getattr(image, "tag_v2", {})  # of a TIFF
    signed = _SIGNED in np.atleast_1d(tags.get(_FORMAT, 1))
    if image.mode not in _DEEP_MODES and not (signed and image.mode == "L"):
        return None
    values: np.ndarray[Any, Any] = np.asarray(image)
    if image.mode == "L":
        values = values.view(np.int8)
    bits = int(np.max(tags.get(_BITS, 16)))
    if image.mode == "I" and bits == 32 and not signed:
        values = values.view(np.uint32)
    whole = values.dtype.kind in "iu" and not signed
    limits = (0, 2**bits - 1) if whole else None
    return Numbers(values, limits, inverted=tags.get(_PHOTOMETRIC) == _MIN_IS_WHITE, integers=whole)


def _is_deep_colour(image: Image.Image, data: bytes) -> bool:
    # Pillow opens a 16-bit colour image with only the upper eight bits.
    if image.format == "TIFF":
        return bool(np.max(image.tag_v2.get(_BITS, 8)) > 8)  # type: ignore[attr-defined]  # a TIFF has them
    if image.format != "PNG" or image.mode in _DEEP_MODES:
        return False
    try:
        image_types.image_header(data)
    except Refused:
        return True
    return False


def _is_transparent(image: Image.Image) -> bool:
    if image.mode in _DEEP_MODES and "transparency" in image.info:
        return bool((np.asarray(image) == image.info["transparency"]).any())
    return fitting.is_transparent(image)


def _flat(image: Image.Image, target: Target) -> Image.Image:
    numbers = _numbers(image)
    if numbers is None:
        return fitting.flatten(image)
    bright = eight_bits(numbers, target.scale)
    clear = np.asarray(image) == image.info["transparency"] if _is_transparent(image) else False
    return Image.fromarray(np.where(clear, np.uint8(255), bright))


def _fitted_png(flat: Image.Image, turn: Image.Transpose | None, target: Target) -> tuple[str, bytes]:
    file = io.BytesIO()
    fitting.fit(flat, turn, (target.width, target.height), target.channels).save(file, "PNG")
    return ".png", file.getvalue()
