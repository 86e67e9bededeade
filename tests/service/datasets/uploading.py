"""Storing content without a database: what `service.datasets.receiving` does between lease and acceptance."""

from __future__ import annotations

from collections.abc import Iterator

from service.datasets.reading import Content, Sent, Upload, staged
from service.settings import Settings


def receive(
    settings: Settings, upload: Upload, blocks: Iterator[bytes], announced_bytes: int | None, format: str
) -> Content:
    """Read content and publish it at once."""
    with staged(settings, upload, Sent(blocks, format, announced_bytes)) as content:
        content.publish()
        return content
