"""A server that takes a webhook's requests and answers as it is told to."""

import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.obscura.client.canned import Answer, Canned, answering


@dataclass
class Receiver:
    """What is answered: a status, where a redirect leads, after how many seconds. And what came."""

    status: int = 204
    location: str = ""
    seconds: float = 0.0
    server: Canned = field(init=False)

    def answer(self, _method: str, _path: str) -> Answer:
        time.sleep(self.seconds)
        return Answer(self.status, headers={"Location": self.location} if self.location else {})

    @property
    def port(self) -> int:
        return int(self.server.url.rpartition(":")[2])

    @property
    def url(self) -> str:
        return f"{self.server.url}/hook"

    @property
    def bodies(self) -> list[bytes]:
        return self.server.bodies

    @property
    def headers(self) -> list[dict[str, str]]:
        return [headers for _, headers in self.server.requests]


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    receiver = Receiver()
    with answering(receiver.answer, tls) as receiver.server:
        yield receiver
