"""Records that can act, because they remember the connection they came over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Self

import httpx
from pydantic import BaseModel, PrivateAttr

from obscura.client.download import download
from obscura.client.transport import Transport


class Live(BaseModel):
    """A record that remembers the connection it came over."""

    PATH: ClassVar[str]
    id: str
    _transport: Transport = PrivateAttr()

    @classmethod
    def bound(cls, transport: Transport, response: httpx.Response) -> Self:
        """Parse an answer and remember the connection it came over."""
        record = transport.parse(cls, response)
        record._transport = transport
        return record

    @classmethod
    def listed(cls, transport: Transport, path: str | None = None) -> Iterator[Self]:
        """Yield every item of a list, newest first; each can do what one that was read by itself can."""
        for record in transport.pages(cls, path or cls.PATH):
            record._transport = transport
            yield record

    @classmethod
    def read(cls, transport: Transport, id: str) -> Self:
        """Read the resource with this id."""
        return cls.bound(transport, transport.request("GET", f"{cls.PATH}/{id}"))

    @property
    def path(self) -> str:
        """Where the resource stands."""
        return f"{self.PATH}/{self.id}"

    def refresh(self) -> Self:
        """Read the resource again."""
        return self.read(self._transport, self.id)

    def _save(self, name: str, path: Path | str) -> Path:
        return download(self._transport, f"{self.path}/{name}", Path(path), None, None)
