"""Private synthetic images from Python.

import obscura

with obscura.connect("https://obscura.example.org", token) as service:
    ...
"""

from __future__ import annotations

from importlib.metadata import version

try:
    from service.client import Client
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("service", "privacy"):
        raise
    raise ImportError(
        f"Python found another {error.name.partition('.')[0]!r} than Obscura's, which is installed under that name: "
        "rename yours, or start Python elsewhere"
    ) from error

__all__ = ["Client", "__version__", "connect"]
__version__ = version("obscura")


def connect(url: str, token: str) -> Client:
    """Connect to a service.

    Args:
        url: For example `http://127.0.0.1:8420`.
        token: An API key.
    """
    return Client(url, token)
