"""Opening a picture file within bounds, and saying in a few words why one cannot be opened."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from obscura.pictures.parts import SCANS_MAX
from obscura.pictures.types import TIFF_MAGICS, names_of, open_picture, picture_header, require_few_parts
from obscura.preparing.errors import Unreadable
from obscura.preparing.sources import PIXELS_MAX
from obscura.wire.faults import Fault, Refused

_BITS, _PHOTOMETRIC, _CHANNELS, _PLANAR, _EXTRA, _FORMAT = 258, 262, 277, 284, 338, 339  # TIFF 6.0
_RGB, _COLOURS = 2, {2: 3, 5: 4, 6: 3, 8: 3}  # by photometric interpretation, where there are several
_BIG = 43  # the version of a TIFF with offsets of 64 bits
_ALPHA, _FLOAT, _COMPLEX, _APART = frozenset({1, 2}), 3, (5, 6), 2
_INTEGER_BITS, _FLOAT_BITS, _COLOUR_BITS_MAX = (1, 2, 4, 8, 12, 16, 32), (32,), 16
_OTHERS = (
    (rb"....ftyp(?:hei|hev|mif|msf)", "a HEIC picture"),
    (rb"....ftypavi", "an AVIF picture"),
    (rb"....ftyp|\x1aE\xdf\xa3", "a film"),
    (rb"\xff\x0a|\x00\x00\x00\x0cJXL", "a JPEG XL picture"),
    (rb"8BPS", "a Photoshop file"),
    (rb"%PDF", "a PDF"),
    (rb"v/1\x01", "an OpenEXR picture"),
    (rb"PK\x03\x04|\x1f\x8b|7z\xbc\xaf|Rar!", "an archive"),
    (rb"\x93NUMPY|\x89HDF", "an array"),
    (rb"\s*<svg|\s*<\?xml", "a drawing of lines (SVG)"),
)
_MADE_TO_LAST = {
    Fault.IMAGE_SCANS: f"it has more than {SCANS_MAX} scans; save it anew",
    Fault.IMAGE_PARTS: "it is made of far more parts than its size explains; save it anew, without metadata",
}


@contextmanager
def opened(data: bytes) -> Iterator[Image.Image]:
    """Open a picture file, whose pixels are decoded when they are asked for; what goes wrong until then is Unreadable.

    Raises:
        Unreadable: It is of no type that is read, damaged, too large, or made to keep a decoder busy.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about damaged metadata, which is not sent
            require_few_parts(data)
            if data.startswith(TIFF_MAGICS):
                _require_readable_tiff(data)
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
        raise Unreadable(_why_unknown(data)) from None
    except (Image.DecompressionBombError, MemoryError):
        raise Unreadable(f"it has more than {PIXELS_MAX:,} pixels") from None
    except Exception as error:  # decoders of damaged files fail in many ways
        raise Unreadable(f"it is damaged ({type(error).__name__})") from None


def _why_unknown(data: bytes) -> str:
    """Say what a file is that no decoder opens, where its beginning tells."""
    if data.startswith(TIFF_MAGICS):
        return "it is a TIFF of a kind that is not read: save it with 8 or 16 bits a channel, grey or in colour"
    other = next((kind for begin, kind in _OTHERS if re.match(begin, data[:16], re.DOTALL)), None)
    if other is not None:
        return f"it is {other}, which is not read here: save it as PNG or JPEG"
    if data.startswith(b"version https://git-lfs"):
        return "it is a pointer of Git LFS, and the picture is not there: git lfs pull brings it"
    if data[:200].lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return "it is a web page, and no picture: its download went wrong"
    return f"it is not a {names_of(taken=False, last='or')} picture" if data else "it is empty"


def _require_readable_tiff(data: bytes) -> None:
    """Raise if a TIFF says that it holds another number of channels, or other numbers, than pictures do.

    Raises:
        Unreadable: It does. What is damaged is left to the decoder.
    """
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
    if surplus > (kind == _RGB and channels == 4):  # the fourth is left out, and counted
        called = "" if colours == 3 or channels not in (3, 4) else ", and does not say that they are colours"
        raise Unreadable(
            f"it has {channels} channels{called}: pictures have 1 (grey) or 3 (red, green, blue). Save those alone"
        )
    number = "floats" if form == _FLOAT else "complex numbers" if form in _COMPLEX else "numbers"
    if form in _COMPLEX or (deep not in _FLOAT_BITS if form == _FLOAT else deep not in _INTEGER_BITS):
        raise Unreadable(f"it is a TIFF of {number} of {deep} bits: save it with 8, 16 or 32 bits")
    if channels > 1 and (form == _FLOAT or deep > _COLOUR_BITS_MAX):
        raise Unreadable(f"it is a colour TIFF of {number} of {deep} bits: save it with 8 or 16 bits a channel")
    if planar == _APART and deep > 8:
        raise Unreadable(
            f"it is a TIFF of {deep} bits whose channels are stored apart, which is not read: save it anew"
        )


def _bound(width: int, height: int) -> None:
    if width * height > PIXELS_MAX:
        raise Unreadable(f"it has {width:,} x {height:,} pixels, more than {PIXELS_MAX:,}")
