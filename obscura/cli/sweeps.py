"""`obscura sweep`, `obscura sweeps`."""

from __future__ import annotations

from typing import Annotated

import typer

from obscura.cli.connection import (
    Dataset,
    Discard,
    Epsilon,
    Json,
    Key,
    OptionPairs,
    Preset,
    Recipe,
    Yes,
    add_list,
    connected,
    recipe_options,
    resolve_dataset,
)
from obscura.cli.console import CliError, Exit, Output
from obscura.cli.jobs import confirm
from obscura.client import Client, Sweep
from obscura.wire.grids import GridRefused, trials_of

sweeps = typer.Typer(no_args_is_help=True, help="Hyper-parameter searches, paid for as a whole.")
COLUMNS = (
    "name", "id", "recipe", "state", "price=totals.price_epsilon", "spent=totals.spent_epsilon", "best_job_id",
    "created_at",
)  # fmt: skip
TRIAL_COLUMNS = (
    "job_id",
    "state",
    "epsilon",
    "options",
    "spent=spent_epsilon",
    "balanced=balanced_accuracy.cnn",
    "cnn=accuracy.cnn",
    "incomplete",
    "release_id",
)
SweepId = Annotated[str, typer.Argument(metavar="SWEEP", help="swp_...")]


def sweep(
    context: typer.Context,
    dataset: Dataset,
    recipe: Recipe,
    epsilon: Epsilon,
    grid: Annotated[
        list[str],
        typer.Option(
            "--grid",
            "-g",
            metavar="NAME=VALUE,VALUE,...",
            help="Values to try of an option, or of epsilon; several grids give all combinations.",
        ),
    ],
    option: OptionPairs = None,
    preset: Preset = None,
    evaluate: Annotated[
        str | None, typer.Option(help="Public dataset (name or id) to compare the releases on.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="For people.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the sweep to its end.")] = False,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Train once for every combination of options. --epsilon is the cost of one trial; all are reserved at once."""
    with connected(context, as_json) as (client, output):
        try:
            trials = trials_of(grid, recipe_options(option, preset))
        except GridRefused as error:
            raise CliError(f"--grid takes NAME=VALUE,VALUE,... once for each name. {error}", Exit.USAGE) from None
        made = client.sweep_over(
            resolve_dataset(client, dataset),
            name=name or "; ".join(grid)[:100],
            recipe=recipe,
            trials=trials,
            epsilon=epsilon,
            evaluation_dataset_id=resolve_dataset(client, evaluate) if evaluate else None,
            idempotency_key=key,
        )
        show(output, follow(output, made) if wait else made)


add_list(sweeps, "list", "List sweeps, newest first.", Client.sweeps, COLUMNS, "sweeps")


@sweeps.command("show")
def show_sweep(context: typer.Context, sweep_id: SweepId, as_json: Json = False) -> None:
    """Show a sweep: the cost of each trial and the quality of its release on public data."""
    with connected(context, as_json) as (client, output):
        show(output, client.sweep(sweep_id))


@sweeps.command("watch")
def watch_sweep(context: typer.Context, sweep_id: SweepId, as_json: Json = False) -> None:
    """Follow a sweep until every trial has ended, whether it succeeded or not."""
    with connected(context, as_json) as (client, output):
        show(output, follow(output, client.sweep(sweep_id)))


@sweeps.command("cancel")
def cancel_sweep(
    context: typer.Context,
    sweep_id: SweepId,
    discard: Discard = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Cancel all unfinished trials and evaluations. A trial that has charged budget publishes what it has made."""
    with connected(context, as_json) as (client, output):
        found = client.sweep(sweep_id)
        paid = sum(trial.charged_nano > 0 for trial in found.trials if trial.state in ("queued", "running"))
        if discard and paid and not yes:
            confirm(
                f"{paid} of its trials have charged, for good, and nothing of them would be published. Discard them?"
            )
        show(output, found.cancel(discard=discard))


def follow(output: Output, made: Sweep) -> Sweep:
    """Wait for all trials and report how many have ended; Ctrl-C leaves the sweep running."""
    output.notice(f"Sweep {made.id}. Stop watching with Ctrl-C; the trials go on.")
    said: set[str] = set()

    def tell(sweep: Sweep) -> None:
        states = [trial.state for trial in sweep.trials]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        if counts not in said:
            said.add(counts)
            output.notice(f"{len(states)} trials: {counts}")

    return made.wait(tell)


def show(output: Output, sweep: Sweep) -> None:
    """Show a sweep and its trials, the best on public data first."""
    if output.as_json:
        output.record(sweep, "sweep")
        return
    totals = sweep.totals
    facts = {"id": sweep.id, "name": sweep.name, "recipe": sweep.recipe, "state": sweep.state}
    spent = {"price (epsilon)": totals.price_epsilon, "spent (epsilon)": totals.spent_epsilon}
    output.record(facts | spent | {"best on public data": sweep.best_job_id}, "sweep")
    ranked = sorted(
        sweep.trials, key=lambda trial: -1.0 if trial.compared_by is None else trial.compared_by, reverse=True
    )
    output.rows(ranked, TRIAL_COLUMNS, "trials")
    output.text("Every trial is paid for. Comparing them on public data is post-processing and costs nothing.")
