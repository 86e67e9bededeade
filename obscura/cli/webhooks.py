"""`obscura webhooks`: addresses that are told of stops, of decisions that wait, and of jobs that ended."""

from __future__ import annotations

from typing import Annotated

import typer

from obscura.cli.connection import Json, add_list, connected
from obscura.cli.console import Exit, Output
from obscura.client import Client
from obscura.wire.webhook_schemas import NewWebhookRecord
from obscura.wire.words import NoticeKind

webhooks = typer.Typer(no_args_is_help=True, help="Addresses that are told of what happens (owners and admins).")

WebhookId = Annotated[str, typer.Argument(metavar="WEBHOOK", help="whk_...")]


@webhooks.command("create")
def create_webhook(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="https, of a public address.")],
    event: Annotated[
        list[NoticeKind] | None, typer.Option(help="What it is told; may be repeated. Left out: everything.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Have an address told of what happens in your key's project. The secret that signs is shown this once."""
    with connected(context, as_json) as (client, output):
        _show_new(output, client.create_webhook(url, events=event))


add_list(
    webhooks,
    "list",
    "List the webhooks of your key's project, newest first; failing and disabled ones, too.",
    Client.webhooks,
    ("id", "url", "state", "events", "failing_since", "project_id"),
    "webhooks",
)


@webhooks.command("rotate")
def rotate_webhook(
    context: typer.Context,
    webhook: WebhookId,
    overlap_hours: Annotated[
        int, typer.Option(min=0, max=31 * 24, help="For how long requests are signed under the old secret as well.")
    ] = 24,
    as_json: Json = False,
) -> None:
    """Make another secret for a webhook; it is shown this once."""
    with connected(context, as_json) as (client, output):
        _show_new(output, client.rotate_webhook(webhook, overlap_seconds=overlap_hours * 3600))


@webhooks.command("test")
def try_webhook(context: typer.Context, webhook: WebhookId, as_json: Json = False) -> None:
    """Send a request of the type test now; a webhook that answers it is enabled again."""
    with connected(context, as_json) as (client, output):
        sent = client.test_webhook(webhook)
        output.record(sent, "test")
    if not sent.delivered:
        raise typer.Exit(Exit.OTHER)


@webhooks.command("remove")
def remove_webhook(context: typer.Context, webhook: WebhookId, as_json: Json = False) -> None:
    """Tell an address nothing more."""
    with connected(context, as_json) as (client, output):
        output.record(client.remove_webhook(webhook), "removed")


def _show_new(output: Output, made: NewWebhookRecord) -> None:
    output.record(made, "webhook")
    output.notice("The secret is shown this once. Requests carry it as a signature: docs/webhooks.md.")
