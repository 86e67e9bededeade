"""Connect to a running service, or run a service on this machine while a program needs it."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from obscura.client.client import AsyncClient, Client
from obscura.client.transport import RETRY_STATUSES
from obscura.errors import ApiError, ConnectionFailed, ObscuraClientError
from obscura.extras import SERVER, WORKER, MissingExtra, is_installed
from obscura.private_files import NotOwned, address_of, is_occupied, is_own, make_private_folder, read_admin_key

__all__ = ["LocalClient", "ServiceFailed", "connect", "connect_async", "local", "local_async"]

START_SECONDS_MAX = 600.0  # if the process ends, the wait stops at once
STOP_SECONDS_MAX = 60.0


def connect(url: str, token: str) -> Client:
    """Connect to a service, such as `http://127.0.0.1:8420`, with an API key from `obscura keys create`."""
    return Client(url, token)


def local(folder: str | Path) -> LocalClient:
    """Run a service on this machine until the client is closed; its ledger and images are kept in a folder.

    It is the same service as `obscura up`, in its own process. If a service already runs on the folder, that service is
    used. Budgets are tied to the folder: another folder has another ledger, without the spending recorded here. The
    folder is created if missing, and made private.

    Raises:
        MissingExtra: torch or the server is not installed; the message names the command that installs it.
        ServiceFailed: The service did not start; the message names its log.
    """
    return LocalClient(folder)


def connect_async(url: str, token: str) -> AsyncClient:
    """Connect from asyncio, as an async context manager; see `connect`."""
    return AsyncClient(lambda: Client(url, token))


def local_async(folder: str | Path) -> AsyncClient:
    """Run a service on this machine, as an async context manager; see `local`."""
    return AsyncClient(lambda: LocalClient(folder))


class ServiceFailed(ObscuraClientError):
    """The service on this machine did not start; the message names its log."""


class LocalService:
    """Run `obscura up` on a free loopback port, as a context manager. OBSCURA_ environment variables are ignored.

    If a service already runs on the folder, use it and leave it running. A service started here ends with this process,
    even if this process crashes.
    """

    def __init__(self, data_dir: Path, *, log: Path | None = None) -> None:
        self.data_dir = data_dir
        self.log = log or data_dir / "service.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.token = ""

    def __enter__(self) -> Self:
        if self.data_dir.exists() and not is_own(self.data_dir):
            raise NotOwned(f"{self.data_dir} belongs to another user. Choose another data folder.")
        if not (url := running_at(self.data_dir)):
            if not is_installed(SERVER) or find_spec("torch") is None:
                raise MissingExtra("A service on this machine", "torch and the packages of a server", WORKER)
            make_private_folder(self.data_dir)
            if not is_occupied(self.data_dir):
                self._spawn()
            try:
                url = self._wait()
            except BaseException:
                self.__exit__()
                raise
        self.url, self.token = url, read_admin_key(self.data_dir)
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop the service if it was started here, and wait. An interrupted training resumes at the next start."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def _spawn(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OBSCURA_")}
        command = [sys.executable, "-P", "-m", "obscura.cli", "--data-dir", str(self.data_dir)]
        with open(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as log:
            self.process = subprocess.Popen(
                [*command, "up", "--port", "0", "--while-stdin-is-open"],
                env=environment,
                stdin=subprocess.PIPE,  # closes when this process ends, even by a crash
                stdout=log,
                stderr=log,
                start_new_session=True,  # only this program receives Ctrl-C; it then stops the service
            )

    def _wait(self) -> str:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            lives = self.process is not None and self.process.poll() is None
            if url := running_at(self.data_dir):
                return url
            if not lives and not is_occupied(self.data_dir):
                raise ServiceFailed(f"The service on {self.data_dir} did not start. The reason is in {self.log}.")
            time.sleep(0.1)
        raise ServiceFailed(
            f"The service on {self.data_dir} is still starting after {START_SECONDS_MAX / 60:.0f} minutes. See its "
            f"log, {self.log}."
        )


class LocalClient(Client):
    """A client with its own service on this machine. Close it, or use a `with` block, to stop the service."""

    def __init__(self, data_dir: str | Path) -> None:
        self.service = LocalService(Path(data_dir)).__enter__()
        atexit.register(self.close)
        super().__init__(self.service.url, self.service.token)

    def close(self) -> None:
        """Close the connections, and stop the service if it was started here."""
        atexit.unregister(self.close)
        super().close()
        self.service.__exit__()


def running_at(data_dir: Path) -> str | None:
    """Return the address of the service on a data folder; None if no service runs or it cannot serve yet."""
    url = address_of(data_dir)
    if url is None:
        return None
    with Client(url, None) as client:
        try:
            client.wait_ready(0)
        except ConnectionFailed:
            return None
        except ApiError as error:
            if error.status not in RETRY_STATUSES:
                raise
            return None
    return url
