"""`obscura ledger`, `obscura backup` and `obscura restore`, which access the database directly.

Exit codes of `verify`: 0 no findings, 1 findings, 2 it could not run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from obscura.cli.connection import Json
from obscura.cli.console import CliError, Exit, Output, reporting
from service.settings import Settings

if TYPE_CHECKING:
    from service.db.session import SessionFactory

ledger = typer.Typer(
    no_args_is_help=True, help="Verify the spent budget. Runs on the machine of the service, with its settings."
)
Receipts = Annotated[
    list[Path] | None,
    typer.Option("--receipt", exists=True, dir_okay=False, help="A user's receipt to check; repeatable."),
]
# The proofs of missing spending, by field of a `Loss`.
PROOFS = {"journals": "journals", "witnesses": "signed entries", "releases": "releases", "datasets": "uploads"}


@ledger.command("verify")
def verify(
    context: typer.Context,
    receipt: Receipts = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Skip the releases' files, and SQLite's integrity check.")
    ] = False,
    clear: Annotated[
        bool, typer.Option("--clear", help="If there are no findings, let stopped trainings read data again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Recompute the whole ledger: hashes, balances, prices, limits, signatures, receipts, files of releases.

    A finding stops the trainings that it concerns until you run `--clear`. If the database is older than its storage,
    the installation is locked, and missing entries are listed by account. Exit codes: 0 no findings, 1 findings or
    locked, 2 it could not run.
    """
    from service import inspection
    from service.audit import findings
    from service.db.session import transaction
    from service.ledger import stops

    with open_database(context, as_json) as (settings, factory, output):
        report = inspection.inspect_ledger(settings, factory, given=receipt or (), thorough=not quick)
        inspection.follow_up(factory, report, now=datetime.now(UTC))
        with transaction(factory) as session:
            cleared = findings.clear_stops(session) if clear and not report.stops else 0
            scopes = [stop.scope for stop in stops.arming_stops(session)]
            locked = stops.lock_of(session) is not None
        document = {"clean": report.clean, **vars(report), "stops": scopes, "cleared": cleared, "locked": locked}
        del document["heads"], document["findings"]
        losses = inspection.find_losses(settings, factory, receipt or ()) if locked else {}
        missing = [vars(loss) for loss in losses.values()]
        lists = {"findings": [vars(finding) for finding in report.findings], "missing": missing}
        output.record(document | lists if as_json else document, "ledger")
        for finding in report.findings:
            output.text(f"{finding.code.value}: {finding.message}")
        for loss in missing:
            epsilon = "unknown" if loss["epsilon"] is None else f"{loss['epsilon']:.3g}"
            counts = ", ".join(f"{len(loss[name])} {noun}" for name, noun in PROOFS.items() if loss[name])
            output.text(
                f"missing in account {loss['account_id']}: {loss['missing_nano']} nano-units, epsilon {epsilon}"
                f"{f' ({counts})' if counts else ''}. Record it: obscura ledger accept {loss['account_id']}"
            )
    if not report.clean or locked:
        raise typer.Exit(1)


@ledger.command("accept")
def accept(
    context: typer.Context,
    account: Annotated[str, typer.Argument(help="Name or id. `obscura ledger verify` lists the ids.")],
    reason: Annotated[str, typer.Option("--reason", help="Recorded in the log.")] = "restored from a backup",
    receipt: Receipts = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", min=0.0, help="Record at least this epsilon as spent.")
    ] = None,
    without_images: Annotated[
        bool, typer.Option("--without-images", help="Accept that images whose keys are gone could get a second budget.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Record an account's spending that storage proves and a restored database lacks. Revokes all keys except admins'.

    Uses the admin's key in OBSCURA_TOKEN, or the first admin's key. If two admins have keys, the first call is a
    request, and the other admin approves it with the same command. After the last account, the installation is
    unlocked. Exit codes: 0 recorded, 1 another admin must approve or accounts remain, 2 rejected.
    """
    from obscura.private_files import read_admin_key
    from service.backups import accepting

    with open_database(context, as_json) as (settings, factory, output):
        token = os.environ.get("OBSCURA_TOKEN") or read_admin_key(context.obj.folder)
        outcome = accepting.accept(
            settings,
            factory,
            account,
            token,
            reason=reason,
            given=receipt or (),
            epsilon=epsilon,
            without_images=without_images,
            now=datetime.now(UTC),
        )
        output.record({"account": account} | vars(outcome) | {"remaining": list(outcome.remaining)}, "accepted")
        if outcome.request_id is not None:
            output.notice("Nothing is recorded yet: another admin must run this command with a key of their own.")
    if outcome.locked:
        raise typer.Exit(1)


@ledger.command("status")
def status(context: typer.Context, as_json: Json = False) -> None:
    """Show stopped trainings with reasons, the time of the last verification, and the newest checkpoint."""
    from service.api.routes.health import read_ledger
    from service.db.session import transaction

    with open_database(context, as_json) as (_, factory, output), transaction(factory, read_only=True) as session:
        output.record(read_ledger(session), "ledger")


@ledger.command("checkpoint")
def checkpoint(context: typer.Context, as_json: Json = False) -> None:
    """Verify the whole ledger and sign its heads. The service also does this itself, in every hour with new entries."""
    from service import inspection

    with open_database(context, as_json) as (settings, factory, output):
        report = inspection.inspect_ledger(settings, factory)
        if not report.clean:
            raise CliError("Nothing was signed: `obscura ledger verify` has findings.", Exit.OTHER)
        sequence = inspection.sign_heads(settings, factory, report, now=datetime.now(UTC))
        if sequence is None:
            raise CliError("The service has just signed a checkpoint itself.", Exit.OTHER)
        output.record({"sequence": sequence, "accounts": report.accounts, "entries": report.entries}, "checkpoint")


@ledger.command("accept-clock")
def accept_clock(context: typer.Context, as_json: Json = False) -> None:
    """Confirm that the clock is right now, so that the service starts although a clock was ahead in the past.

    Entries from that time keep their times, and later entries never have an earlier time. Leases and sign-ins dated by
    the wrong clock end. Check the clock first: the ledger compares later times with the current time of this clock.
    """
    from service import installation
    from service.db.session import transaction

    with open_database(context, as_json) as (_, factory, output):
        now = datetime.now(UTC)
        with transaction(factory) as session:
            newest = installation.accept_clock(session, now=now)
        if newest is None:
            raise CliError("The clock is not behind the ledger. Nothing was changed.", Exit.OTHER)
        output.record({"clock": str(now), "newest_entry": str(newest)}, "clock accepted")


@ledger.command("public-key")
def public_key(context: typer.Context, as_json: Json = False) -> None:
    """Show the public key of receipts and checkpoints, and its fingerprint. Store the fingerprint elsewhere."""
    from service.audit import signing

    with reporting(as_json) as output:
        try:
            key = signing.open_signing_key(settings_at(context.obj.folder).ledger_key_path)
        except (signing.SigningKeyUnusable, OSError) as error:
            raise CliError(str(error), Exit.USAGE) from error
        if as_json:
            output.record({"fingerprint": key.key_id, "public_key": key.public_pem()}, "public key")
        else:
            output.text(f"{key.public_pem()}fingerprint {key.key_id}")


def backup(
    context: typer.Context,
    out: Annotated[Path, typer.Argument(help="A new folder, best on another disk.")],
    with_keys: Annotated[
        bool, typer.Option("--with-keys", help="Copy the keys too: anyone with the backup can then open every image.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Back up the database and matching files while the service runs.

    PostgreSQL needs pg_dump on this machine. By default, keys are not copied, so no image in the backup can be opened.
    """
    from service.backups import making

    with open_database(context, as_json) as (settings, factory, output):
        made = making.back_up(settings, factory, out, with_keys=with_keys, now=datetime.now(UTC))
        manifest = made.manifest
        facts = {
            "folder": str(out),
            "made_at": manifest.made_at,
            "database": manifest.database,
            "files": len(manifest.files),
            "files_missing": len(manifest.missing),
            "size_bytes": made.size_bytes,
            "seconds_since": round(made.seconds_since, 3),
            "with_keys": with_keys,
        }
        output.record(facts, "backup")
        if not with_keys:
            signing = settings.ledger_key_path
            elsewhere = "" if signing.parent == settings.keys_path else f", the ledger's at {signing}"
            output.notice(
                "The keys are not in the backup, and without them no image of the backup opens. They are in "
                f"{settings.keys_path}{elsewhere}: keep copies of them in another place, where you can still destroy a "
                "single key."
            )


def restore(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="The folder of the backup.")],
    keep_files: Annotated[
        bool, typer.Option("--keep-files", help="Restore only the database, because the files have survived.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Restore a backup to an empty place, and verify it. Stop every service and worker first.

    Exit codes: 0 no findings, 1 the installation is locked or has findings, 2 it could not run and nothing was
    changed.
    """
    from service import logs
    from service.backups import restoring
    from service.db.session import transaction
    from service.ledger import stops

    logs.configure_logging("CRITICAL")  # findings are in the result of the command
    with reporting(as_json):
        settings = settings_at(context.obj.folder)
    with reporting(as_json), explained(settings, Exit.USAGE):
        restored = restoring.restore(settings, folder, keep_files=keep_files, now=datetime.now(UTC))
    with open_database(context, as_json) as (settings, factory, output):
        report, document = restored.report, {"made_at": restored.manifest.made_at, "discarded": restored.discarded}
        with transaction(factory, read_only=True) as session:
            codes = sorted({stop.code for stop in stops.arming_stops(session)})
        findings = [f"{finding.code.value}: {finding.message}" for finding in report.findings]
        output.record(document | {"stops": codes, "findings": findings}, "restored")
        if codes:
            output.notice(
                "The installation is locked. `obscura ledger verify` lists what the database lacks; `obscura ledger "
                "accept ACCOUNT` records it as spent, account by account, and revokes all keys but those of admins."
            )
        if "restored" in codes:
            output.notice(
                f"No record proves the spending and decisions after {restored.manifest.made_at}: give `ledger accept` "
                "the option --epsilon, an upper bound of what may have been spent. Then repeat every lowered limit, "
                "freeze, closure and withdrawal since then."
            )
        if not (settings.keys_path / "fingerprints.key").is_file():
            output.notice(f"The keys of datasets are not in {settings.keys_path}: copy them there before the start.")
    if codes or findings:
        raise typer.Exit(1)


def settings_at(folder: Path, **given: Any) -> Settings:
    try:
        return Settings.at(folder, **given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = "_".join(map(str, ("OBSCURA", *first["loc"]))).upper() if first["loc"] else "OBSCURA_*"
        raise CliError(f"The setting {name} is invalid: {first['msg']}.", Exit.USAGE) from error


@contextmanager
def open_database(context: typer.Context, as_json: bool) -> Iterator[tuple[Settings, SessionFactory, Output]]:
    """Open the database of the settings, and record acts in the audit log. Every failure is exit code 2."""
    from service import logs
    from service.db.session import open_sessions
    from service.disk import sqlite_file
    from service.identity.recording import recorded

    logs.configure_logging("CRITICAL")  # findings are in the result of the command
    with reporting(as_json) as output:
        settings = settings_at(context.obj.folder)
        file = sqlite_file(settings.database_url)
        if file is not None and not file.is_file():
            raise CliError(f"There is no database at {file}: check --data-dir.", Exit.USAGE)
        with open_sessions(settings.database_url) as factory, explained(settings, Exit.USAGE):
            yield settings, recorded(factory, settings.audit_log, lambda: datetime.now(UTC)), output


@contextmanager
def explained(settings: Settings, code: Exit) -> Iterator[None]:
    """Convert errors of the disk, the database or the service to one sentence and an exit code."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

    from service.disk import explain_failed_write
    from service.errors import ObscuraError

    try:
        yield
    except ObscuraError as error:
        raise CliError(error.message, code) from error
    except (OSError, SQLAlchemyError) as error:
        why = explain_failed_write(settings, error)
        if why is None:
            cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
            where = make_url(settings.database_url).render_as_string(hide_password=True)
            lines = str(cause).strip().splitlines()
            # The driver's first line names the server; statements and values come in later lines.
            reason = lines[0] if isinstance(error, OperationalError) and lines else type(error).__name__
            why = f"The database {where} cannot be used: {reason.rstrip('.')}."
        raise CliError(why, code) from error
