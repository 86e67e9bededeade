"""A proxy before an S3 server that loses, delays and refuses what a test tells it to."""

import http.client
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

SLOW_DOWN = "slow down"  # answers 503 and passes nothing on
LOST = "lost"  # passes the request on, and closes the connection in place of an answer
HALF = "half"  # answers with a half of the body, and closes the connection
SILENT = "silent"  # never answers
PASS = "pass"
_SAID = b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>SlowDown</Code><Message>Reduce.</Message></Error>"


class FaultyProxy(ThreadingHTTPServer):
    """Applies its faults to the requests that come, in order; then passes everything on."""

    daemon_threads = True

    def __init__(self, server: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.server_at = urlsplit(server)
        self.faults: deque[str] = deque()
        self.met: list[str] = []
        self.over = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: Any) -> None:
        """A client that has gone away is no news here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def _pass_on(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.server.faults.popleft() if self.server.faults else PASS
        self.server.met.append(fault)
        if fault == SILENT:
            self.server.over.wait()
            self.close_connection = True
            return
        if fault == SLOW_DOWN:
            self._answer(503, {"Content-Type": "application/xml"}, _SAID, len(_SAID))
            return
        at = self.server.server_at
        connection = http.client.HTTPConnection(str(at.hostname), at.port, timeout=60)
        try:
            connection.request(self.command, self.path, content, dict(self.headers))
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        if fault == LOST:
            self.close_connection = True
            return
        headers = {name: value for name, value in answer.getheaders() if name.lower() != "transfer-encoding"}
        self._answer(answer.status, headers, body[: len(body) // 2] if fault == HALF else body, len(body))
        self.close_connection = fault == HALF

    do_GET = do_PUT = do_DELETE = do_HEAD = _pass_on

    def _answer(self, status: int, headers: dict[str, str], body: bytes, length: int) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() != "content-length" or self.command == "HEAD":
                self.send_header(name, value)
        if self.command != "HEAD" and status not in (204, 304):
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def faulty(server: str) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(server)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.over.set()
        proxy.shutdown()
        thread.join()
        proxy.server_close()
