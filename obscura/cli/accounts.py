"""`obscura accounts`, `obscura limits`, `obscura budget`."""

from __future__ import annotations

from typing import Annotated

import typer

from obscura.cli.connection import APPROVE, ProjectId, Reason, Shown, add_command, command
from obscura.cli.console import Output, confirm
from obscura.cli.fields import COLUMNS
from obscura.client import Client
from obscura.wire.budgets import DELTA_MOST, DELTA_USUAL_MOST, Unit

accounts = typer.Typer(no_args_is_help=True, help="Populations with one privacy budget each.")
limits = typer.Typer(no_args_is_help=True, help="Lower a limit, or request a higher limit from a second admin.")
budget = typer.Typer(no_args_is_help=True, help="Spent, reserved and remaining budget.")

ACCOUNT_COLUMNS = COLUMNS["account"][:9]
ENTRY_COLUMNS = ("sequence", "created_at", "kind", "amount_nano", "spent_nano", "reserved_nano", "job_id")
Account = Annotated[str, typer.Argument(metavar="ACCOUNT", help="Name or id.")]
Limit = Annotated[float, typer.Option("--epsilon", "-e", help="The new lifetime limit.")]


@command(accounts, "create", "account")
def create_account(
    client: Client,
    name: Annotated[str, typer.Argument(help="Name of the population.")],
    epsilon: Annotated[float, typer.Option("--epsilon", "-e", help="Lifetime budget.")],
    delta: Annotated[float, typer.Option("--delta", "-d", help="At most 1 / (10 x number of images).")],
    unit: Annotated[Unit, typer.Option(help="Protected unit: one record, or all records of a subject.")],
    owner: Annotated[str, typer.Option(help="Contact for questions about the account.")] = "admin",
    project: ProjectId = None,
    accept_large_delta: Annotated[
        bool, typer.Option("--accept-large-delta", help=f"Accept a delta above {DELTA_USUAL_MOST:g}.")
    ] = False,
) -> Shown:
    """Open an account. The budget never refreshes by itself."""
    if DELTA_USUAL_MOST < delta <= DELTA_MOST and not accept_large_delta:
        confirm(
            f"Delta {delta:g} is large: the guarantee may fail with this probability, 1 in {1 / delta:,.0f}, and the "
            "account keeps this delta forever. Choose at most 1 / (10 x number of images). Accept this delta?",
            "No account was opened.",
            flag="--accept-large-delta",
        )
        accept_large_delta = True
    return client.accounts.create(
        name=name,
        owner=owner,
        epsilon=epsilon,
        delta=delta,
        unit=unit,
        project_id=project,
        accept_large_delta=accept_large_delta,
    )


add_command(accounts, "list", "accounts", "accounts.list", "List accounts with their budgets.", ACCOUNT_COLUMNS)
add_command(accounts, "show", "account", "accounts.get", "Show one account.", name_or_id=Account)
add_command(
    accounts, "entries", "entries", "accounts.entries",
    "Show an account's ledger, oldest first.", ENTRY_COLUMNS, account=Account,
)  # fmt: skip
add_command(accounts, "freeze", "account", "accounts.freeze", account=Account, reason=Reason)
add_command(accounts, "unfreeze", "account", "accounts.unfreeze", account=Account, reason=Reason)
add_command(accounts, "close", "account", "accounts.close", account=Account)
add_command(accounts, "reopen", "account", "accounts.reopen", account=Account)
add_command(limits, "lower", "account", "accounts.lower_limit", account=Account, epsilon=Limit, reason=Reason)
add_command(
    limits, "request", "request", "accounts.request_raise", hint=APPROVE, account=Account, epsilon=Limit, reason=Reason
)


@command(budget, "show", "budget", ACCOUNT_COLUMNS)
def show_budget(
    client: Client,
    output: Output,
    account: Annotated[str | None, typer.Argument(metavar="[ACCOUNT]", help="Name or id; default: all.")] = None,
) -> Shown:
    """Show limit, spent, reserved and remaining budget. Epsilons of jobs do not add up; costs in nano-units do."""
    if account is None:
        return client.accounts.list()
    found = client.accounts.get(account)
    if not output.as_json:
        output.record(found, "account")
        return None
    facts = {"id": found.id, "name": found.name, "delta": found.delta, "frozen": found.frozen}
    return facts | found.balance.model_dump()
