"""`obscura doctor`: looks at all that a command or a service here needs, and says what to run where it is missing."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

import typer

from obscura.cli.connection import Json, Target, connection
from obscura.cli.console import CliError, Output, reporting
from obscura.cli.server_side import Finding, server_side
from obscura.client import ApiError, AuthError, ConnectionFailed, ObscuraClientError
from obscura.extras import SERVER, WORKER, packages_of_parts

DISK_BYTES_MIN = 2 * 2**30
SLOW_SECONDS_MAX = 30.0


def doctor(context: typer.Context, as_json: Json = False) -> None:
    """Check Python, packages, service, database, workers and disk. Exit code 1 if a check fails."""
    target: Target = context.obj
    with reporting(as_json) as output:
        beside = server_side()
        kept = [] if beside is None else beside.look_around(target.data_dir)
        found = [_python(), *_packages(), _service(target, output), *kept, _disk(target.data_dir)]
        if as_json:
            output.rows([asdict(finding) for finding in found], (), "doctor")
        for finding in found:
            output.text(f"{finding.state:8} {finding.what}: {finding.said}")
    if any(finding.state == "bad" for finding in found):
        raise typer.Exit(1)


def _python() -> Finding:
    return Finding("python", "ok", f"{sys.version.split()[0]}, obscura {version('obscura-images')}")


def _packages() -> Iterator[Finding]:
    parts = packages_of_parts()
    if SERVER not in parts:
        yield Finding("service here", "missing", f"none can run: pip install '{WORKER}'")
    for part, names in parts.items():
        if not part.endswith("[dev]"):
            missing = [name for name in names if not _installed(name)]
            how = f"{', '.join(missing)}: pip install '{part}'" if missing else f"{len(names)} packages"
            yield Finding(f"packages of {part}", "missing" if missing else "ok", how)


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _service(target: Target, output: Output) -> Finding:
    try:
        with connection(target, output) as client:
            url = client.transport.route
            try:
                health = client.wait_ready(SLOW_SECONDS_MAX)
            except ConnectionFailed as error:
                absent = f"none answers at {url}: obscura up"
                return Finding("service", "bad", absent if error.refused else f"{url} is too slow: {error}")
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


def _disk(folder: Path) -> Finding:
    there = next(parent for parent in (folder.resolve(), *folder.resolve().parents) if parent.exists())
    free = shutil.disk_usage(there).free
    if free < DISK_BYTES_MIN:
        return Finding(
            "disk", "bad", f"{free / 2**30:.1f} GiB left at {there}: free some, or choose another --data-dir"
        )
    return Finding("disk", "ok", f"{free / 2**30:.0f} GiB left")
