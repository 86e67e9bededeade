"""Run the web process. Imported only by the commands that need it: the rest of the command line starts faster."""

from __future__ import annotations

import signal
import socket
from types import FrameType
from typing import Any, NoReturn

import uvicorn

from service.api.deps import Service
from service.cli.connection import URL_FILE
from service.cli.console import CliError, Exit, Output
from service.logs import configure_logging
from service.main import create_app
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
    listener = _listen(settings.host, settings.port)
    shown_host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{shown_host}:{listener.getsockname()[1]}"
    config = uvicorn.Config(
        create_app(settings),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ws="none",
    )
    settings.data_dir.mkdir(parents=True, exist_ok=True)
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


def openapi() -> dict[str, Any]:
    """The OpenAPI document of the HTTP interface."""
    return create_app(Settings()).openapi()


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    """End the process in order: to be stopped is how this command ends well."""
    raise SystemExit(0)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise CliError(f"Cannot listen on {host}:{port}: {error.strerror}.", Exit.OTHER) from error
    return listener
