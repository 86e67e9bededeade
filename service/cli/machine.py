"""Commands on the service's machine: `obscura up`, `demo`, `openapi`, `admins restore`, and a part of `doctor`."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Annotated

import typer

from obscura.cli.admins import Out, write_token
from obscura.cli.connection import Json, Target
from obscura.cli.console import reporting
from obscura.cli.server_side import Finding
from obscura.client.local_service import running_at
from obscura.extras import WORKER, MissingExtra
from obscura.private_files import is_occupied
from service.cli.ledger import open_database, settings_at
from service.settings import Settings


def up(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; 0: any free port.")] = None,
    browse: Annotated[bool, typer.Option("--open", help="Open the dashboard in a browser, signed in.")] = False,
    while_stdin_is_open: Annotated[
        bool, typer.Option("--while-stdin-is-open", hidden=True, help="End when the parent process ends.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run the service. By default it uses SQLite and starts a worker; OBSCURA_* settings change that."""
    target: Target = context.obj
    with reporting(as_json) as output:
        settings = settings_at(target.folder, host=host, port=port)
        if settings.mode == "embedded" and find_spec("torch") is None:
            raise MissingExtra("It", "torch", WORKER)  # otherwise it would accept jobs that it cannot run
        from service.cli.serving import serve

        if while_stdin_is_open:
            Thread(target=_end_with_stdin, name="obscura-stdin", daemon=True).start()
        serve(settings, output, browse=browse)


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

    with reporting(as_json=False):
        settings = settings_at(Path("var"))
    typer.echo(json.dumps(create_app(settings).openapi(), indent=1, sort_keys=True))


def restore(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the person; it must never have been used.")],
    out: Out,
    as_json: Json = False,
) -> None:
    """Create an admin on the service's own machine, if too few admins still have their keys.

    Accesses the database directly and needs no approval: anyone with the data folder could do this anyway.
    """
    from service.db.session import transaction
    from service.identity.admins import admit_on_machine

    with open_database(context, as_json) as (_, factory, output):
        with transaction(factory) as session:
            admin, token = admit_on_machine(session, name=name, now=datetime.now(UTC))
            write_token(out, token)  # before the commit, so that no key exists without its token
            made = {"id": admin.id, "name": admin.name, "token_file": str(out)}
        output.record(made, "admin")


def look_around(folder: Path) -> Iterator[Finding]:
    settings = settings_at(folder)
    if not settings.data_dir.is_dir():
        yield Finding("data folder", "missing", f"{settings.data_dir} does not exist; a service creates it: obscura up")
        return
    place = settings.data_dir
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("data folder", "bad", f"you cannot write to {place}: choose another --data-dir")
    elif place.stat().st_mode & 0o077:
        yield Finding("data folder", "bad", f"{place} is open to others: chmod -R go= {place}")
    else:
        yield Finding("data folder", "ok", str(place))
    database = _database(settings)
    yield database
    if database.state == "ok":
        yield _storage(settings)
    else:
        yield Finding("storage", "missing", "not checked: without a database its installation is unknown")
    if settings.mode == "celery":
        workers = "workers run elsewhere: celery --app workers.supervise.app inspect ping"
        yield Finding("supervisor", "ok", workers)
    elif find_spec("torch") is None:
        yield Finding("supervisor", "bad", f"a service here cannot train: pip install '{WORKER}'")
    elif (running := running_at(settings.data_dir)) is not None:
        yield Finding("supervisor", "ok", f"trains beside the service at {running}")
    elif is_occupied(settings.data_dir):
        yield Finding("supervisor", "bad", "a service runs on this folder, but does not answer yet: try again")
    else:
        yield Finding("supervisor", "missing", "no service runs on this folder, so nothing is trained: obscura up")


def _database(settings: Settings) -> Finding:
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError

    from service.db.schema import newest_revision
    from service.db.session import open_sessions, transaction
    from service.disk import sqlite_file
    from service.errors import DatabaseUnsuitable

    file = sqlite_file(settings.database_url)
    if file is not None and not file.is_file():
        return Finding("database", "missing", "does not exist yet; a service creates it: obscura up")
    try:
        with open_sessions(settings.database_url) as factory, transaction(factory, read_only=True) as session:
            revision = session.scalar(text("SELECT version_num FROM alembic_version"))
    except DatabaseUnsuitable as error:
        return Finding("database", "bad", error.message)
    except SQLAlchemyError as error:
        return Finding("database", "bad", f"cannot be read ({type(error).__name__}): obscura ledger verify")
    newest = newest_revision()
    if revision != newest:
        return Finding(
            "database", "bad", f"has schema {revision}, this version {newest}: stop the service, then obscura up"
        )
    return Finding("database", "ok", f"{'postgresql' if file is None else 'sqlite'}, schema {revision}")


def _storage(settings: Settings) -> Finding:
    from service import installation
    from service.db.session import open_sessions, transaction
    from service.errors import ObscuraError
    from service.storage import is_elsewhere, storage_of

    where = settings.storage if is_elsewhere(settings) else "the data folder"
    try:
        storage = storage_of(settings)
        with open_sessions(settings.database_url) as factory, transaction(factory, read_only=True) as session:
            own_id = installation.recorded(session)
        kept = installation.mark_of(storage, own_id)
        trial = f"trial-{secrets.token_hex(8)}"
        storage.write(trial, b"of obscura doctor")
        storage.remove(trial)
    except (ObscuraError, OSError) as error:
        said = error.message if isinstance(error, ObscuraError) else type(error).__name__
        return Finding("storage", "bad", f"{where} cannot be read and written to: {said}")
    if own_id is None or kept is None:
        return Finding(
            "storage", "missing", f"{where} belongs to no installation yet; the first start assigns it: obscura up"
        )
    if own_id != kept:
        return Finding("storage", "bad", f"{where} belongs to installation {kept}, but the database to {own_id}")
    return Finding("storage", "ok", f"{where}, of this database's installation")
