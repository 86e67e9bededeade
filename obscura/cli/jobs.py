"""`obscura plan`, `obscura train`, `obscura jobs`, `obscura sweep` and `obscura sweeps`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from obscura.cli.connection import DatasetId, Key, Shown, Wait, Yes, add_command, command, shown
from obscura.cli.console import CliError, Exit, Output, confirm
from obscura.cli.fields import COLUMNS, LABELS
from obscura.client import Client, Job, Sweep
from obscura.client.datasets import Datasets
from obscura.client.progress import job_progress, show_cost
from obscura.wire.job_schemas import RECIPE_USUAL, PlanRecord
from obscura.wire.texts import GridRefused, json_or_text, trials_of
from obscura.wire.wording import show_epsilon, show_words

jobs = typer.Typer(no_args_is_help=True, help="Trainings, samplings and evaluations.")
sweeps = typer.Typer(no_args_is_help=True, help="Hyperparameter sweeps, paid for as a whole.")
TRIAL_COLUMNS = (
    "options", "epsilon", "state", "accuracy", "balanced=balanced_accuracy", "release_id", "job_id",
    "spent=spent_epsilon", "incomplete",
)  # fmt: skip
JobId = Annotated[str, typer.Argument(metavar="JOB", help="job_...")]
SweepId = Annotated[str, typer.Argument(metavar="SWEEP", help="swp_...")]
Discard = Annotated[bool, typer.Option("--discard", help="Publish nothing; the charges stay spent.")]
Epsilon = Annotated[float, typer.Option("--epsilon", "-e", help="Privacy budget that this job may spend.")]
PANEL = "Recipe"  # of the help pages
Recipe = Annotated[str, typer.Option("--recipe", "-r", rich_help_panel=PANEL, help="Training recipe.")]
OptionPairs = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="NAME=VALUE", rich_help_panel=PANEL, help="An option of the recipe, in JSON."
    ),
]
ClassShares = Annotated[
    str | None,
    typer.Option(
        metavar="CLASS=NUMBER,...",
        rich_help_panel=PANEL,
        help="Expected records of each class, stated without looking at the data: normal=2000,sick=20, or shares in "
        "label order. Sets the recipe's option class_fractions.",
    ),
]
Preset = Annotated[
    str | None, typer.Option("--preset", rich_help_panel=PANEL, help="A named set of the recipe's options.")
]
Evaluate = Annotated[
    str | None,
    typer.Option(metavar="DATASET", help="Public dataset (name or id) to measure the releases on."),
    Datasets,
]
TRY_FIRST = "--preview"  # the option that previews a plan on public images
IMAGE = Path("preview.png")


def recipe_options(
    settings: Sequence[str] | None, preset: str | None, class_fractions: str | None = None
) -> dict[str, Any]:
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
    epsilon: Epsilon,
    recipe: Recipe = RECIPE_USUAL,
    option: OptionPairs = None,
    preset: Preset = None,
    class_fractions: ClassShares = None,
    preview: Annotated[bool, typer.Option(TRY_FIRST, help="Try it on public images first, at no cost.")] = False,
    stand_in: Annotated[str | None, typer.Option(metavar="DATASET", help="Name or id of the public dataset.")] = None,
    image: Annotated[Path, typer.Option(help="File for the preview's image.")] = IMAGE,
    expected: Annotated[
        int | None, typer.Option(min=1, help="Images (or subjects) you expect, for the forecast alone; not stored.")
    ] = None,
) -> None:
    """Show the stages and the cost of a training. Reads no data and spends nothing."""
    options = recipe_options(option, preset, class_fractions)
    previewed = preview or stand_in is not None
    if not (previewed and output.as_json):
        made = client.plan(dataset, recipe=recipe, epsilon=epsilon, options=options, expected_units=expected)
        show_plan(output, made, client.transport.base_url)
    if previewed:
        public = client.datasets.get(stand_in).id if stand_in else None
        order = {"recipe": recipe, "epsilon": epsilon, "options": options, "stand_in_dataset_id": public}
        try_first(output, client, image, dataset, **order)


@shown("job")
def train(
    client: Client,
    output: Output,
    dataset: DatasetId,
    epsilon: Epsilon,
    recipe: Recipe = RECIPE_USUAL,
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
    options = recipe_options(option, preset, class_fractions)
    job = client.jobs.create(
        dataset, recipe=recipe, epsilon=epsilon, options=options, evaluation_dataset_id=evaluate, idempotency_key=key
    )
    if not wait:
        return job
    job = follow(output, job)
    release = job.release()
    if release.kind == "generator":
        output.notice(f"Generating images from the release is free: obscura download {release.id} --count 10000")
    if (evaluation := next(release.evaluations(), None)) is not None:
        output.notice(f"The release is being evaluated. To follow: obscura jobs watch {evaluation.job_id}")
    if output.as_json:
        return job
    output.record(release, "release")
    return None


add_command(jobs, "list", "jobs", "jobs.list", "List jobs, newest first.", COLUMNS["job"][:11])
add_command(jobs, "show", "job", "jobs.get", "Show one job.", job_id=JobId)


@command(jobs, "watch", "job")
def watch_job(client: Client, output: Output, job_id: JobId) -> Shown:
    """Follow a job to its end. Exit code 5 if it does not succeed."""
    return follow(output, client.jobs.get(job_id))


@command(jobs, "cancel", "job")
def cancel_job(client: Client, output: Output, job_id: JobId, discard: Discard = False, yes: Yes = False) -> Shown:
    """Cancel a job. A training that has charged budget publishes its partial result; unspent budget is returned."""
    job = client.jobs.get(job_id)
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


def show_plan(output: Output, made: PlanRecord, service_url: str = "") -> None:
    if output.as_json:
        output.record(made, "plan")
        return
    facts = {
        name: value for name, value in made.facts.items() if not isinstance(value, dict | list) and name != "protects"
    }
    output.record(made.model_dump() | {"facts": facts}, "plan")
    stages = [
        {**stage.model_dump(), "stage": show_words(stage.name), "capacity_nano": made.cost_nano}
        for stage in made.stages
    ]
    output.rows(stages, ("stage", "releases", "noise=noise_multiplier", "share of cost=cost_nano"), "stages")
    for note in (*made.expectation.summary, *made.notes):
        output.text(note)
    if (example := made.expectation.example) is not None:
        output.notice(f"An example of this detail: {service_url}{example}")
    if not made.budget.affordable:
        left = show_epsilon(made.budget.left_epsilon, up=False)
        output.notice(f"The account cannot pay for this plan. Lower --epsilon to at most {left}.")


@shown("sweep")
def sweep(
    client: Client,
    output: Output,
    dataset: DatasetId,
    epsilon: Epsilon,
    grid: Annotated[
        list[str],
        typer.Option("--grid", "-g", metavar="NAME=VALUE,VALUE,...", help="Values of one option, or of epsilon."),
    ],
    recipe: Recipe = RECIPE_USUAL,
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
    made = client.sweeps.create(
        dataset,
        name=name or "; ".join(grid)[:100],
        recipe=recipe,
        trials=trials,
        epsilon=epsilon,
        evaluation_dataset_id=evaluate,
        idempotency_key=key,
    )
    show(output, follow_sweep(output, made) if wait else made)


add_command(sweeps, "list", "sweeps", "sweeps.list", "List sweeps, newest first.", COLUMNS["sweep"][:10])


@command(sweeps, "show", "sweep")
def show_sweep(client: Client, output: Output, sweep_id: SweepId) -> None:
    """Show a sweep: the cost of each trial and the quality of its release on public data."""
    show(output, client.sweeps.get(sweep_id))


@command(sweeps, "watch", "sweep")
def watch_sweep(client: Client, output: Output, sweep_id: SweepId) -> None:
    """Follow a sweep until every trial has ended, whether it succeeded or not."""
    show(output, follow_sweep(output, client.sweeps.get(sweep_id)))


@command(sweeps, "cancel", "sweep")
def cancel_sweep(client: Client, output: Output, sweep_id: SweepId, discard: Discard = False, yes: Yes = False) -> None:
    """Cancel all unfinished trials and evaluations. A trial that has charged budget publishes its partial result."""
    found = client.sweeps.get(sweep_id)
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
    output.record(sweep, "sweep")
    if not output.as_json:
        best_first = sorted(sweep.trials, key=lambda trial: trial.compared_by or -1.0, reverse=True)
        output.rows(best_first, TRIAL_COLUMNS, "trials")
        output.text("Every trial is paid for. Comparing them on public data is post-processing and costs nothing.")
