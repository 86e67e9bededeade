"""Storing content without a database: what `service.datasets.receiving` does between lease and acceptance."""

import io
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from service.datasets.reading import Content, Sent, Upload, staged
from service.settings import Settings


def receive(
    settings: Settings, upload: Upload, blocks: Iterator[bytes], announced_bytes: int | None, format: str
) -> Content:
    """Read content and publish it at once."""
    with staged(settings, upload, Sent(blocks, format, announced_bytes)) as content:
        content.publish()
        return content


def npz(images: npt.ArrayLike, labels: npt.ArrayLike, **more: npt.ArrayLike) -> bytes:
    """Return an .npz, which stores its arrays as they are."""
    buffer = io.BytesIO()
    np.savez(buffer, images=images, labels=labels, **more)
    return buffer.getvalue()
