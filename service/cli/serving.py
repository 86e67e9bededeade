"""Run the web process. Imported only by the commands that need it: the rest of the command line starts faster."""

from __future__ import annotations

import math
import signal
import socket
from types import FrameType
from typing import Any, NoReturn

import uvicorn
from fastapi import FastAPI

from service.api.deps import Service
from service.cli.connection import URL_FILE
from service.cli.connections import HEAD_SECONDS, Connection, raise_open_files
from service.cli.console import CliError, Exit, Output
from service.logs import configure_logging
from service.main import create_app
from service.private_files import keep_new_files_private, make_private_folder
from service.settings import Settings

GRACE_SECONDS = 10  # for open requests; event streams end within a poll, jobs at their next step


class Server(uvicorn.Server):
    """Tells the event streams to end when the process is asked to stop; they would keep it waiting otherwise."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal."""
        app: Any = self.config.app
        service: Service = app.state.service
        service.stopping.set()
        super().handle_exit(sig, frame)


def serve(settings: Settings, output: Output) -> None:
    """Serve until a signal comes. The address is written down beside the admin key while the service runs.

    Raises:
        CliError: The address cannot be listened on.
    """
    configure_logging(settings.log_level)
    keep_new_files_private()
    listener = listen(settings.host, settings.port)
    shown_host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{shown_host}:{listener.getsockname()[1]}"
    config = server_config(create_app(settings), connections_max=raise_open_files())
    make_private_folder(settings.data_dir)
    url_file = settings.data_dir / URL_FILE
    url_file.write_text(url + "\n", "ascii")
    output.record({"url": url, "data_dir": str(settings.data_dir.resolve()), "mode": settings.mode}, "obscura")
    output.notice(f"The admin key is in {settings.admin_key_path.resolve()}. Stop with Ctrl-C.")
    for number in (signal.SIGINT, signal.SIGTERM):  # the server stops first, then raises the signal again for us
        signal.signal(number, _leave)
    try:
        Server(config).run(sockets=[listener])
    finally:
        url_file.unlink(missing_ok=True)


def server_config(
    app: FastAPI, *, connections_max: int, head_seconds: float = HEAD_SECONDS, grace_seconds: int = GRACE_SECONDS
) -> uvicorn.Config:
    """Configure the server: bounded connections, bounded waiting, no word about itself.

    Args:
        app: what is served.
        connections_max: open at a time; more push out those that wait for a request.
        head_seconds: from the opening of a connection, or its last answer, to the end of the next request's head.
        grace_seconds: for open requests when the process is asked to stop.
    """
    bounds = {"connections_max": connections_max, "head_seconds": head_seconds}
    return uvicorn.Config(
        app,
        http=type("BoundedConnection", (Connection,), bounds),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=math.ceil(head_seconds),
        timeout_graceful_shutdown=grace_seconds,
        ws="none",
    )


def openapi() -> dict[str, Any]:
    """The OpenAPI document of the HTTP interface."""
    return create_app(Settings()).openapi()


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    """End the process in order: to be stopped is how this command ends well."""
    raise SystemExit(0)


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket.

    Raises:
        CliError: The address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio sends at once (TCP_NODELAY) only where it is. Otherwise the kernel keeps
    # the end of an answer back for the 40 ms that a client takes to acknowledge its beginning.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise CliError(f"Cannot listen on {host}:{port}: {error.strerror}.", Exit.OTHER) from error
    return listener
