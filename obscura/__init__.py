"""Private synthetic images from Python.

import obscura

with obscura.local("data/") as service:  # or obscura.connect("https://obscura.example.org", token)
    release = service.train("images/", epsilon=1, at_most=2000, size=32)
    images, labels = release.sample(1000).to_numpy()

`connect_async` and `local_async` give the same verbs for asyncio, as `async with` blocks.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

try:
    from service.client import AsyncClient, Client
    from service.client.local import LocalClient
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("service", "privacy"):
        raise
    raise ImportError(
        f"Python found another {error.name.partition('.')[0]!r} than Obscura's, which is installed under that name: "
        "rename yours, or start Python elsewhere"
    ) from error

__all__ = ["AsyncClient", "Client", "LocalClient", "__version__", "connect", "connect_async", "local", "local_async"]
__version__ = version("obscura")


def connect(url: str, token: str) -> Client:
    """Connect to a service.

    Args:
        url: For example `http://127.0.0.1:8420`.
        token: An API key; `obscura keys create` makes one.
    """
    return Client(url, token)


def local(folder: str | Path) -> LocalClient:
    """Run a service on this machine, whose ledger and images are kept in a folder, until the client is closed.

    It is the service that `obscura up` runs, in a process of its own, with the same guarantee. Where one runs on the
    folder already, that one is used. Budgets in the folder are for life: the same pictures in another folder have
    another ledger, which knows nothing of what was spent here.

    Args:
        folder: Made where it is missing, and closed to other users.

    Raises:
        MissingExtra: torch is not installed; the message names the command.
        ServiceFailed: The service did not start; the message names its log.
    """
    return LocalClient(folder)


def connect_async(url: str, token: str) -> AsyncClient:
    """Connect to a service from asyncio, for the time of an `async with` block; see `connect`."""
    return AsyncClient(lambda: Client(url, token))


def local_async(folder: str | Path) -> AsyncClient:
    """Run a service on this machine for asyncio, for the time of an `async with` block; see `local`."""
    return AsyncClient(lambda: LocalClient(folder))
