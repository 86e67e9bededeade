"""`obscura backup` and `obscura restore`: on the service's own machine, with its settings."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from obscura.cli.connection import Json
from obscura.cli.console import Exit, Output, reporting
from service.cli.ledger import explained, open_database
from service.settings import Settings

_Backup = Annotated[Path, typer.Argument(help="The folder of the backup.")]


def backup(
    context: typer.Context,
    out: Annotated[Path, typer.Argument(help="A new folder, best on another disk.")],
    with_keys: Annotated[
        bool, typer.Option("--with-keys", help="Copy the keys too: whoever has the backup can then open every image.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Back up database and files while the service runs, so that they agree with each other.

    PostgreSQL needs pg_dump on this machine. Without the keys, which are left out, no image of a backup opens.
    """
    from service.backups.making import back_up

    with open_database(context, as_json) as (settings, factory, output):
        made = back_up(settings, factory, out, with_keys=with_keys, now=datetime.now(UTC))
        manifest = made.manifest
        output.record(
            {
                "folder": str(out),
                "made_at": manifest.made_at,
                "database": manifest.database,
                "files": len(manifest.files),
                "files_missing": len(manifest.missing),
                "size_bytes": made.size_bytes,
                "seconds_since": round(made.seconds_since, 3),
                "with_keys": with_keys,
            },
            "backup",
        )
        if not with_keys:
            output.notice(
                f"The keys are not in it, and without them no image of it opens. They lie in {settings.keys_path}"
                f"{_elsewhere(settings)}: keep copies apart from the backup, where a single one can be destroyed."
            )


def restore(
    context: typer.Context,
    folder: _Backup,
    keep_files: Annotated[
        bool, typer.Option("--keep-files", help="The files have survived: bring the database back alone.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Restore a backup into an empty place, and verify it. Stop every service and worker first.

    Exit codes: 0 nothing was found, 1 the installation is locked or has findings, 2 it could not run and nothing was
    changed.
    """
    from service.backups.restoring import restore as bring_back
    from service.db.session import transaction
    from service.ledger.stops import arming_stops
    from service.logs import configure_logging

    configure_logging("CRITICAL")  # findings are in the result of the command
    settings = Settings.at(context.obj.folder)
    with reporting(as_json), explained(settings, Exit.USAGE):
        restored = bring_back(settings, folder, keep_files=keep_files, now=datetime.now(UTC))
    with open_database(context, as_json) as (settings, factory, output):
        report, document = restored.report, {"made_at": restored.manifest.made_at, "discarded": restored.discarded}
        with transaction(factory, read_only=True) as session:
            stops = sorted({stop.code for stop in arming_stops(session)})
        findings = [f"{finding.code.value}: {finding.message}" for finding in report.findings]
        output.record(document | {"stops": stops, "findings": findings}, "restored")
        _advise(output, settings, restored.manifest.made_at, stops)
    if stops or findings:
        raise typer.Exit(1)


def _advise(output: Output, settings: Settings, made_at: str, stops: list[str]) -> None:
    if stops:
        output.notice(
            "The installation is locked. `obscura ledger verify` lists what the database lacks; `obscura ledger accept "
            "ACCOUNT` records it as spent, account by account, and revokes all keys but those of admins."
        )
    if "restored" in stops:
        output.notice(
            f"Nothing proves what was spent or decided after {made_at}: add --epsilon with what may have been spent. "
            "Then lower limits again, freeze and close accounts again, and have subjects withdraw again."
        )
    if not (settings.keys_path / "fingerprints.key").is_file():
        output.notice(f"No keys of datasets lie in {settings.keys_path}: bring them back before the service starts.")


def _elsewhere(settings: Settings) -> str:
    path = settings.ledger_key_path
    return "" if path.parent == settings.keys_path else f", the ledger's at {path}"
