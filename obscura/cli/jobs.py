"""`obscura plan`, `obscura train`, `obscura jobs`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from obscura.cli.connection import (
    ClassShares,
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
from obscura.client import Client, Job
from obscura.client.progress import job_progress, show_cost
from obscura.wire.job_schemas import PlanRecord
from obscura.wire.wording import EARLY_ENDS, show_epsilon, show_percent, visible

jobs = typer.Typer(no_args_is_help=True, help="Trainings, samplings and evaluations.")
COLUMNS = (
    "id", "kind", "state", "price=price_epsilon", "charged=progress.charged_epsilon", "progress.stage",
    "progress.step", "of=progress.steps", "release_id",
)  # fmt: skip
JobId = Annotated[str, typer.Argument(metavar="JOB", help="job_...")]
TRY_FIRST = "--preview"  # the option by which a plan is tried
IMAGE = Path("preview.png")
LABELS = {"train": "training", "sample": "sampling", "evaluate": "evaluation"}  # of kinds that have another noun


def plan(
    context: typer.Context,
    dataset: Dataset,
    recipe: Recipe,
    epsilon: Epsilon,
    option: OptionPairs = None,
    preset: Preset = None,
    class_shares: ClassShares = None,
    preview: Annotated[
        bool, typer.Option(TRY_FIRST, help="Try it on public images first: an accuracy and an image, at no cost.")
    ] = False,
    stand_in: Annotated[
        str | None, typer.Option(metavar="DATASET", help="Public dataset (name or id) to try it on.")
    ] = None,
    image: Annotated[Path, typer.Option(help="Where the preview's image goes.")] = IMAGE,
    as_json: Json = False,
) -> None:
    """Show what a training would do and cost. Reads no data and spends nothing."""
    with connected(context, as_json) as (client, output):
        options = recipe_options(option, preset, class_shares)
        dataset_id = resolve_dataset(client, dataset)
        previewed = preview or stand_in is not None
        if not (previewed and as_json):
            made = client.plan(dataset_id, recipe=recipe, epsilon=epsilon, options=options)
            show_plan(output, made)
        if not previewed:
            return
        on = resolve_dataset(client, stand_in) if stand_in else None
        wish = {"recipe": recipe, "epsilon": epsilon, "options": options, "stand_in_dataset_id": on}
        try_first(output, client, image, dataset_id, **wish)


def train(
    context: typer.Context,
    dataset: Dataset,
    recipe: Recipe,
    epsilon: Epsilon,
    option: OptionPairs = None,
    preset: Preset = None,
    class_shares: ClassShares = None,
    evaluate: Annotated[str | None, typer.Option(help="Public dataset (name or id) to measure the release on.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the training until its release is there.")] = False,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Train a generator under differential privacy. Its cost is reserved at once, on the account of its dataset.

    The release can be downloaded when the training ends; --evaluate evaluates it afterwards, in a separate job.
    """
    with connected(context, as_json) as (client, output):
        job = client.start_training(
            resolve_dataset(client, dataset),
            recipe=recipe,
            epsilon=epsilon,
            options=recipe_options(option, preset, class_shares),
            evaluation_dataset_id=resolve_dataset(client, evaluate) if evaluate else None,
            idempotency_key=key,
        )
        if wait:
            job = follow(output, job)
            announce(output, job)
        output.record(job, "job")


add_list(jobs, "list", "List jobs, newest first.", Client.jobs, COLUMNS, "jobs")


@jobs.command("show")
def show_job(context: typer.Context, job_id: JobId, as_json: Json = False) -> None:
    """Show one job."""
    with connected(context, as_json) as (client, output):
        output.record(client.job(job_id), "job")


@jobs.command("watch")
def watch_job(context: typer.Context, job_id: JobId, as_json: Json = False) -> None:
    """Follow a job to its end. Exit code 5 if it does not succeed."""
    with connected(context, as_json) as (client, output):
        job = client.job(job_id)
        output.record(follow(output, job), "job")


@jobs.command("cancel")
def cancel_job(
    context: typer.Context,
    job_id: JobId,
    discard: Discard = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Cancel a job. A training that has charged budget publishes what it has made; the rest returns."""
    with connected(context, as_json) as (client, output):
        job = client.job(job_id)
        question = lossy_cancel_question(job, discard=discard)
        if question is not None and not yes:
            confirm(question)
        job = job.cancel(discard=discard)
        if job.ended_early == "cancelled" and not job.finished:
            output.notice(f"It charges no more, and publishes what it has made. See: obscura jobs watch {job.id}")
        output.record(job, "job")


def _plain(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


def lossy_cancel_question(job: Job, *, discard: bool) -> str | None:
    """Return the question, with the cost, before a cancellation that publishes nothing; None if none is needed."""
    facts = job.progress
    if job.finished or not facts.charged_nano or (job.publishes_if_cancelled and not discard):
        return None
    cost = show_cost(facts)
    if discard:
        return f"This job has cost {cost}, for good, and nothing of it would be published. Discard it?"
    return f"This job has cost {cost}, for good, and has nothing yet that could be published. Cancel it all the same?"


def confirm(question: str, otherwise: str = "Nothing was cancelled.", flag: str = "--yes") -> None:
    """Raise CliError unless the person at the terminal agrees."""
    if not is_interactive():
        raise CliError(f"{question} Nobody is here to answer: repeat the command with {flag}.", Exit.USAGE)
    if not typer.confirm(visible(question, lines=True), err=True):
        raise CliError(otherwise)


def is_interactive() -> bool:
    """Return whether there is a terminal."""
    return sys.stdin.isatty()


def announce(output: Output, job: Job) -> None:
    """Report a training's release, how much of its plan was made, and its evaluation."""
    release = job.release()
    output.notice(f"Release {release.id} is there. Drawing images is free: obscura download {release.id} --count 10000")
    if release.incomplete is not None:
        facts = release.incomplete
        output.notice(
            f"It is incomplete, because {EARLY_ENDS.get(facts.reason, facts.reason)}: "
            f"{show_percent(facts.share, up=False)} of the planned noisy releases were made and paid for."
        )
    for evaluation in release.evaluations():
        output.notice(f"It is being evaluated. To follow that: obscura jobs watch {evaluation.job_id}")
        break


def follow(output: Output, job: Job) -> Job:
    """Wait for a job with live progress; Ctrl-C leaves the job running."""
    output.notice(f"Job {job.id}. Stop watching with Ctrl-C; the job goes on.")
    with job_progress(output.err, LABELS.get(job.kind, job.kind)) as on_event:
        return job.wait(on_event)


def try_first(output: Output, client: Client, image: Path, dataset_id: str, **wish: Any) -> None:
    """Preview a training on public images, show the forecast, and save its image if there is one.

    Args:
        wish: Arguments of `Client.preview`.

    Raises:
        JobFailed: The preview failed.
    """
    asked = client.preview(dataset_id, **wish)
    follow(output, asked.job())
    found = asked.refresh()
    if output.as_json:
        output.record(found, "preview")
    elif found.verdict is not None:
        output.text(found.verdict)
    if found.real_accuracy is not None:  # of a generator
        output.notice(f"What it would draw of {found.stand_in}: {found.save_grid(image)}")


def show_plan(output: Output, made: PlanRecord) -> None:
    """Show a plan: its guarantee, its stages, and the remaining budget."""
    if output.as_json:
        output.record(made, "plan")
        return
    budget, left = made.budget, partial(show_epsilon, up=False)
    output.record(
        {
            "recipe": made.recipe,
            "epsilon asked for": made.epsilon,
            "price (epsilon)": made.price_epsilon,
            "price (nano-units)": made.price_nano,
            "guarantee": f"delta {made.delta:g}, unit {made.unit}, adjacency {made.adjacency}",
            "left before": f"epsilon {left(budget.left_epsilon)} of {left(budget.limit_epsilon)}",
            "left after": f"epsilon {left(budget.left_after_epsilon)}" if budget.affordable else "not affordable",
            **{
                name.replace("_", " "): _plain(value)
                for name, value in made.buys.items()
                if not isinstance(value, dict | list)
            },
        },
        "plan",
    )
    output.rows(made.stages, ("name", "releases", "noise_multiplier", "price_nano"), "stages")
    for note in made.notes:
        output.text(note)
