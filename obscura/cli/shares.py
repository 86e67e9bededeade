"""`obscura releases share` and its like: which other departments see a release, as two people decide."""

from __future__ import annotations

from typing import Annotated

import typer

from obscura.cli.connection import Json, connected, show_asked
from obscura.cli.releases import releases

__all__ = ["releases"]  # the group, with these commands in it

SHARE_COLUMNS = ("with=project_name", "project_id", "created_at", "ended_at", "id")
NamedRelease = Annotated[str, typer.Argument(metavar="RELEASE", help="Name or id.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept with the request.")]
Other = Annotated[
    str, typer.Option("--with", metavar="PROJECT", help="The other department: its id, as its people tell you.")
]


@releases.command("share")
def share_release(
    context: typer.Context, release: NamedRelease, other: Other, reason: Reason, as_json: Json = False
) -> None:
    """Request that another department sees a release. Another owner approves, or an admin of the installation."""
    with connected(context, as_json) as (client, output):
        show_asked(output, client.find_release(release).share(other, reason=reason))


@releases.command("publish")
def publish_release(context: typer.Context, release: NamedRelease, reason: Reason, as_json: Json = False) -> None:
    """Request that every department sees a release, now and later. Another owner approves, or an admin."""
    with connected(context, as_json) as (client, output):
        show_asked(output, client.find_release(release).share(None, reason=reason))


@releases.command("unshare")
def unshare_release(
    context: typer.Context,
    release: NamedRelease,
    other: Annotated[
        str | None, typer.Option("--with", metavar="PROJECT", help="Id of the department; left out: of every one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Stop sharing a release with a department, or with all, at once.

    Copies that others have generated or downloaded remain with them.
    """
    with connected(context, as_json) as (client, output):
        output.record(client.find_release(release).unshare(other), "share")


@releases.command("shares")
def list_shares(context: typer.Context, release: NamedRelease, as_json: Json = False) -> None:
    """List current and former shares of a release, newest first."""
    with connected(context, as_json) as (client, output):
        output.rows(list(client.find_release(release).shares()), SHARE_COLUMNS, "shares")
