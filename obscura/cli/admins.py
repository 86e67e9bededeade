"""`obscura admins`, `obscura decisions` and `obscura people`: who decides, what two decide, and who can sign in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from obscura.cli.connection import Json, KeyId, add_list, connected, resolve_project, show_asked
from obscura.cli.console import CliError, Exit, reporting
from obscura.client import Client
from obscura.private_files import new_private_file, write_through
from obscura.wire.ids import introduce as make_introduction
from obscura.wire.words import DecisionAction

admins = typer.Typer(
    no_args_is_help=True, help="People who decide. Two admit or remove a third, or revoke a key of theirs."
)

decisions = typer.Typer(
    no_args_is_help=True, help="What one admin asked for and another approves: limits, admins, keys and shares."
)

ADMIN_COLUMNS = (
    "name", "id", "owns=project_id", "admission", "asked_by", "approved_by", "admitted_at", "removed_at",
)  # fmt: skip
DECISION_COLUMNS = (
    "id", "action", "name", "introduction", "key_id", "from=epsilon_before", "to=epsilon", "with=shared_with",
    "state", "reason", "asked_by=asked_by_name", "asked_at",
)  # fmt: skip
RequestId = Annotated[str, typer.Argument(metavar="REQUEST", help="dec_...")]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept with the request.")]
Out = Annotated[Path, typer.Option("--out", dir_okay=False, help="A new file for the token, readable by you alone.")]


@admins.command("introduce")
def introduce(out: Out, as_json: Json = False) -> None:
    """Create a token for yourself on your own machine, and show the introduction to give to an admin.

    Only you see the token. It works after you have been admitted.
    """
    with reporting(as_json) as output:
        token, introduction = make_introduction()
        write_token(out, token)
        output.record({"introduction": introduction, "token_file": str(out)}, "introduction")
        output.notice("Give the introduction to an admin, and to the one who approves: they must have the same.")


add_list(admins, "list", "List everybody who is or was an admin.", Client.admins, ADMIN_COLUMNS, "admins")


@admins.command("admit")
def admit(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Of the person.")],
    introduction: Annotated[str, typer.Option("--introduction", help="key_...:SHA-256, as the person gave it to you.")],
    reason: Reason,
    project: Annotated[
        str | None, typer.Option("--project", help="Name or id of the one department whose owner the person is to be.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Request the admission of a person. The second admin is admitted at once; later ones need an approval.

    With --project the person becomes an owner of it; the first owner is admitted at once.
    """
    with connected(context, as_json) as (client, output):
        of = resolve_project(client, project)
        made = client.ask_admission(name=name, introduction=introduction, reason=reason, project_id=of)
        if made.request is not None:
            show_asked(output, made.request)
        elif made.admin is not None:
            output.record(made.admin, "admin")


@admins.command("remove")
def remove(
    context: typer.Context,
    admin: Annotated[str, typer.Argument(metavar="ADMIN", help="adm_...")],
    reason: Reason,
    as_json: Json = False,
) -> None:
    """Request the removal of an admin, with all their keys and the keys that these created.

    Another admin must approve, and may be the one to remove.
    """
    with connected(context, as_json) as (client, output):
        show_asked(output, client.ask_removal(admin, reason=reason))


@admins.command("revoke")
def revoke(context: typer.Context, key_id: KeyId, reason: Reason, as_json: Json = False) -> None:
    """Request the revocation of another admin's key and of all keys that it created."""
    with connected(context, as_json) as (client, output):
        show_asked(output, client.ask_revocation(key_id, reason=reason))


@decisions.command("list")
def list_decisions(
    context: typer.Context,
    action: Annotated[DecisionAction | None, typer.Option(help="Only requests for this.")] = None,
    as_json: Json = False,
) -> None:
    """List what one admin asked for and another decides, newest first."""
    with connected(context, as_json) as (client, output):
        output.rows(list(client.decisions(action=action)), DECISION_COLUMNS, "decisions")


@decisions.command("show")
def show_decision(context: typer.Context, request: RequestId, as_json: Json = False) -> None:
    """Show one request."""
    with connected(context, as_json) as (client, output):
        output.record(client.decision(request), "decision")


@decisions.command("approve")
def approve(context: typer.Context, request: RequestId, as_json: Json = False) -> None:
    """Carry out what another admin has asked for. Before an admission, compare the introduction with the person's."""
    with connected(context, as_json) as (client, output):
        output.record(client.approve(request), "decision")


@decisions.command("decline")
def decline(context: typer.Context, request: RequestId, as_json: Json = False) -> None:
    """Leave everything as it is; also withdraws your own request."""
    with connected(context, as_json) as (client, output):
        output.record(client.decline(request), "decision")


def write_token(path: Path, token: str) -> None:
    try:
        file = new_private_file(path)
    except OSError as error:
        raise CliError(f"Cannot write {path}: {error.strerror}. It must be a new file.", Exit.USAGE) from error
    with file:
        write_through(file, f"{token}\n".encode("ascii"))


people = typer.Typer(no_args_is_help=True, help="People whom the sign-in provider knows (admins only).")

PERSON_COLUMNS = (
    "name",
    "id",
    "email",
    "scopes",
    "project=project_id",
    "key=key_id",
    "confirmed_at",
    "lapsed=lapsed_at",
)

add_list(
    people,
    "list",
    "List people with the roles that their groups give them: one line for each project.",
    Client.people,
    PERSON_COLUMNS,
    "people",
)
