"""Run the web process with a limit on connections, and on the idle time of each connection.

uvicorn waits forever for a request's head and for a client that does not read, and accepts connections until no file
descriptor is left. This module closes idle connections after a while. Above the limit, it closes the longest idle
connection of the address with the most connections.

Import it only in commands that need it, so that other commands start faster.
"""

from __future__ import annotations

import asyncio
import gc
import math
import resource
import signal
import socket
import sys
import time
import webbrowser
from collections import Counter
from contextlib import ExitStack, nullcontext, suppress
from html import escape
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Thread
from types import FrameType
from typing import IO, Any, cast

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from obscura.cli.console import CliError, Exit, Output
from obscura.private_files import address_of, announced, keep_new_files_private, make_private_folder, occupied
from service.api.deps import Service
from service.cli.ledger import explained
from service.dashboard.sign_in import LINK_SECONDS
from service.errors import InvalidInput
from service.logs import configure_logging, get_logger
from service.main import create_app, prepare
from service.settings import Settings
from service.storage import storage_of

CONNECTIONS_MAX = 1000
HEAD_SECONDS = 15.0  # from opening a connection, or the last response, to the end of the next request's head
STALLED_SECONDS = 60.0  # how long a client may read too little of a response
OTHER_FILES = 256  # descriptors for other uses: database, uploads, downloads, pipes
OPEN_FILES_MAX = 65_536
_TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def raise_open_files() -> int:
    """Raise the soft limit of open files, and return the number of connections that it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else max(min(CONNECTIONS_MAX, soft - OTHER_FILES), 16)


class Connection(H11Protocol):
    """One connection. It is idle from its opening, or its last response, until a complete request head has arrived."""

    connections_max = CONNECTIONS_MAX
    head_seconds = HEAD_SECONDS
    stalled_seconds = STALLED_SECONDS
    waits_since: float | None = None  # time of the event loop; None while a request is being processed
    _head_deadline: asyncio.TimerHandle | None = None
    stalls_since: float | None = None  # time of the event loop; None while the client reads its response
    _read_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > self.connections_max:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._answer()
        self.resume_writing()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._answer()

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._read_deadline = self.loop.call_later(self.stalled_seconds, self.transport.abort)
        self.stalls_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._read_deadline is not None:
            self._read_deadline.cancel()
            self._read_deadline = self.stalls_since = None
        super().resume_writing()

    def _wait(self) -> None:
        self._answer()
        self.waits_since = self.loop.time()
        self._head_deadline = self.loop.call_later(self.head_seconds, self._give_up, 0)

    def _answer(self) -> None:
        self.waits_since = None
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _give_up(self, unread_before: int) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread and (unread_before == 0 or unread < unread_before):
            self._head_deadline = self.loop.call_later(self.head_seconds, self._give_up, unread)
            return
        if not unread and self.conn.trailing_data[0] and not self.transport.is_closing():
            self.transport.write(_TIMED_OUT)  # a head is incomplete
            self.transport.close()
        else:
            self.transport.abort()

    def _make_room(self) -> None:
        connections = cast("set[Connection]", self.connections)
        held = Counter(other.client[0] if other.client else "" for other in connections)
        idle = {}  # the address with the most connections first, then the longest idle connection
        for other in connections - {self}:
            since = other.waits_since if other.stalls_since is None else other.stalls_since
            if since is not None:
                idle[other] = -held[other.client[0] if other.client else ""], since
        out = min(idle, key=idle.__getitem__, default=self)
        self.connections.discard(out)
        out.transport.abort()


GRACE_SECONDS = 10  # for open requests; event streams end at the next poll, jobs at their next step


class Server(uvicorn.Server):
    """A uvicorn server that ends event streams on shutdown, and prints a sign-in link.

    `url` is the address in that link. It is printed only on a person's terminal, because a log must not contain it.
    `page`, a private file, opens another link in a browser: other users can read the arguments of a process.
    """

    def __init__(self, config: uvicorn.Config, output: Output, url: str, page: IO[str] | None) -> None:
        super().__init__(config)
        self._output, self._url, self._page = output, url, page

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server, freeze the garbage collector, and print warnings.

        Modules and routes exist until the process ends. Scanning them again during a request would take longer than
        rendering ten pages.
        """
        await super().startup(sockets)
        gc.collect()
        gc.freeze()
        app: Any = self.config.app
        if app.state.warning is not None:
            self._output.notice(app.state.warning)
        if not self.started:
            return
        if self._page is not None:
            self._page.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(self._link())}">')
            self._page.flush()
            address = Path(self._page.name).as_uri()
            Thread(target=webbrowser.open, args=(address,), daemon=True).start()  # a browser in the terminal blocks
        if sys.stderr.isatty():  # last, so that no log line follows it
            self._output.notice("\nThe service is ready. Leave this running and open a second terminal for commands.")
            self._output.notice(f"Sign in, once, within {LINK_SECONDS // 60} minutes:")
            self._output.notice(f"{self._link()}\n", style="bold green")

    def _link(self) -> str:
        app: Any = self.config.app
        return f"{self._url}/sign-in/{app.state.links.make(now_seconds=time.monotonic())}"

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        app: Any = self.config.app
        service: Service = app.state.service
        service.stopping.set()
        super().handle_exit(sig, frame)


def serve(settings: Settings, output: Output, *, browse: bool = False) -> None:
    """Serve until a signal arrives. While the server runs, its address is in a file next to the admin key.

    If several API processes use one data folder, the first writes its address. `browse` opens the dashboard.
    """
    try:
        storage_of(settings)
    except InvalidInput as error:
        raise CliError(error.message, Exit.USAGE) from None
    configure_logging(settings.log_level, for_people=sys.stderr.isatty())
    keep_new_files_private()
    with explained(settings, Exit.OTHER), ExitStack() as stack:
        make_private_folder(settings.data_dir)
        first = stack.enter_context(occupied(settings.data_dir))
        if not first and settings.mode == "embedded":
            where = address_of(settings.data_dir)
            raise CliError(
                f"A service already runs on {settings.data_dir}{f', at {where}' if where else ''}. Two services would "
                "train at the same time and compete for this machine: use the running service, stop it first, or "
                "choose another --data-dir.",
                Exit.OTHER,
            )
        listener = listen(settings.host, settings.port)
        shown_host = f"[{settings.host}]" if ":" in settings.host else settings.host
        url = f"http://{shown_host}:{listener.getsockname()[1]}"
        app = create_app(settings)
        for number in (signal.SIGINT, signal.SIGTERM):  # the server stops, then raises the signal again for us
            signal.signal(number, lambda _number, _frame: sys.exit(0))
        prepare(app)  # otherwise the server would log an error and exit with code 0
        config = server_config(app, connections_max=raise_open_files())
        output.record({"url": url, "data_dir": str(settings.data_dir), "mode": settings.mode}, "Obscura")
        output.notice(f"The admin key is in {settings.admin_key_path.resolve()}. Stop with Ctrl-C.")
        if settings.dashboard_public:
            get_logger(__name__).warning("dashboard_open_to_everybody", setting="OBSCURA_DASHBOARD_PUBLIC")
            output.notice(
                f"Anyone who can connect to {url} can read the dashboard WITHOUT A KEY: OBSCURA_DASHBOARD_PUBLIC is "
                "set."
            )
        page = stack.enter_context(NamedTemporaryFile("w", prefix="obscura-", suffix=".html")) if browse else None
        server = Server(config, output, settings.public_url or url, page)
        with announced(settings.data_dir, url) if first else nullcontext():
            server.run(sockets=[listener])
        if not server.started:
            raise CliError("The service did not start. The lines of the log above say why.", Exit.OTHER)


def server_config(
    app: FastAPI, *, connections_max: int, head_seconds: float = HEAD_SECONDS, grace_seconds: int = GRACE_SECONDS
) -> uvicorn.Config:
    """Configure uvicorn: limit connections and their idle time, and send no server header.

    Above `connections_max`, a new connection replaces an idle one. `head_seconds` is the maximum time from a
    connection's opening, or its last response, to the end of the next request's head.
    """
    settings: Settings = app.state.settings
    bounds = {"connections_max": connections_max, "head_seconds": head_seconds}
    return uvicorn.Config(
        app,
        http=type("BoundedConnection", (Connection,), bounds),
        log_config=None,
        access_log=False,
        server_header=False,
        forwarded_allow_ips=settings.trusted_proxy_networks,
        timeout_keep_alive=math.ceil(head_seconds),
        timeout_graceful_shutdown=grace_seconds,
        ws="none",
    )


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is named. Without it, the kernel delays the end of a response, by
    # about 40 ms, until the client has acknowledged the beginning.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise CliError(f"Cannot listen on {host}:{port}: {error.strerror}.", Exit.OTHER) from error
    return listener
