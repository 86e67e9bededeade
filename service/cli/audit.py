"""`obscura audit`: verify and export the audit log. Works on the database itself.

Exit codes of `verify`: 0 nothing was found, 1 there are findings, 2 it could not run.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from obscura.cli.connection import Json
from obscura.cli.console import CliError, Exit
from service.cli.ledger import open_database

audit = typer.Typer(
    no_args_is_help=True, help="Who asked for what. Runs on the machine of the service, with its settings."
)
_FORMATS = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]


@audit.command("verify")
def verify(
    context: typer.Context,
    export: Annotated[
        Path | None,
        typer.Option("--export", help="An earlier export, to be found in the log."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Recompute the chain of the audit log, and check what was signed for events that were removed.

    Exit codes: 0 nothing found, 1 findings, 2 it could not run.
    """
    from service.audit.events import verify_events
    from service.audit.signing import trusted_keys
    from service.db.session import transaction

    with open_database(context, as_json) as (settings, factory, output):
        if export is not None and not export.is_file():
            raise CliError(f"There is no file {export}.", Exit.USAGE)
        trusted = trusted_keys(settings.ledger_key_path)
        with transaction(factory, read_only=True, snapshot=True) as session:
            report = verify_events(session, trusted, export)
        number, digest = report.newest
        facts = {
            "events": report.events,
            "removed_through": report.removed_through,
            "newest": number,
            "newest_hash": digest,
            "compared": report.compared,
        }
        found = [finding.to_json() for finding in report.findings]
        output.record(facts | ({"findings": found} if as_json else {}), "audit log")
        for finding in report.findings:
            output.text(f"{finding.code.value}: {finding.message}")
    if report.findings:
        raise typer.Exit(1)


@audit.command("export")
def export(
    context: typer.Context,
    out: Annotated[Path, typer.Option("--out", help="A new file, which only you can read.")],
    since: Annotated[
        datetime | None, typer.Option("--since", formats=_FORMATS, help="From then on, in UTC; else everything.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the audit log as JSON lines, with exact times and hashes: keep it private, and where the operator cannot
    change it."""
    from obscura.private_files import new_private_file
    from service.audit.events import events_after
    from service.db.session import transaction
    from service.ledger.chain import utc_text

    earliest = "" if since is None else utc_text(since.replace(tzinfo=UTC))
    with open_database(context, as_json) as (_settings, factory, output):
        try:
            file = new_private_file(out)
        except FileExistsError:
            raise CliError(f"{out} is there already. Name a new file.", Exit.USAGE) from None
        written = after = 0
        with file, transaction(factory, read_only=True, snapshot=True) as session:
            while events := events_after(session, after):
                lines = [json.dumps(event) + "\n" for event in events if event["at"] >= earliest]
                file.write("".join(lines).encode("ascii"))
                written, after = written + len(lines), events[-1]["sequence"]
        output.record({"file": str(out), "events": written, "newest": after}, "export")
