"""Read a zip of class folders: `class/image.png`, or `class/subject/image.png`. Only the pixels are stored."""

from __future__ import annotations

import unicodedata
from typing import Any, BinaryIO

import numpy as np

from obscura.fitting import PLAIN_MODES, READ_MODES, decode_small, fit, flatten, is_transparent, turn_of
from obscura.image_types import image_header, open_image
from obscura.wire.uploads import Fault, Refused, class_paths
from service.ingest.array_files import require_count, store
from service.ingest.request import IngestRequest
from service.ingest.zip_archive import Member, read_directory, take_rest


def ingest(file: BinaryIO, request: IngestRequest) -> None:
    """Write the arrays of a zip of class folders, in directory order; raise Refused with the broken rule."""
    limits = request.limits
    entries = read_directory(file, limits, slack_bytes=limits.entry_slack_bytes)
    if any(entry.expanded_bytes > limits.entry_bytes_max for entry in entries):
        raise Refused(Fault.ARCHIVE_SIZE)
    require_count(request, len(entries))
    classes = {unicodedata.normalize("NFC", name): label for label, name in enumerate(request.classes)}
    names = [entry.private_name for entry in entries]
    paths = class_paths(names, classes, subjects=request.subjects_declared is not None)
    contents = (take_rest(Member(file, entry), entry.expanded_bytes, Fault.ARCHIVE_BROKEN) for entry in entries)
    pixels = (decode_picture(content, request) for content in contents)
    if any(path[0] not in classes for path in paths):
        raise Refused(Fault.CLASS_UNDECLARED)
    store(request, np.array([classes[path[0]] for path in paths]), (path[1] for path in paths), pixels)


def decode_picture(data: bytes, request: IngestRequest) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the pixels, uint8 of shape `request.record_shape`; raise Refused with the broken rule.

    The number of pixels is checked before decoding. Unless `request.fit` is "exact", `obscura.fitting` converts the
    image, which may have any size and eight bits a channel; an animation is represented by its first frame.

    With "exact", the size must be the declared one. In a colour dataset, a gray image is repeated over the channels. In
    a grayscale dataset, a colour image must have equal channels: its owner must choose how to convert it. Opaque alpha
    channels and all metadata, including an EXIF orientation, are dropped.
    """
    kind, width, height = image_header(data)
    if width * height > request.limits.pixels_max:
        raise Refused(Fault.IMAGE_PIXELS)
    exact, size = request.fit == "exact", (request.width, request.height)
    if exact and (width, height) != size:
        raise Refused(Fault.IMAGE_SIZE)
    kind.require_few_parts(data)
    try:
        image = open_image(data, kind)
        if image.size != (width, height):
            raise Refused(Fault.IMAGE_BROKEN)
        if not exact:
            if image.mode not in READ_MODES:
                raise Refused(Fault.IMAGE_MODE)
            turn = turn_of(image)
            decode_small(image, size, turn)
            return np.asarray(fit(flatten(image), turn, size, request.channels, request.fit))
        if getattr(image, "n_frames", 1) != 1 or image.format != kind.name:  # "MPO" is a JPEG with several pictures
            raise Refused(Fault.IMAGE_FRAMES)
        image.load()
        if image.mode not in PLAIN_MODES:
            raise Refused(Fault.IMAGE_MODE)
        if is_transparent(image):
            raise Refused(Fault.IMAGE_TRANSPARENT)
        colours = np.asarray(image.convert("RGB"), dtype=np.uint8)  # (h, w, 3)
        if request.channels == 3:
            return colours
        if not (colours == colours[:, :, :1]).all():
            raise Refused(Fault.IMAGE_MODE)
        return colours[:, :, 0]
    except (Refused, MemoryError):
        raise
    except Exception:  # decoders fail in many ways on malicious bytes, and their messages must not leave this process
        raise Refused(Fault.IMAGE_BROKEN) from None
