"""Private synthetic images from Python.

import obscura

with obscura.local("data/") as service:  # or obscura.connect("https://obscura.example.org", token)
    release = service.train("images/", epsilon=1, limit=3, at_most=2000, size=32)
    images, labels = release.sample(1000).to_numpy()

`connect_async` and `local_async` offer the same methods for asyncio, as `async with` blocks.

The names of `obscura.client` are imported on first use. A service imports only `obscura.wire`, so it loads no network
or image libraries. This package never imports the server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # not from obscura.client, which imports this package: mypy would find no name in it
    from obscura.client.accounts import *  # noqa: F403
    from obscura.client.async_resources import *  # noqa: F403
    from obscura.client.client import *  # noqa: F403
    from obscura.client.contents import *  # noqa: F403
    from obscura.client.local_service import *  # noqa: F403
    from obscura.client.resources import *  # noqa: F403
    from obscura.errors import *  # noqa: F403
    from obscura.extras import MissingExtra as MissingExtra
    from obscura.preparing import Arrays as Arrays

    __version__: str
else:  # a type checker would give every name the type of `__getattr__`

    def __getattr__(name: str) -> object:
        if name == "__version__":
            return import_module("importlib.metadata").version("obscura-images")
        client = import_module("obscura.client")
        if name != "__all__" and name not in client.__all__:
            raise AttributeError(f"module 'obscura' has no attribute {name!r}")
        return getattr(client, name)


def __dir__() -> list[str]:
    return [*import_module("obscura.client").__all__, "__version__"]
