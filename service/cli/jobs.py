"""`obscura plan`, `obscura train`, `obscura jobs`."""

from __future__ import annotations

from typing import Annotated

import typer

from service.api.schemas import PlanRecord
from service.cli.connection import resolve_dataset
from service.cli.console import Output
from service.cli.options import Epsilon, Json, Preset, Recipe, Settings, connected, recipe_options
from service.cli.progress import job_progress
from service.client import Job

jobs = typer.Typer(no_args_is_help=True, help="Trainings and samplings.")
COLUMNS = (
    "id", "kind", "state", "price=price_epsilon", "charged=progress.charged_epsilon", "progress.stage",
    "progress.step", "of=progress.steps", "release_id",
)  # fmt: skip
Dataset = Annotated[str, typer.Argument(metavar="DATASET", help="Name or id.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="job_...")]


def plan(
    context: typer.Context,
    dataset: Dataset,
    recipe: Recipe,
    epsilon: Epsilon,
    option: Settings = None,
    preset: Preset = None,
    as_json: Json = False,
) -> None:
    """Show what a training would buy and cost. No data is touched, nothing is spent."""
    with connected(context, as_json) as (client, output):
        dataset_id = resolve_dataset(client, dataset)
        made = client.plan(dataset_id, recipe=recipe, epsilon=epsilon, options=recipe_options(option, preset))
        show_plan(output, made)


def train(
    context: typer.Context,
    dataset: Dataset,
    recipe: Recipe,
    epsilon: Epsilon,
    option: Settings = None,
    preset: Preset = None,
    evaluate: Annotated[str | None, typer.Option(help="Public dataset (name or id) to measure the release on.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the job to its end.")] = False,
    key: Annotated[str | None, typer.Option(help="Idempotency key: repeating the command starts nothing new.")] = None,
    as_json: Json = False,
) -> None:
    """Train a generator under differential privacy. Its price is held at once."""
    with connected(context, as_json) as (client, output):
        job = client.train(
            resolve_dataset(client, dataset),
            recipe=recipe,
            epsilon=epsilon,
            options=recipe_options(option, preset),
            evaluation_dataset_id=resolve_dataset(client, evaluate) if evaluate else None,
            idempotency_key=key,
        )
        output.record(follow(output, job, "training") if wait else job, "job")


@jobs.command("list")
def list_jobs(context: typer.Context, as_json: Json = False) -> None:
    """List jobs, newest first."""
    with connected(context, as_json) as (client, output):
        output.rows(list(client.jobs()), COLUMNS, "jobs")


@jobs.command("show")
def show_job(context: typer.Context, job_id: JobId, as_json: Json = False) -> None:
    """Show one job."""
    with connected(context, as_json) as (client, output):
        output.record(client.job(job_id), "job")


@jobs.command("watch")
def watch_job(context: typer.Context, job_id: JobId, as_json: Json = False) -> None:
    """Follow a job to its end. Exit code 5 when it does not succeed."""
    with connected(context, as_json) as (client, output):
        job = client.job(job_id)
        output.record(follow(output, job, "training" if job.kind == "train" else "sampling"), "job")


@jobs.command("cancel")
def cancel_job(context: typer.Context, job_id: JobId, as_json: Json = False) -> None:
    """Ask a job to stop. What it has charged stays spent; the rest of its hold returns."""
    with connected(context, as_json) as (client, output):
        output.record(client.job(job_id).cancel(), "job")


def follow(output: Output, job: Job, label: str) -> Job:
    """Wait for a job with live progress; Ctrl-C leaves the job running."""
    output.notice(f"Job {job.id}. Stop watching with Ctrl-C; the job goes on.")
    with job_progress(output.err, label) as on_event:
        return job.wait(on_event)


def show_plan(output: Output, made: PlanRecord) -> None:
    """Show a plan: what it buys, stage by stage, and what would be left."""
    if output.as_json:
        output.record(made, "plan")
        return
    budget = made.budget
    output.record(
        {
            "recipe": made.recipe,
            "epsilon asked for": made.epsilon,
            "price (epsilon)": made.price_epsilon,
            "price (nano-units)": made.price_nano,
            "guarantee": f"delta {made.delta:g}, unit {made.unit}, adjacency {made.adjacency}, filter {made.filter}",
            "left before": f"epsilon {budget.left_epsilon:.4g} of {budget.limit_epsilon:.4g}",
            "left after": f"epsilon {budget.left_after_epsilon:.4g}" if budget.affordable else "not affordable",
            **{f"buys: {name}": value for name, value in made.buys.items()},
        },
        "plan",
    )
    output.rows(made.stages, ("name", "releases", "noise_multiplier", "price_nano"), "stages")
    for note in made.notes:
        output.text(note)
