"""Run a separate web process on a port that the kernel chooses.

It prints the port and serves until it is killed. It runs no jobs.
"""

import socket
import sys
from collections.abc import Sequence
from typing import Any

import uvicorn

from service.main import create_app
from service.settings import Settings


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(Settings(), send=_nobody_listens)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, ws="none", lifespan="on"))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    server.run(sockets=[listener])


def _nobody_listens(name: str, args: Sequence[Any]) -> None:
    raise ConnectionRefusedError(name, args)


if __name__ == "__main__":
    main()
