"""One encoded picture to one array of the declared size and mode; nothing else of the file survives."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

from service.ingest.faults import Fault, Refused
from service.ingest.picture_header import picture_header
from service.ingest.request import IngestRequest

_PLAIN_MODES = frozenset({"1", "L", "P", "RGB"})
_ALPHA_MODES = frozenset({"LA", "PA", "RGBA"})


def decode_picture(data: bytes, request: IngestRequest) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the pixels, uint8 of shape `request.record_shape`.

    A gray picture in a colour dataset is repeated over the three channels. A colour picture in a grayscale dataset is
    taken only when it is gray (red = green = blue everywhere): turning colours into gray is a choice that its owner
    should make. Opaque alpha channels are dropped. An EXIF orientation is not applied; like all metadata it is dropped.

    Raises:
        Refused: With the broken rule. The size is judged before the picture is decoded.
    """
    kind, width, height = picture_header(data)
    if width * height > request.limits.pixels_max:
        raise Refused(Fault.IMAGE_PIXELS)
    if (width, height) != (request.width, request.height):
        raise Refused(Fault.IMAGE_SIZE)
    try:
        image = Image.open(io.BytesIO(data), formats=[kind])
        if getattr(image, "n_frames", 1) != 1 or image.format != kind:  # a JPEG with several pictures becomes "MPO"
            raise Refused(Fault.IMAGE_FRAMES)
        if image.size != (width, height):
            raise Refused(Fault.IMAGE_BROKEN)
        image.load()
        return _pixels(image, request)
    except (Refused, MemoryError):
        raise
    except Exception:
        # Decoders of hostile bytes fail in many ways. All of them mean the same, and none of their texts may travel.
        raise Refused(Fault.IMAGE_BROKEN) from None


def _pixels(image: Image.Image, request: IngestRequest) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if image.mode in _ALPHA_MODES or (image.mode in _PLAIN_MODES and "transparency" in image.info):
        rgba = image.convert("RGBA")
        if rgba.getchannel("A").getextrema() != (255, 255):
            raise Refused(Fault.IMAGE_TRANSPARENT)
        image = rgba.convert("RGB")
    elif image.mode not in _PLAIN_MODES:
        raise Refused(Fault.IMAGE_MODE)
    if request.channels == 3:
        return np.asarray(image.convert("RGB"), dtype=np.uint8)  # (h, w, 3)
    if image.mode in ("1", "L"):
        return np.asarray(image.convert("L"), dtype=np.uint8)  # (h, w)
    colours = np.asarray(image.convert("RGB"), dtype=np.uint8)
    if not (colours == colours[:, :, :1]).all():
        raise Refused(Fault.IMAGE_MODE)
    return colours[:, :, 0]
