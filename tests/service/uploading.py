"""Storing an upload's content without a database: what `service.receiving` does between lease and acceptance."""

from __future__ import annotations

from collections.abc import Iterator

from service.settings import Settings
from service.uploads import DatasetFacts, ReceivedContent, staged


def receive(
    settings: Settings, facts: DatasetFacts, chunks: Iterator[bytes], declared_length: int | None, format: str
) -> ReceivedContent:
    """Read content and publish it at once."""
    with staged(settings, facts, chunks, declared_length, format) as (content, publish):
        publish()
        return content
