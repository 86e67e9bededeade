"""`obscura doctor`: looks at all that a command or a service here needs, and says what to run where it is missing."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import typer

from obscura.client import ApiError, AuthError, Client, ObscuraClientError
from obscura.client.local_service import running_at
from obscura.extras import packages_of_extras
from service.cli.connection import Json, Target, address
from service.cli.console import CliError, reporting
from service.settings import Settings

DISK_BYTES_MIN = 2 * 2**30


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: Literal["ok", "missing", "bad"]
    said: str


def doctor(context: typer.Context, as_json: Json = False) -> None:
    """Check Python, packages, service, database, who trains, and disk. Exit code 1 when something is bad."""
    target: Target = context.obj
    with reporting(as_json) as output:
        settings = target.settings()
        found = [_python(), *_extras(), _service(target), *_kept(settings), _disk(settings.local_path)]
        if as_json:
            output.rows([asdict(finding) for finding in found], (), "doctor")
        for finding in found:
            output.text(f"{finding.state:8} {finding.what}: {finding.said}")
    if any(finding.state == "bad" for finding in found):
        raise typer.Exit(1)


def _python() -> Finding:
    return Finding("python", "ok", f"{sys.version.split()[0]}, obscura {version('obscura')}")


def _extras() -> Iterator[Finding]:
    """Whether the packages of each extra that people use are here."""
    for extra, names in packages_of_extras().items():
        if extra == "dev":
            continue
        missing = [name for name in names if not _installed(name)]
        state: Literal["ok", "missing"] = "missing" if missing else "ok"
        how = f"{', '.join(missing)}: pip install 'obscura[{extra}]'" if missing else f"{len(names)} packages"
        yield Finding(f"extra {extra}", state, how)


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _service(target: Target) -> Finding:
    """Whether the service that commands would talk to answers, takes the key, and may train."""
    try:
        url, token = address(target)
        with Client(url, token) as client:
            health = client.health()
            if health is None:
                return Finding("service", "bad", f"none answers at {url}: obscura up")
            try:
                next(iter(client.accounts()), None)
            except AuthError as error:
                if error.status == 401:
                    return Finding("service", "bad", f"{url} does not know the key: obscura login {url}")
            if health.trainings == "stopped":
                return Finding("service", "bad", f"{url} has stopped trainings: obscura ledger status")
            return Finding("service", "ok", f"{url}, version {health.version}")
    except (CliError, ApiError, ObscuraClientError) as error:
        return Finding("service", "bad", str(error))


def _kept(settings: Settings) -> Iterator[Finding]:
    """The data folder of a service on this machine: its database, and who trains."""
    if not settings.local_path.is_dir():
        yield Finding("data folder", "missing", f"{settings.local_path} is not there; a service makes it: obscura up")
        return
    mine = os.access(settings.local_path, os.R_OK | os.W_OK | os.X_OK)
    open_to_others = settings.local_path.stat().st_mode & 0o077
    if not mine:
        yield Finding("data folder", "bad", f"{settings.local_path} is not yours to write: choose another --data-dir")
    elif open_to_others:
        yield Finding(
            "data folder", "bad", f"{settings.local_path} is open to others: chmod -R go= {settings.local_path}"
        )
    else:
        yield Finding("data folder", "ok", str(settings.local_path))
    yield _database(settings)
    yield _trainer(settings)


def _database(settings: Settings) -> Finding:
    if find_spec("sqlalchemy") is None:
        return Finding("database", "missing", "not looked at: pip install 'obscura[server]'")
    from sqlalchemy import make_url, text
    from sqlalchemy.exc import SQLAlchemyError

    from service.db.schema import newest_revision
    from service.db.session import make_engine

    url = make_url(settings.database_url)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        return Finding("database", "missing", "not there yet; a service makes it: obscura up")
    engine = make_engine(settings.database_url, pool_size=1)
    try:
        with engine.connect() as connection:
            revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    except SQLAlchemyError as error:
        return Finding("database", "bad", f"cannot be read ({type(error).__name__}): obscura ledger verify")
    finally:
        engine.dispose()
    newest = newest_revision()
    if revision != newest:
        return Finding(
            "database", "bad", f"has schema {revision}, this version {newest}: stop the service, then obscura up"
        )
    return Finding("database", "ok", f"{url.get_backend_name()}, schema {revision}")


def _trainer(settings: Settings) -> Finding:
    """Who starts trainings: the service itself, or workers behind a broker."""
    if settings.mode == "celery":
        return Finding("supervisor", "ok", "workers elsewhere: celery --app workers.supervise.app inspect ping")
    if find_spec("torch") is None:
        return Finding("supervisor", "bad", "a service here could not train: pip install 'obscura[worker]'")
    running = running_at(settings.local_path)
    if running is None:
        return Finding("supervisor", "missing", "no service runs on this folder, so nothing is trained: obscura up")
    return Finding("supervisor", "ok", f"trains beside the service at {running}")


def _disk(folder: Path) -> Finding:
    there = next(parent for parent in (folder.resolve(), *folder.resolve().parents) if parent.exists())
    free = shutil.disk_usage(there).free
    if free < DISK_BYTES_MIN:
        return Finding(
            "disk", "bad", f"{free / 2**30:.1f} GiB left at {there}: free some, or choose another --data-dir"
        )
    return Finding("disk", "ok", f"{free / 2**30:.0f} GiB left")
