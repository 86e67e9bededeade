"""Opening a picture file within bounds, and saying in a few words why one cannot be opened."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image, UnidentifiedImageError

from obscura.pictures.parts import SCANS_MAX
from obscura.pictures.types import TIFF_MAGICS, names_of, open_picture, picture_header, require_few_parts
from obscura.preparing.errors import Unreadable
from obscura.preparing.sources import PIXELS_MAX
from obscura.wire.faults import Fault, Refused

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
        return (
            "it is a TIFF of a kind that is not read (10 or 14 bits, floats of 16 or 64, ...): save it with 8, 16 or 32"
        )
    if data.startswith(b"version https://git-lfs"):
        return "it is a pointer of Git LFS, and the picture is not there: git lfs pull brings it"
    if data[:200].lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return "it is a web page, and no picture: its download went wrong"
    return f"it is not a {names_of(taken=False, last='or')} picture" if data else "it is empty"


def _bound(width: int, height: int) -> None:
    if width * height > PIXELS_MAX:
        raise Unreadable(f"it has {width:,} x {height:,} pixels, more than {PIXELS_MAX:,}")
