"""`obscura up`, `obscura demo`, `obscura openapi`."""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Annotated

import typer
from pydantic import ValidationError

from obscura.cli.connection import Json, Target
from obscura.cli.console import CliError, Exit, reporting
from obscura.extras import WORKER, MissingExtra
from service.settings import Settings


def up(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; 0: any free port.")] = None,
    while_stdin_is_open: Annotated[
        bool, typer.Option("--while-stdin-is-open", hidden=True, help="End when the parent process ends.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run the service. By default it uses SQLite and starts a worker; OBSCURA_* settings change that."""
    target: Target = context.obj
    with reporting(as_json) as output:
        try:
            settings = Settings.at(target.folder, host=host, port=port)
        except ValidationError as error:
            raise CliError(f"The settings are invalid: {error}", Exit.USAGE) from error
        if settings.mode == "embedded" and find_spec("torch") is None:
            raise MissingExtra("It", "torch", WORKER)  # otherwise it would accept jobs that it cannot run
        from service.cli.serving import serve

        if while_stdin_is_open:
            Thread(target=_end_with_stdin, name="obscura-stdin", daemon=True).start()
        serve(settings, output)


def _end_with_stdin() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for all results.")] = Path("var/demo"),
    images: Annotated[
        str | None, typer.Option("--images", help="fashion-mnist or digits; by default the first that is available.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the service running until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Run the whole process, from upload to private synthetic images, with a real service on this machine."""
    from service.cli.demo import run_demo

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the demo's service too, like Ctrl-C
    with reporting(as_json) as output:
        run_demo(out, output, images=images, keep=keep)


def openapi() -> None:
    """Write the OpenAPI document of the HTTP interface to stdout."""
    from service.main import create_app

    typer.echo(json.dumps(create_app(Settings()).openapi(), indent=1, sort_keys=True))
