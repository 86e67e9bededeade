"""`obscura accounts`, `obscura limits`, `obscura budget`."""

from __future__ import annotations

from typing import Annotated

import typer

from obscura.cli.connection import Json, Project, add_list, connected, resolve_account, resolve_project, show_asked
from obscura.cli.jobs import confirm
from obscura.client import Client
from obscura.wire.budgets import DELTA_MOST, DELTA_USUAL_MOST, Unit

accounts = typer.Typer(no_args_is_help=True, help="Populations with one privacy budget each.")
limits = typer.Typer(no_args_is_help=True, help="Lower a limit; ask for a higher one, which a second admin approves.")
budget = typer.Typer(no_args_is_help=True, help="What is spent, held and left.")

ACCOUNT_COLUMNS = (
    "name", "id", "delta", "limit=balance.limit_epsilon", "spent=balance.spent_epsilon", "held=balance.held_epsilon",
    "left=balance.left_epsilon", "frozen",
)  # fmt: skip
ENTRY_COLUMNS = ("sequence", "created_at", "kind", "amount_nano", "spent_nano", "held_nano", "job_id")
Account = Annotated[str, typer.Argument(metavar="ACCOUNT", help="Name or id.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; stands in the ledger for ever.")]
Limit = Annotated[float, typer.Option("--epsilon", "-e", help="The new lifetime limit.")]


@accounts.command("create")
def create_account(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Of the population, for people.")],
    epsilon: Annotated[float, typer.Option("--epsilon", "-e", help="Lifetime budget.")],
    delta: Annotated[float, typer.Option("--delta", "-d", help="At most 1 / (10 x number of images).")],
    unit: Annotated[Unit, typer.Option(help="Whose presence is hidden: one record, or all records of a subject.")],
    owner: Annotated[str, typer.Option(help="Who is asked for more.")] = "admin",
    project: Project = None,
    accept_large_delta: Annotated[
        bool, typer.Option("--accept-large-delta", help=f"Accept a delta above {DELTA_USUAL_MOST:g}.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Open an account. The budget never refreshes by itself."""
    with connected(context, as_json) as (client, output):
        if DELTA_USUAL_MOST < delta <= DELTA_MOST and not accept_large_delta:
            confirm(
                f"Delta {delta:g} is large: the guarantee may fail with this probability, 1 in {1 / delta:,.0f}, and "
                "the account keeps it forever. Choose at most 1 / (10 x number of images). Accept it?",
                "No account was opened.",
                flag="--accept-large-delta",
            )
            accept_large_delta = True
        made = client.create_account(
            name=name,
            owner=owner,
            epsilon=epsilon,
            delta=delta,
            unit=unit,
            project_id=resolve_project(client, project),
            accept_large_delta=accept_large_delta,
        )
        output.record(made, "account")


add_list(
    accounts,
    "list",
    "List accounts with their budgets (as epsilons at the account's delta).",
    Client.accounts,
    ACCOUNT_COLUMNS,
    "accounts",
)


@accounts.command("show")
def show_account(context: typer.Context, account: Account, as_json: Json = False) -> None:
    """Show one account."""
    with connected(context, as_json) as (client, output):
        output.record(client.account(resolve_account(client, account)), "account")


@accounts.command("entries")
def list_entries(context: typer.Context, account: Account, as_json: Json = False) -> None:
    """Show an account's ledger, oldest first."""
    with connected(context, as_json) as (client, output):
        output.rows(list(client.entries(resolve_account(client, account))), ENTRY_COLUMNS, "entries")


@accounts.command("freeze")
def freeze_account(context: typer.Context, account: Account, reason: Reason, as_json: Json = False) -> None:
    """Freeze an account: it accepts no new jobs, and queued ones cannot read its data. Running jobs continue."""
    with connected(context, as_json) as (client, output):
        output.record(client.freeze(resolve_account(client, account), reason=reason), "account")


@accounts.command("unfreeze")
def unfreeze_account(context: typer.Context, account: Account, reason: Reason, as_json: Json = False) -> None:
    """Unfreeze an account."""
    with connected(context, as_json) as (client, output):
        output.record(client.unfreeze(resolve_account(client, account), reason=reason), "account")


@accounts.command("close")
def close_account(context: typer.Context, account: Account, as_json: Json = False) -> None:
    """Accept no new data, so that new people get their own account. Trainings on existing data continue."""
    with connected(context, as_json) as (client, output):
        output.record(client.close_to_data(resolve_account(client, account)), "account")


@accounts.command("reopen")
def reopen_account(context: typer.Context, account: Account, as_json: Json = False) -> None:
    """Accept new data again."""
    with connected(context, as_json) as (client, output):
        output.record(client.reopen(resolve_account(client, account)), "account")


@limits.command("lower")
def lower_limit(
    context: typer.Context, account: Account, epsilon: Limit, reason: Reason, as_json: Json = False
) -> None:
    """Lower the lifetime limit at once. Below spent and reserved budget, the account freezes."""
    with connected(context, as_json) as (client, output):
        found = resolve_account(client, account)
        output.record(client.lower_limit(found, epsilon=epsilon, reason=reason), "account")


@limits.command("request")
def request_raise(
    context: typer.Context, account: Account, epsilon: Limit, reason: Reason, as_json: Json = False
) -> None:
    """Request a higher limit. Nothing changes until another admin approves."""
    with connected(context, as_json) as (client, output):
        made = client.request_raise(resolve_account(client, account), epsilon=epsilon, reason=reason)
        show_asked(output, made)


@budget.command("show")
def show_budget(
    context: typer.Context,
    account: Annotated[str | None, typer.Argument(metavar="[ACCOUNT]", help="Name or id; all when left out.")] = None,
    as_json: Json = False,
) -> None:
    """Show limit, spent, reserved and remaining budget. Epsilons of parts do not add up; nano-units do."""
    with connected(context, as_json) as (client, output):
        if account is None:
            output.rows(list(client.accounts()), ACCOUNT_COLUMNS, "budgets")
            return
        found = client.account(resolve_account(client, account))
        facts = {"id": found.id, "name": found.name, "delta": found.delta, "frozen": found.frozen}
        output.record(facts | found.balance.model_dump(), "budget")
