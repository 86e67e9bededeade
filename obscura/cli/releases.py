"""`obscura releases`, `obscura evaluate`, `obscura sample`, `obscura download`."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from obscura.cli.connection import (
    Json,
    Key,
    add_list,
    connected,
    resolve_dataset,
)
from obscura.cli.console import CliError, Exit, Output
from obscura.cli.jobs import follow
from obscura.client import AuthError, Client, NotFoundError, Release, Sample
from obscura.client.contents import combine, require_room
from obscura.client.progress import byte_progress
from obscura.wire.class_shares import AS_STATED, read_class_shares
from obscura.wire.formats import PACKINGS, SampleFormat

releases = typer.Typer(no_args_is_help=True, help="Published generators; sampling them is free.")
COLUMNS = (
    "name", "id", "kind", "made=incomplete.share", "balanced=summary.balanced_accuracy.cnn", "cnn=summary.accuracy.cnn",
    "account_id", "created_at",
)  # fmt: skip
EVALUATION_COLUMNS = (
    "id", "state", "dataset_id", "samples", "seed", "balanced=balanced_accuracy", "accuracy",
    "frechet=likeness.frechet_distance", "recall=likeness.recall", "extractor=likeness.extractor", "job_id",
    "finished_at",
)  # fmt: skip

ReleaseId = Annotated[str, typer.Argument(metavar="RELEASE", help="rel_...")]
Count = Annotated[int, typer.Option("--count", "-n", min=1, help="Synthetic images to draw.")]
Seed = Annotated[int, typer.Option(min=0, help="Public: the same request gives the same bytes.")]
Format = Annotated[SampleFormat, typer.Option("--format", "-f", help="How the images are packed.")]
Classes = Annotated[str | None, typer.Option(help="Class names, separated by commas; all when left out.")]
Proportions = Annotated[
    str | None,
    typer.Option(
        metavar="CLASS=NUMBER,...",
        help="In place of --classes, how often each class comes: normal=2000,sick=20, numbers in label order, or "
        "stated (as --class-shares said in training); evenly when left out.",
    ),
]


add_list(releases, "list", "List releases, newest first.", Client.releases, COLUMNS, "releases")


@releases.command("show")
def show_release(context: typer.Context, release_id: ReleaseId, as_json: Json = False) -> None:
    """Show one release with its newest evaluation on public data."""
    with connected(context, as_json) as (client, output):
        output.record(client.release(release_id), "release")


@releases.command("evaluations")
def list_evaluations(context: typer.Context, release_id: ReleaseId, as_json: Json = False) -> None:
    """List the evaluations of a release, finished or not, newest first."""
    with connected(context, as_json) as (client, output):
        output.rows(list(client.evaluations(release_id)), EVALUATION_COLUMNS, "evaluations")


@releases.command("card")
def show_card(context: typer.Context, release_id: ReleaseId, as_json: Json = False) -> None:
    """Show the privacy card of a release."""
    with connected(context, as_json) as (client, output):
        output.record(client.release(release_id).card(), "privacy card")


@releases.command("receipt")
def save_receipt(
    context: typer.Context,
    release_id: ReleaseId,
    out: Annotated[Path | None, typer.Option("--out", help="Where the file goes; stdout when left out.")] = None,
    as_json: Json = False,
) -> None:
    """Save the signed receipt of a release, the proof of payment that anyone with the public key can verify."""
    with connected(context, as_json) as (client, output):
        release = client.release(release_id)
        if out is None:
            typer.echo(json.dumps(release.receipt(), indent=1, sort_keys=True))
        else:
            output.record({"path": str(release.save_receipt(out))}, "receipt")


@releases.command("report")
def save_report(
    context: typer.Context,
    release_id: ReleaseId,
    out: Annotated[Path, typer.Option("--out", help="Where the HTML page goes.")] = Path("report.html"),
    as_json: Json = False,
) -> None:
    """Save the report of a release."""
    with connected(context, as_json) as (client, output):
        output.record({"path": str(client.release(release_id).save_report(out))}, "report")


@releases.command("weights")
def save_weights(
    context: typer.Context,
    release_id: ReleaseId,
    out: Annotated[Path, typer.Option("--out", help="Folder that the files go into.")] = Path("weights"),
    as_json: Json = False,
) -> None:
    """Save the trained artefact; a generator comes with a model card and a program that samples with torch alone."""
    with connected(context, as_json) as (client, output):
        saved = client.release(release_id).save_weights(out)
        output.record({"path": str(out), "files": [path.name for path in saved]}, "weights")


@releases.command("grid")
def save_grid(
    context: typer.Context,
    release_id: ReleaseId,
    out: Annotated[Path, typer.Option("--out", help="Where the image goes.")] = Path("grid.png"),
    as_json: Json = False,
) -> None:
    """Save a grid of synthetic images, one row for each class."""
    with connected(context, as_json) as (client, output):
        output.record({"path": str(client.release(release_id).save_grid(out))}, "grid")


def evaluate(
    context: typer.Context,
    release_id: ReleaseId,
    on: Annotated[str, typer.Option("--on", metavar="DATASET", help="Public dataset (name or id) to measure on.")],
    samples: Annotated[
        int | None, typer.Option(min=1, help="Synthetic images that classifiers are trained on; of generators alone.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Public; of the samples and the classifiers.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the evaluation to its end.")] = False,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Evaluate a release on a public dataset, for free. The report gains a section; the release stays as it is."""
    with connected(context, as_json) as (client, output):
        dataset_id = resolve_dataset(client, on)
        asked = client.release(release_id).evaluate(dataset_id, samples=samples, seed=seed, idempotency_key=key)
        if asked.samples is not None:
            output.notice(f"It generates {asked.samples:,} images and trains classifiers on them, which takes minutes.")
        if not wait:
            output.notice(f"To see the time left: obscura jobs watch {asked.job_id}")
        if wait:
            follow(output, asked.job())
            asked = asked.refresh()
        output.record(asked, "evaluation")


def sample(
    context: typer.Context,
    release_id: ReleaseId,
    count: Count,
    seed: Seed = 0,
    format: Format = "imagefolder",
    classes: Classes = None,
    proportions: Proportions = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the sampling to its end.")] = False,
    as_json: Json = False,
) -> None:
    """Generate synthetic images from a release, for free."""
    with connected(context, as_json) as (client, output):
        asked = client.release(release_id)
        which = _which(client, asked, classes, proportions)
        drawn = asked.sample(count=count, seed=seed, format=format, **which)
        output.record(_finished(output, drawn) if wait else drawn, "sample")


def download(
    context: typer.Context,
    sources: Annotated[
        list[str], typer.Argument(metavar="SAMPLE|RELEASE...", help="smp_..., or rel_... to draw a sample first.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="Where the file goes; of several, a new folder or a .zip.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Images to draw of each release (with rel_...).")
    ] = None,
    seed: Seed = 0,
    format: Format = "imagefolder",
    classes: Classes = None,
    proportions: Proportions = None,
    unpack: Annotated[
        bool, typer.Option("--unpack", help="Into a new folder --out, as class folders of PNG files, or as Parquet.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Download synthetic images, resuming a partial download, and verify the SHA-256.

    Several samples or releases become one set of class folders, in a new folder --out or an archive --out NAME.zip.
    """
    with connected(context, as_json) as (client, output):
        several = len(sources) > 1
        if (unpack or several) and out is None:
            raise CliError("Say which folder the images go into: --out.", Exit.USAGE)
        if several and format != "imagefolder":
            raise CliError("Several samples are combined as image folders: leave --format out.", Exit.USAGE)
        if len(set(sources)) < len(sources):
            raise CliError("The same sample or release is named twice: name each once.", Exit.USAGE)
        if (unpack or several) and out is not None:
            require_room(out)
        if count is None and any(source.startswith("rel_") for source in sources):
            raise CliError("Say how many images to draw: --count.", Exit.USAGE)
        drawn = []
        for source in sources:
            if count is not None and source.startswith("rel_"):
                release = client.release(source)
                which = _which(client, release, classes, proportions)
                drawn.append(release.sample(count=count, seed=seed, format=format, **which))
            else:
                drawn.append(client.sample(source))
        drawn = [_finished(output, each) for each in drawn]
        if several and out is not None:
            _combine(output, drawn, out)
            return
        (sample,) = drawn
        if unpack and out is not None:
            unpacked = sample.to_parquet(out) if sample.format == "parquet" else sample.to_imagefolder(out)
            output.record({"path": str(unpacked), **sample.model_dump(mode="json")}, "sample")
            return
        target = out or Path(f"{_plain(sample.id)}.{PACKINGS[sample.format].suffix}")
        _download(output, sample, target)
        output.record({"path": str(target), **sample.model_dump(mode="json")}, "sample")


def _plain(sample_id: str) -> str:
    return re.sub("[^a-z0-9_]", "", sample_id)


def _download(output: Output, sample: Sample, target: Path) -> Path:
    with byte_progress(output.err, "downloading", sample.bytes) as on_bytes:
        return sample.download(target, on_bytes)


def _combine(output: Output, drawn: list[Sample], out: Path) -> None:
    samples = [_finished(output, each.packed("imagefolder")) for each in drawn]
    with tempfile.TemporaryDirectory(prefix="obscura-") as scratch:
        archives = {
            _plain(each.id): (_download(output, each, Path(scratch) / f"{number}.zip"), each.count)
            for number, each in enumerate(samples)
        }
        combine(archives, out)
    images = sum(each.count for each in samples)
    output.record({"path": str(out), "sample_ids": [each.id for each in samples], "images": images}, "samples")


def _finished(output: Output, drawn: Sample) -> Sample:
    if drawn.state != "succeeded":
        follow(output, drawn.job())
        return drawn.refresh()
    return drawn


def _which(client: Client, release: Release, classes: str | None, proportions: str | None) -> dict[str, Any]:
    """Return which classes are drawn and how often, as `Release.sample` takes it.

    Raises:
        CliError: Both were given, or the proportions cannot be read.
    """
    if proportions is None:
        return {"classes": classes.split(",") if classes else None}
    if classes is not None:
        raise CliError("Give --classes or --proportions: the latter name the classes that are drawn.", Exit.USAGE)
    if proportions == AS_STATED:
        return {"proportions": AS_STATED}
    try:
        return {"proportions": read_class_shares(proportions, _classes_of(client, release, proportions), every=False)}
    except ValueError as error:
        raise CliError(f"--proportions cannot be read: {error}.", Exit.USAGE) from None


def _classes_of(client: Client, release: Release, proportions: str) -> list[str]:
    """Return the names of the classes of a release; those that the proportions name where its dataset is not ours to
    read, for another department shares it: the service compares them.

    Raises:
        CliError: The dataset is not ours, and the proportions name no classes.
    """
    try:
        return client.dataset(release.dataset_id).classes
    except (AuthError, NotFoundError):
        named = [pair.partition("=")[0].strip() for pair in proportions.split(",") if "=" in pair]
        if not named:
            raise CliError(
                "Name the classes: --proportions NAME=NUMBER,... (the privacy card has them).", Exit.USAGE
            ) from None
        return named
