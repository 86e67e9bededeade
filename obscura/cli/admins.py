"""Commands of admins and owners: `admins`, `decisions`, `people`, `projects`, `keys` and `webhooks`."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from obscura.cli.connection import APPROVE, Json, ProjectId, Reason, Shown, Yes, add_command, command
from obscura.cli.console import CliError, Exit, Output, confirm, reporting
from obscura.client import Client
from obscura.client.collections import Projects
from obscura.private_files import new_private_file, write_through
from obscura.wire.ids import introduce as make_introduction
from obscura.wire.words import DecisionAction

admins = typer.Typer(
    no_args_is_help=True,
    help="People who decide about limits and admins. Two admins together admit or remove another admin, or revoke that "
    "admin's keys.",
)
decisions = typer.Typer(
    no_args_is_help=True, help="Requests that a second admin approves: limits, admins, keys and shares."
)
people = typer.Typer(no_args_is_help=True, help="People of the sign-in provider, and invitations (admins only).")
projects = typer.Typer(no_args_is_help=True, help="Parts of the installation that do not see each other (admins only).")
keys = typer.Typer(no_args_is_help=True, help="API keys (admins only).")
webhooks = typer.Typer(no_args_is_help=True, help="Addresses that receive events (owners and admins).")

ADMIN_COLUMNS = (
    "name", "id", "owns=project_id", "admission", "requested_by", "approved_by", "admitted_at", "removed_at",
)  # fmt: skip
DECISION_COLUMNS = (
    "id", "action", "name", "introduction", "key_id", "from=epsilon_before", "to=epsilon", "with=shared_with",
    "state", "reason", "requested by=requested_by_name", "requested_at",
)  # fmt: skip
PERSON_COLUMNS = (
    "name", "id", "email", "scopes", "project_id", "key=key_id", "confirmed_at", "lapsed=lapsed_at",
)  # fmt: skip
INVITATION_COLUMNS = ("name", "id", "role", "project_id", "state", "created by=created_by_name", "expires_at")
PROJECT_COLUMNS = ("name", "id", "created_at")
WEBHOOK_COLUMNS = ("id", "url", "state", "failing_since", "project_id")
KEY_COLUMNS = (
    "name", "id", "scopes", "created by=created_by_name", "created with=created_by", "created_at",
    "last used=last_used_at", "expires_at", "revoked_at",
)  # fmt: skip
RequestId = Annotated[str, typer.Argument(metavar="REQUEST", help="dec_...")]
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="key_...")]
WebhookId = Annotated[str, typer.Argument(metavar="WEBHOOK", help="whk_...")]
ProjectName = Annotated[str, typer.Argument(help="Name of the project.")]
ProjectArgument = Annotated[str, typer.Argument(metavar="PROJECT", help="Name or id."), Projects]
AdminId = Annotated[str, typer.Argument(metavar="ADMIN", help="adm_...")]
Action = Annotated[DecisionAction | None, typer.Option(help="Show only requests of this kind.")]
Out = Annotated[Path, typer.Option("--out", dir_okay=False, help="New file for the token, which only you can read.")]
Expires = Annotated[str | None, typer.Option(help="Expiry: after 12h, 90d or 8w, or on 2027-01-31 (UTC)")]
KEYS_SHOWN_MAX = 20
TOKEN_ONCE = "Copy the token now: it is shown only once, and the service does not store it."
_SPAN = re.compile(r"([1-9][0-9]{0,4})([hdw])")
_SPANS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


@admins.command("introduce")
def introduce(out: Out, as_json: Json = False) -> None:
    """Create a token on your own machine, and show its introduction (key id and SHA-256), which you give to an admin.

    Only you see the token. It works once you are admitted.
    """
    with reporting(as_json) as output:
        token, introduction = make_introduction()
        write_token(out, token)
        output.record({"introduction": introduction, "token_file": str(out)}, "introduction")
        output.notice("Give this introduction to both admins: one requests your admission, the other approves.")


def write_token(path: Path, token: str) -> None:
    """Write a token to a new private file; raise CliError if that fails."""
    try:
        file = new_private_file(path)
    except OSError as error:
        raise CliError(f"Cannot write {path}: {error.strerror}. Name a new file.", Exit.USAGE) from error
    with file:
        write_through(file, f"{token}\n".encode("ascii"))


add_command(admins, "list", "admins", "admins.list", "List current and former admins.", ADMIN_COLUMNS)


@command(admins, "admit", "admin")
def admit(
    client: Client,
    output: Output,
    name: Annotated[str, typer.Argument(help="Name of the person.")],
    introduction: Annotated[str, typer.Option(help="The person's introduction, key_...:SHA-256.")],
    reason: Reason,
    project: Annotated[
        str | None, typer.Option(help="Name or id of the project that the person owns."), Projects
    ] = None,
) -> Shown:
    """Request the admission of a person. The second admin is admitted at once; each later admin needs an approval.

    With --project the person becomes an owner of that project. A project's first owner is admitted at once.
    """
    made = client.admins.request_admission(name=name, introduction=introduction, reason=reason, project_id=project)
    if made.request is not None:
        output.record(made.request, "request")
        output.notice(APPROVE.format(made.request))
    return made.admin


add_command(admins, "remove", "request", "admins.request_removal", hint=APPROVE, admin_id=AdminId, reason=Reason)
add_command(admins, "revoke", "request", "keys.request_revocation", hint=APPROVE, key_id=KeyId, reason=Reason)

add_command(
    decisions, "list", "decisions", "decisions.list",
    "List requests that another admin must decide, newest first.", DECISION_COLUMNS, action=Action,
)  # fmt: skip
add_command(decisions, "show", "decision", "decisions.get", "Show one request.", request_id=RequestId)
add_command(
    decisions, "approve", "decision", "decisions.approve",
    "Approve another admin's request. For an admission, first compare the introduction with the person's own.",
    request_id=RequestId,
)  # fmt: skip
add_command(decisions, "decline", "decision", "decisions.decline", request_id=RequestId)
add_command(people, "list", "people", "people.list", "List people with their roles, by project.", PERSON_COLUMNS)


@command(projects, "create", "project")
def create_project(client: Client, name: ProjectName, yes: Yes = False) -> Shown:
    """Create a project. Create accounts and keys in it with --project NAME.

    Once a second project exists, keys without a project no longer see the datasets, jobs and releases of any project.
    """
    existing = client.projects.list(limit=2)
    if len(existing) == 1 and not yes:
        confirm(
            "With a second project, datasets, jobs and releases are visible only with a key of their project, and your "
            "key has no project. To see the existing data, create a key: obscura keys create NAME --role owner "
            f"--project {existing[0].id}. Nothing is deleted. Create the project?",
            "No project was created.",
        )
    return client.projects.create(name=name)


add_command(projects, "list", "projects", "projects.list", "List the projects open to your key.", PROJECT_COLUMNS)
add_command(projects, "rename", "project", "projects.rename", project_id=ProjectArgument, name=ProjectName)
add_command(
    projects, "show", "project", "projects.get",
    "Show a project's job quota and number of unfinished jobs.", project_id=ProjectArgument,
)  # fmt: skip


@command(projects, "quota", "project")
def set_quota(
    client: Client,
    project: ProjectArgument,
    jobs: Annotated[str, typer.Option(help="Most waiting and running jobs, or the word none.")],
) -> Shown:
    """Limit the unfinished jobs of a project; --jobs none removes the limit (installation admins only)."""
    if jobs != "none" and not jobs.isdecimal():
        raise CliError(f"--jobs takes a whole number or the word none, not {jobs!r}.", Exit.USAGE)
    return client.projects.set_quota(project, jobs_max=None if jobs == "none" else int(jobs))


@command(keys, "create", "key", hint=TOKEN_ONCE)
def create_key(
    client: Client,
    name: Annotated[str, typer.Argument(help="Name of the key.")],
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", "-s", help="admin, data, train, read, releases, audit or metrics; repeat for several."),
    ] = None,
    role: Annotated[str | None, typer.Option(help="Or a role: owner, steward, analyst, auditor or viewer.")] = None,
    expires: Expires = None,
    project: ProjectId = None,
) -> Shown:
    """Create a key. A key with the scope admin counts as you, not as a second admin. The token is shown only once."""
    end = None if expires is None else read_end(expires, datetime.now(UTC))
    return client.keys.create(name=name, scopes=scope or (), role=role, expires_at=end, project_id=project)


add_command(
    people, "invite", "invitation", "invitations.create",
    "Invite a person by link. It works once, within seven days, and is shown only once.",
    hint="Send this link to the person: it works once.",
    role=Annotated[str, typer.Option(help="steward, analyst, auditor, viewer, owner or admin.")], project_id=ProjectId,
)  # fmt: skip
add_command(
    people, "invitations", "invitations", "invitations.list", "List invitations, newest first.", INVITATION_COLUMNS
)
add_command(
    people, "uninvite", "invitation", "invitations.revoke",
    invitation_id=Annotated[str, typer.Argument(metavar="INVITATION", help="inv_...")],
)  # fmt: skip
add_command(keys, "list", "keys", "keys.list", "List keys without their secrets, newest first.", KEY_COLUMNS)


@command(keys, "rotate", "key", hint=TOKEN_ONCE)
def rotate_key(
    client: Client,
    key_id: KeyId,
    overlap: Annotated[str, typer.Option(help="How long the old key stays valid, like 12h or 7d.")],
    expires: Expires = None,
) -> Shown:
    """Replace a key. The old key stays valid for the overlap. The new token is shown only once."""
    now = datetime.now(UTC)
    end = None if expires is None else read_end(expires, now)
    seconds = int((read_end(overlap, now) - now).total_seconds())
    return client.keys.rotate(key_id, overlap_seconds=seconds, expires_at=end)


@command(keys, "revoke", "key", hint="Revoked this key and {0.others_revoked} keys created with it.")
def revoke_key(
    client: Client,
    output: Output,
    key_id: KeyId,
    include_created: Annotated[
        bool | None, typer.Option("--include-created/--only-this", help="Revoke or keep the keys created with it.")
    ] = None,
    yes: Yes = False,
) -> Shown:
    """Revoke your own key, or any key without the scope admin, at once and permanently.

    Lists the keys that were created with this key, and asks whether to revoke them too. Without a terminal, they are
    revoked. To revoke another admin's key, run obscura admins revoke, which needs a second admin.
    """
    made = [each for each in client.keys.list(created_by=key_id) if each.revoked_at is None]
    for each in made[:KEYS_SHOWN_MAX]:
        output.notice(f"Created with this key: {each.name} ({each.id}), {', '.join(each.scopes)}.")
    if len(made) > KEYS_SHOWN_MAX:
        output.notice(f"And {len(made) - KEYS_SHOWN_MAX} more.")
    if include_created is None:
        asked = made and not yes and sys.stdin.isatty()
        include_created = not asked or typer.confirm("Revoke these keys as well?", default=True, err=True)
    return client.keys.revoke(key_id, include_created=include_created)


def read_end(text: str, now: datetime) -> datetime:
    """Parse when a key expires: a time span, a date or a moment (UTC by default). Raise CliError for any other text."""
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


add_command(
    webhooks, "create", "webhook", "webhooks.create",
    "Register an address for events of your key's project. The signing secret is shown only once.",
    hint="Copy the secret now: it is shown only once. It signs every request: /docs/operate/monitor.",
    url=Annotated[str, typer.Argument(help="Public https address.")],
)  # fmt: skip
add_command(webhooks, "list", "webhooks", "webhooks.list", "List the webhooks of your project.", WEBHOOK_COLUMNS)
add_command(webhooks, "remove", "removed", "webhooks.delete", webhook_id=WebhookId)


@command(webhooks, "test", "test")
def try_webhook(client: Client, output: Output, webhook: WebhookId) -> None:
    """Send a test event to a webhook now."""
    sent = client.webhooks.test(webhook)
    output.record(sent, "test")
    if not sent.delivered:
        raise typer.Exit(Exit.OTHER)
