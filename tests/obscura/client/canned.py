"""HTTP servers that give canned answers and remember what they were asked, and commands that use them."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from typer.testing import CliRunner, Result

from obscura.cli.app import app
from obscura.client import Client


@dataclass(frozen=True)
class Answer:
    """What a server answers; with `length`, it announces more or less than it sends."""

    status: int = 200
    content: bytes = b""
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    length: int | None = None


READY = Answer(content=b'{"status": "ok", "version": "1", "trainings": "open"}')
NOTHING = Answer(content=b'{"items": [], "next_cursor": null}')


@dataclass(frozen=True)
class Canned:
    url: str
    requests: list[tuple[str, dict[str, str]]]
    bodies: list[bytes]


class Server(ThreadingHTTPServer):
    """Lets many connect at once."""

    request_queue_size = 128


@contextmanager
def answering(answer: Callable[[str, str], Answer], tls: ssl.SSLContext | None = None) -> Iterator[Canned]:
    """Answer every request by `answer(method, path)` for the time of a block."""
    requests: list[tuple[str, dict[str, str]]] = []
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def handle_any(self) -> None:
            requests.append((self.requestline, dict(self.headers)))
            bodies.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            given = answer(self.command, self.path)
            self.send_response(given.status)
            length = len(given.content) if given.length is None else given.length
            for name, value in {**given.headers, "Content-Length": str(length)}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(given.content)

        do_GET = do_POST = do_PUT = do_DELETE = do_CONNECT = handle_any

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield Canned(f"http://127.0.0.1:{server.server_address[1]}", requests, bodies)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def empty_service() -> Iterator[Canned]:
    """Run a service that is ready and has nothing, for a fixture."""
    with answering(lambda _method, path: READY if "health" in path else NOTHING) as running:
        yield running


@contextmanager
def client_of(answer: Callable[[str, str], Answer]) -> Iterator[Client]:
    with answering(answer) as server, Client(server.url, "key") as client:
        yield client


def command(url: str, *words: str) -> Result:
    return CliRunner().invoke(app, ["--url", url, "--token", "key", *words])
