"""How a program begins: a service elsewhere, or one of its own on this machine."""

from __future__ import annotations

from pathlib import Path

from obscura.client.client import AsyncClient, Client
from obscura.client.local_service import LocalClient

__all__ = ["connect", "connect_async", "local", "local_async"]


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
    folder already, that one is used. Budgets in the folder are for life: the same images in another folder have
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
