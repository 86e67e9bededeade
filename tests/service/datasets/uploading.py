"""Storing content without a database: what `service.datasets.receiving` does between lease and acceptance."""

from __future__ import annotations

from collections.abc import Iterator

from service.datasets.reading import DatasetFacts, ReceivedContent, staged
from service.settings import Settings


def receive(
    settings: Settings, facts: DatasetFacts, chunks: Iterator[bytes], declared_length: int | None, format: str
) -> ReceivedContent:
    """Read content and publish it at once."""
    with staged(settings, facts, chunks, declared_length, format) as (content, publish):
        publish()
        return content
