"""`obscura plan`, `obscura train`, `obscura jobs`, `obscura sweep` and `obscura sweeps`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from obscura.cli.connection import DatasetId, Key, Shown, Wait, Yes, add_command, command, find_dataset, shown
from obscura.cli.console import CliError, Exit, Output, confirm
from obscura.client import Client, Job, Sweep
from obscura.client.progress import job_progress, show_cost
from obscura.wire.job_schemas import PlanRecord
from obscura.wire.texts import GridRefused, json_or_text, trials_of
from obscura.wire.wording import EARLY_ENDS, show_epsilon, show_percent

jobs = typer.Typer(no_args_is_help=True, help="Trainings, samplings and evaluations.")
sweeps = typer.Typer(no_args_is_help=True, help="Hyperparameter sweeps, paid for as a whole.")
JOB_COLUMNS = (
    "id", "kind", "state", "cost=cost_epsilon", "charged=progress.charged_epsilon", "progress.stage",
    "progress.step", "of=progress.steps", "release_id",
)  # fmt: skip
SWEEP_COLUMNS = (
    "name", "id", "recipe", "state", "cost=totals.cost_epsilon", "spent=totals.spent_epsilon", "best_job_id",
    "created_at",
)  # fmt: skip
TRIAL_COLUMNS = (
    "job_id", "state", "epsilon", "options", "spent=spent_epsilon", "balanced=balanced_accuracy.cnn",
    "cnn=accuracy.cnn", "incomplete", "release_id",
)  # fmt: skip
JobId = Annotated[str, typer.Argument(metavar="JOB", help="job_...")]
SweepId = Annotated[str, typer.Argument(metavar="SWEEP", help="swp_...")]
Discard = Annotated[bool, typer.Option("--discard", help="Publish nothing; the charges stay spent.")]
Epsilon = Annotated[float, typer.Option("--epsilon", "-e", help="Privacy budget that this job may spend.")]
Recipe = Annotated[str, typer.Option("--recipe", "-r", help="Training recipe.")]
OptionPairs = Annotated[
    list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help="An option of the recipe, in JSON.")
]
ClassShares = Annotated[
    str | None,
    typer.Option(
        metavar="CLASS=NUMBER,...",
        help="Expected records of each class, stated without looking at the data: normal=2000,sick=20, or shares in "
        "label order. Sets the recipe's option class_fractions.",
    ),
]
Preset = Annotated[str | None, typer.Option("--preset", help="A named set of the recipe's options.")]
Evaluate = Annotated[
    str | None,
    typer.Option(help="Public dataset (name or id) to measure the releases on."),
    find_dataset,
]
TRY_FIRST = "--preview"  # the option that previews a plan on public images
IMAGE = Path("preview.png")
LABELS = {"train": "training", "sample": "sampling", "evaluate": "evaluation"}  # for job kinds whose noun differs


def recipe_options(
    settings: Sequence[str] | None, preset: str | None, class_fractions: str | None = None
) -> dict[str, Any]:
    """Parse `name=value` pairs. A value that is not JSON is text. Raise CliError for a pair without `=`."""
    options: dict[str, Any] = {} if preset is None else {"preset": preset}
    for setting in settings or []:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise CliError(f"--option takes NAME=VALUE, not {setting!r}.", Exit.USAGE)
        options[name] = json_or_text(text)
    return options if class_fractions is None else {**options, "class_fractions": class_fractions}


@shown("plan")
def plan(
    client: Client,
    output: Output,
    dataset: DatasetId,
    recipe: Recipe,
    epsilon: Epsilon,
    option: OptionPairs = None,
    preset: Preset = None,
    class_fractions: ClassShares = None,
    preview: Annotated[bool, typer.Option(TRY_FIRST, help="Try it on public images first, at no cost.")] = False,
    stand_in: Annotated[str | None, typer.Option(metavar="DATASET", help="Name or id of the public dataset.")] = None,
    image: Annotated[Path, typer.Option(help="File for the preview's image.")] = IMAGE,
) -> None:
    """Show the stages and the cost of a training. Reads no data and spends nothing."""
    options = recipe_options(option, preset, class_fractions)
    previewed = preview or stand_in is not None
    if not (previewed and output.as_json):
        show_plan(output, client.plan(dataset, recipe=recipe, epsilon=epsilon, options=options))
    if previewed:
        public = client.datasets.find(stand_in).id if stand_in else None
        order = {"recipe": recipe, "epsilon": epsilon, "options": options, "stand_in_dataset_id": public}
        try_first(output, client, image, dataset, **order)


@shown("job")
def train(
    client: Client,
    output: Output,
    dataset: DatasetId,
    recipe: Recipe,
    epsilon: Epsilon,
    option: OptionPairs = None,
    preset: Preset = None,
    class_fractions: ClassShares = None,
    evaluate: Evaluate = None,
    wait: Wait = False,
    key: Key = None,
) -> Shown:
    """Train a generator under differential privacy. Its cost is reserved at once, on the account of the dataset.

    The release can be downloaded when the training ends; --evaluate evaluates it afterwards, in a separate job.
    """
    job = client.start_training(
        dataset,
        recipe=recipe,
        epsilon=epsilon,
        options=recipe_options(option, preset, class_fractions),
        evaluation_dataset_id=evaluate,
        idempotency_key=key,
    )
    if not wait:
        return job
    job = follow(output, job)
    release = job.release()
    output.notice(
        f"Release {release.id} is ready. Generating images is free: obscura download {release.id} --count 10000"
    )
    if release.incomplete is not None:
        facts = release.incomplete
        output.notice(
            f"The release is incomplete, because {EARLY_ENDS.get(facts.reason, facts.reason)}: "
            f"{show_percent(facts.fraction, up=False)} of the planned noisy releases were made and paid for."
        )
    if (evaluation := next(release.evaluations(), None)) is not None:
        output.notice(f"The release is being evaluated. To follow: obscura jobs watch {evaluation.job_id}")
    return job


add_command(jobs, "list", "jobs", Client.jobs, "List jobs, newest first.", JOB_COLUMNS)
add_command(jobs, "show", "job", Client.job, "Show one job.", job_id=JobId)


@command(jobs, "watch", "job")
def watch_job(client: Client, output: Output, job_id: JobId) -> Shown:
    """Follow a job to its end. Exit code 5 if it does not succeed."""
    return follow(output, client.job(job_id))


@command(jobs, "cancel", "job")
def cancel_job(client: Client, output: Output, job_id: JobId, discard: Discard = False, yes: Yes = False) -> Shown:
    """Cancel a job. A training that has charged budget publishes its partial result; unspent budget is returned."""
    job = client.job(job_id)
    question = lossy_cancel_question(job, discard=discard)
    if question is not None and not yes:
        confirm(question)
    job = job.cancel(discard=discard)
    if job.ended_early == "cancelled" and not job.finished:
        output.notice(f"The job charges nothing more and publishes a partial result. See: obscura jobs watch {job.id}")
    return job


def lossy_cancel_question(job: Job, *, discard: bool) -> str | None:
    """Return the question to confirm if a job has spent budget and would publish nothing once cancelled; else None."""
    facts = job.progress
    if job.finished or not facts.charged_nano or (job.publishes_if_cancelled and not discard):
        return None
    cost = show_cost(facts)
    if discard:
        return f"This job has permanently spent {cost}, and would publish nothing. Discard it?"
    return f"This job has permanently spent {cost}, and has nothing to publish yet. Cancel it anyway?"


def follow(output: Output, job: Job) -> Job:
    """Wait for a job with live progress; Ctrl-C leaves the job running."""
    output.notice(f"Job {job.id}. Stop watching with Ctrl-C; the job continues.")
    with job_progress(output.err, LABELS.get(job.kind, job.kind)) as on_event:
        return job.wait(on_event)


def try_first(output: Output, client: Client, image: Path, dataset_id: str, **order: Any) -> None:
    """Preview a training (see `Client.preview`), show the forecast, and save the preview's image if there is one."""
    preview = client.preview(dataset_id, **order)
    follow(output, preview.job())
    preview = preview.refresh()
    if output.as_json:
        output.record(preview, "preview")
    elif preview.verdict is not None:
        output.text(preview.verdict)
    if preview.real_accuracy is not None:  # of a generator
        output.notice(f"Images it would generate from {preview.stand_in}: {preview.save_grid(image)}")


def show_plan(output: Output, made: PlanRecord) -> None:
    """Show a plan: its guarantee, its stages, and the remaining budget."""
    if output.as_json:
        output.record(made, "plan")
        return
    budget, left = made.budget, partial(show_epsilon, up=False)
    output.record(
        {
            "recipe": made.recipe,
            "epsilon requested": made.epsilon,
            "cost (epsilon)": made.cost_epsilon,
            "cost (nano-units)": made.cost_nano,
            "guarantee": f"delta {made.delta:g}, unit {made.unit}, adjacency {made.adjacency}",
            "left before": f"epsilon {left(budget.left_epsilon)} of {left(budget.limit_epsilon)}",
            "left after": f"epsilon {left(budget.left_after_epsilon)}" if budget.affordable else "not affordable",
            **{
                name.replace("_", " "): f"{value:.4g}" if isinstance(value, float) else value
                for name, value in made.facts.items()
                if not isinstance(value, dict | list)
            },
        },
        "plan",
    )
    output.rows(made.stages, ("name", "releases", "noise_multiplier", "cost_nano"), "stages")
    for note in made.notes:
        output.text(note)


@shown("sweep")
def sweep(
    client: Client,
    output: Output,
    dataset: DatasetId,
    recipe: Recipe,
    epsilon: Epsilon,
    grid: Annotated[
        list[str],
        typer.Option("--grid", "-g", metavar="NAME=VALUE,VALUE,...", help="Values of one option, or of epsilon."),
    ],
    option: OptionPairs = None,
    preset: Preset = None,
    evaluate: Evaluate = None,
    name: Annotated[str | None, typer.Option(help="Name of the sweep.")] = None,
    wait: Wait = False,
    key: Key = None,
) -> None:
    """Train once for every combination of options. --epsilon is for one trial; the cost of all trials is reserved."""
    try:
        trials = trials_of(grid, recipe_options(option, preset))
    except GridRefused as error:
        raise CliError(f"--grid takes NAME=VALUE,VALUE,... once for each name. {error}", Exit.USAGE) from None
    made = client.sweep_over(
        dataset,
        name=name or "; ".join(grid)[:100],
        recipe=recipe,
        trials=trials,
        epsilon=epsilon,
        evaluation_dataset_id=evaluate,
        idempotency_key=key,
    )
    show(output, follow_sweep(output, made) if wait else made)


add_command(sweeps, "list", "sweeps", Client.sweeps, "List sweeps, newest first.", SWEEP_COLUMNS)


@command(sweeps, "show", "sweep")
def show_sweep(client: Client, output: Output, sweep_id: SweepId) -> None:
    """Show a sweep: the cost of each trial and the quality of its release on public data."""
    show(output, client.sweep(sweep_id))


@command(sweeps, "watch", "sweep")
def watch_sweep(client: Client, output: Output, sweep_id: SweepId) -> None:
    """Follow a sweep until every trial has ended, whether it succeeded or not."""
    show(output, follow_sweep(output, client.sweep(sweep_id)))


@command(sweeps, "cancel", "sweep")
def cancel_sweep(client: Client, output: Output, sweep_id: SweepId, discard: Discard = False, yes: Yes = False) -> None:
    """Cancel all unfinished trials and evaluations. A trial that has charged budget publishes its partial result."""
    found = client.sweep(sweep_id)
    paid = sum(trial.charged_nano > 0 for trial in found.trials if trial.state in ("queued", "running"))
    if discard and paid and not yes:
        confirm(f"{paid} trials of this sweep have permanently spent budget, and would publish nothing. Discard them?")
    show(output, found.cancel(discard=discard))


def follow_sweep(output: Output, made: Sweep) -> Sweep:
    """Wait for all trials and report how many have ended; Ctrl-C leaves the sweep running."""
    output.notice(f"Sweep {made.id}. Stop watching with Ctrl-C; the trials continue.")
    reported: set[str] = set()

    def report(sweep: Sweep) -> None:
        states = [trial.state for trial in sweep.trials]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        if counts not in reported:
            reported.add(counts)
            output.notice(f"{len(states)} trials: {counts}")

    return made.wait(report)


def show(output: Output, sweep: Sweep) -> None:
    """Show a sweep and its trials, ordered by quality on public data, best first."""
    if output.as_json:
        output.record(sweep, "sweep")
        return
    totals = sweep.totals
    facts = {"id": sweep.id, "name": sweep.name, "recipe": sweep.recipe, "state": sweep.state}
    spent = {"cost (epsilon)": totals.cost_epsilon, "spent (epsilon)": totals.spent_epsilon}
    output.record(facts | spent | {"best on public data": sweep.best_job_id}, "sweep")
    ranked = sorted(
        sweep.trials, key=lambda trial: -1.0 if trial.compared_by is None else trial.compared_by, reverse=True
    )
    output.rows(ranked, TRIAL_COLUMNS, "trials")
    output.text("Every trial is paid for. Comparing them on public data is post-processing and costs nothing.")
