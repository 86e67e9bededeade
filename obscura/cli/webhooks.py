"""`obscura webhooks`: addresses that are told of stops, of decisions that wait, and of jobs that ended."""

from __future__ import annotations

from typing import Annotated

import typer

from obscura.cli.connection import Json, add_list, connected
from obscura.cli.console import Exit
from obscura.client import Client

webhooks = typer.Typer(no_args_is_help=True, help="Addresses that are told of what happens (owners and admins).")

WebhookId = Annotated[str, typer.Argument(metavar="WEBHOOK", help="whk_...")]


@webhooks.command("create")
def create_webhook(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="https, of a public address.")],
    as_json: Json = False,
) -> None:
    """Register an address for events of your key's project. The signing secret is shown only once."""
    with connected(context, as_json) as (client, output):
        output.record(client.create_webhook(url), "webhook")
        output.notice("The secret is shown this once. Requests carry it as a signature: docs/webhooks.md.")


add_list(
    webhooks,
    "list",
    "List the webhooks of your key's project, newest first; failing and revoked ones, too.",
    Client.webhooks,
    ("id", "url", "state", "failing_since", "project_id"),
    "webhooks",
)


@webhooks.command("test")
def try_webhook(context: typer.Context, webhook: WebhookId, as_json: Json = False) -> None:
    """Send a request of type test now."""
    with connected(context, as_json) as (client, output):
        sent = client.test_webhook(webhook)
        output.record(sent, "test")
    if not sent.delivered:
        raise typer.Exit(Exit.OTHER)


@webhooks.command("remove")
def remove_webhook(context: typer.Context, webhook: WebhookId, as_json: Json = False) -> None:
    """Remove a webhook."""
    with connected(context, as_json) as (client, output):
        output.record(client.remove_webhook(webhook), "removed")
