"""`obscura keys`: who has which, until when, and how they are taken back."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from obscura.cli.connection import Json, KeyId, Project, Yes, add_list, connected, resolve_project
from obscura.cli.console import CliError, Exit, Output
from obscura.cli.jobs import is_interactive
from obscura.client import Client
from obscura.wire.admin_schemas import NewKeyRecord

keys = typer.Typer(no_args_is_help=True, help="API keys (admins only).")

COLUMNS = (
    "name", "id", "scopes", "made_by=created_by_name", "made_with=created_by", "created_at", "last_used=last_used_at",
    "expires=expires_at", "revoked=revoked_at",
)  # fmt: skip
SHOWN_MAX = 20
_SPAN = re.compile(r"([1-9][0-9]{0,4})([hdw])")
_SPANS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


@keys.command("create")
def create_key(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="For people.")],
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", "-s", help="admin, data, train, read, releases, audit or metrics; repeat for several."),
    ] = None,
    role: Annotated[
        str | None, typer.Option(help="In place of scopes: owner, steward, analyst, auditor or viewer of a project.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", help="After 12h, 90d or 8w; or at a date, like 2027-01-31 (UTC).")
    ] = None,
    project: Project = None,
    as_json: Json = False,
) -> None:
    """Create a key; with the scope admin, another one of your own. Its token is shown only once."""
    with connected(context, as_json) as (client, output):
        end = None if expires is None else read_end(expires, datetime.now(UTC))
        of = resolve_project(client, project)
        _show_new(output, client.create_key(name=name, scopes=scope or (), role=role, expires_at=end, project_id=of))


add_list(
    keys,
    "list",
    "List keys without their secrets: who made them, in which hour they were last used, when they end.",
    Client.keys,
    COLUMNS,
    "keys",
)


@keys.command("rotate")
def rotate_key(
    context: typer.Context,
    key_id: KeyId,
    overlap: Annotated[str, typer.Option(help="How long the old key still opens something, like 12h or 7d.")],
    expires: Annotated[
        str | None, typer.Option("--expires", help="When the new key ends: 12h, 90d or 8w; or a date.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Replace a key, which remains valid for the overlap. The new token is shown only once."""
    with connected(context, as_json) as (client, output):
        now = datetime.now(UTC)
        end = None if expires is None else read_end(expires, now)
        seconds = int((read_end(overlap, now) - now).total_seconds())
        _show_new(output, client.rotate_key(key_id, overlap_seconds=seconds, expires_at=end))


def _show_new(output: Output, key: NewKeyRecord) -> None:
    output.record(key, "key")
    output.notice("Keep the token: it is shown this once and stored nowhere.")


@keys.command("revoke")
def revoke_key(
    context: typer.Context,
    key_id: KeyId,
    with_made: Annotated[
        bool | None,
        typer.Option("--with-made/--only-this", help="What it has made, directly or not, goes as well; or stays."),
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Revoke your own key, or one that is not an admin's, at once and permanently.

    Lists the keys that it created and asks whether to revoke them too; without a terminal they are revoked. Another
    admin's key needs two people: obscura admins revoke.
    """
    with connected(context, as_json) as (client, output):
        made = [each for each in client.keys(made_by=key_id) if each.revoked_at is None]
        for each in made[:SHOWN_MAX]:
            output.notice(f"Made with it: {each.name} ({each.id}), {', '.join(each.scopes)}.")
        if len(made) > SHOWN_MAX:
            output.notice(f"And {len(made) - SHOWN_MAX} more.")
        if with_made is None:
            asked = made and not yes and is_interactive()
            with_made = not asked or typer.confirm("Revoke what it has made as well?", default=True, err=True)
        revoked = client.revoke_key(key_id, with_made=with_made)
        output.record(revoked, "key")
        output.notice(f"Revoked, and {revoked.others_revoked} that it had made.")


def read_end(text: str, now: datetime) -> datetime:
    """Parse when a key expires: a time span, a day or a moment, in UTC by default; raise CliError for anything else."""
    span = _SPAN.fullmatch(text)
    try:
        if span is not None:
            return now + int(span[1]) * _SPANS[span[2]]
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise CliError(
            f"--expires takes a span (12h, 90d, 8w) or a date (2027-01-31), not {text!r}.", Exit.USAGE
        ) from None
