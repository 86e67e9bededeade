"""`obscura releases`, `obscura evaluate`, `obscura sample`, `obscura download`."""

from __future__ import annotations

import json
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from obscura.cli.connection import APPROVE, Key, Reason, Shown, Wait, add_command, command, shown
from obscura.cli.console import CliError, Exit, Output
from obscura.cli.fields import COLUMNS
from obscura.cli.jobs import follow
from obscura.client import AuthError, Client, NotFoundError, Release, Sample
from obscura.client.contents import combine, require_room
from obscura.client.datasets import Datasets
from obscura.wire.formats import PACKINGS, SampleFormat
from obscura.wire.texts import AS_STATED, read_class_fractions

releases = typer.Typer(no_args_is_help=True, help="Published generators; sampling them is free.")
LISTED = COLUMNS["release"][:11]
SHARE_COLUMNS = ("with=project_name", "project_id", "created_at", "ended_at", "id")
NamedRelease = Annotated[str, typer.Argument(metavar="RELEASE", help="Name or id.")]
Out = Annotated[Path, typer.Option(help="File to write.")]
Count = Annotated[int, typer.Option("--count", "-n", min=1, help="Synthetic images to generate.")]
Seed = Annotated[int, typer.Option(min=0, help="A public number: the same request gives the same bytes.")]
Format = Annotated[SampleFormat, typer.Option("--format", "-f", help="How the images are packed.")]
Classes = Annotated[str | None, typer.Option(help="Class names, separated by commas; default: all.")]
On = Annotated[str, typer.Option(metavar="DATASET", help="Public dataset (name or id) to measure on."), Datasets]
Proportions = Annotated[
    str | None,
    typer.Option(
        metavar="CLASS=NUMBER,...",
        help="Ratio of the classes, instead of --classes: normal=2000,sick=20; or numbers in label order; or the "
        "word stated, for the --class-fractions of the training. Default: equal numbers.",
    ),
]

add_command(releases, "list", "releases", "releases.list", "List releases, newest first.", LISTED)
add_command(
    releases, "show", "release", "releases.get", "Show one release and its newest evaluation.", release=NamedRelease
)
add_command(
    releases, "evaluations", "evaluations", "releases.evaluations",
    "List evaluations.", COLUMNS["evaluation"], release=NamedRelease,
)  # fmt: skip
add_command(
    releases, "card", "privacy card", "releases.card",
    "Show the privacy card of a release: guarantee, assumptions and limits. --json shows the whole card.",
    release=NamedRelease,
)  # fmt: skip


@shown("comparison")
def compare(
    client: Client,
    output: Output,
    names: Annotated[list[str], typer.Argument(metavar="RELEASE...", help="Names or ids of two or more releases.")],
) -> None:
    """Compare releases side by side: first results, then the options that differ."""
    if len(names) < 2:
        raise CliError("Name two or more releases. To list them: obscura releases list", Exit.USAGE)
    compared = []
    for release in map(client.releases.get, names):
        options: dict[str, Any] = {}
        with suppress(AuthError, NotFoundError):  # another project's job
            options = client.jobs.get(release.job_id).options
        compared.append(release.model_dump(mode="json") | {"options": options})
    chosen = [each["options"] for each in compared]
    named = dict.fromkeys(name for each in chosen for name in each)
    differing = [name for name in named if any(each.get(name) != chosen[0].get(name) for each in chosen)]
    if not output.as_json:
        for each in compared:
            each["options"] = dict.fromkeys(differing, "default") | each["options"]
    output.beside(compared, (*LISTED, *(f"{name}=options.{name}" for name in differing)), "comparison")


@command(releases, "receipt", "receipt")
def save_receipt(
    client: Client,
    release: NamedRelease,
    out: Annotated[Path | None, typer.Option(help="File to write; default: stdout.")] = None,
) -> Shown:
    """Save the signed receipt of a release. Anyone with the public key can verify this proof of payment."""
    found = client.releases.get(release)
    if out is not None:
        return {"path": str(found.save_receipt(out))}
    typer.echo(json.dumps(found.receipt(), indent=1, sort_keys=True))
    return None


@command(releases, "report", "report")
def save_report(client: Client, release: NamedRelease, out: Out = Path("report.html")) -> Shown:
    """Save the report of a release, an HTML page."""
    return {"path": str(client.releases.get(release).save_report(out))}


@command(releases, "weights", "weights")
def save_weights(
    client: Client,
    release: NamedRelease,
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("weights"),
) -> Shown:
    """Save the trained artefact. A generator comes with a model card and a program that samples with torch alone."""
    saved = client.releases.get(release).save_weights(out)
    return {"path": str(out), "files": [path.name for path in saved]}


@command(releases, "grid", "grid")
def save_grid(client: Client, release: NamedRelease, out: Out = Path("grid.png")) -> Shown:
    """Save a grid of synthetic images, one row for each class."""
    return {"path": str(client.releases.get(release).save_grid(out))}


add_command(
    releases, "share", "request", "releases.share",
    "Request that another project can see a release. Another owner, or an installation admin, must approve.",
    hint=APPROVE, release=NamedRelease,
    project_id=Annotated[str, typer.Option("--with", metavar="PROJECT", help="Id of the other project.")],
    reason=Reason,
)  # fmt: skip
add_command(
    releases, "publish", "request", "releases.share",
    "Request that all projects, present and future, can see a release. Another owner, or an admin, must approve.",
    hint=APPROVE, release=NamedRelease, reason=Reason,
)  # fmt: skip


@command(releases, "unshare", "share")
def unshare_release(
    client: Client,
    release: NamedRelease,
    other: Annotated[str | None, typer.Option("--with", metavar="PROJECT", help="Id; default: all.")] = None,
) -> Shown:
    """Stop sharing a release with one project, or with all, at once.

    Copies that others have generated or downloaded remain with them.
    """
    return client.releases.get(release).unshare(other)


add_command(
    releases, "shares", "shares", "releases.shares",
    "List current and former shares of a release, newest first.", SHARE_COLUMNS, release=NamedRelease,
)  # fmt: skip


@shown("evaluation")
def evaluate(
    client: Client,
    output: Output,
    release: NamedRelease,
    on: On,
    samples: Annotated[int | None, typer.Option(min=1, help="Synthetic images to train on; generators only.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Public seed of samples and classifiers.")] = None,
    wait: Wait = False,
    key: Key = None,
) -> Shown:
    """Evaluate a release on a public dataset, for free. Adds a section to the report; the release does not change."""
    evaluation = client.releases.get(release).evaluate(on, samples=samples, seed=seed, idempotency_key=key)
    if evaluation.samples is not None:
        output.notice(
            f"The evaluation trains classifiers on {evaluation.samples:,} generated images. It takes minutes."
        )
    if not wait:
        output.notice(f"To see the time left: obscura jobs watch {evaluation.job_id}")
        return evaluation
    follow(output, evaluation.job())
    return evaluation.refresh()


@shown("sample")
def sample(
    client: Client,
    output: Output,
    release: NamedRelease,
    count: Count,
    seed: Seed = 0,
    format: Format = "imagefolder",
    classes: Classes = None,
    proportions: Proportions = None,
    wait: Wait = False,
) -> Shown:
    """Generate synthetic images from a release, for free."""
    found = client.releases.get(release)
    drawn = found.sample(count=count, seed=seed, format=format, **_which(client, found, classes, proportions))
    return _finished(output, drawn) if wait else drawn


@shown("sample")
def download(
    client: Client,
    output: Output,
    sources: Annotated[
        list[str], typer.Argument(metavar="SAMPLE|RELEASE...", help="smp_...; or rel_..., to generate a sample.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="File to write; for several samples, a new folder or a .zip.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Images to generate from each release.")
    ] = None,
    seed: Seed = 0,
    format: Format = "imagefolder",
    classes: Classes = None,
    proportions: Proportions = None,
    unpack: Annotated[bool, typer.Option("--unpack", help="Unpack into a new folder, --out.")] = False,
) -> Shown:
    """Download synthetic images, resuming a partial download, and verify the SHA-256.

    Several samples or releases are merged into one set of class folders, in a new folder or archive (--out NAME.zip).
    """
    several = len(sources) > 1
    if unpack or several:
        if out is None:
            raise CliError("State the folder for the images: --out.", Exit.USAGE)
        if several and format != "imagefolder":
            raise CliError("Several samples are combined as image folders: leave --format out.", Exit.USAGE)
        if len(set(sources)) < len(sources):
            raise CliError("The same sample or release is named twice: name each once.", Exit.USAGE)
        require_room(out)
    if count is None and any(source.startswith("rel_") for source in sources):
        raise CliError("State how many images to generate: --count.", Exit.USAGE)
    drawn = []
    for source in sources:
        if count is not None and source.startswith("rel_"):
            release = client.releases.get(source)
            which = _which(client, release, classes, proportions)
            drawn.append(release.sample(count=count, seed=seed, format=format, **which))
        else:
            drawn.append(client.samples.get(source))
    drawn = [_finished(output, each) for each in drawn]
    if several and out is not None:
        drawn = [_finished(output, each.packed("imagefolder")) for each in drawn]
        with tempfile.TemporaryDirectory(prefix="obscura-") as scratch:
            archives = {
                _plain(each.id): (_download(output, each, Path(scratch) / f"{number}.zip"), each.count)
                for number, each in enumerate(drawn)
            }
            combine(archives, out)
        images = sum(each.count for each in drawn)
        return {"path": str(out), "sample_ids": [each.id for each in drawn], "images": images}
    (sample,) = drawn
    if unpack and out is not None:
        target = sample.to_parquet(out) if sample.format == "parquet" else sample.to_imagefolder(out)
    else:
        target = out or Path(f"{_plain(sample.id)}.{PACKINGS[sample.format].suffix}")
        _download(output, sample, target)
    return {"path": str(target), **sample.model_dump(mode="json")}


def _plain(sample_id: str) -> str:
    return re.sub("[^a-z0-9_]", "", sample_id)


def _download(output: Output, sample: Sample, target: Path) -> Path:
    parts = (TextColumn("downloading", style="bold"), BarColumn(bar_width=30), DownloadColumn(), TransferSpeedColumn())
    with Progress(*parts, console=output.err, disable=not output.err.is_terminal) as bar:
        task = bar.add_task("", total=sample.bytes)
        return sample.download(target, lambda done, total: bar.update(task, completed=done, total=total or None))


def _finished(output: Output, drawn: Sample) -> Sample:
    if drawn.state != "succeeded":
        follow(output, drawn.job())
        return drawn.refresh()
    return drawn


def _which(client: Client, release: Release, classes: str | None, proportions: str | None) -> dict[str, Any]:
    if proportions is None:
        return {"classes": classes.split(",") if classes else None}
    if classes is not None:
        raise CliError("Give --classes or --proportions, not both: --proportions names the classes, too.", Exit.USAGE)
    if proportions == AS_STATED:
        return {"proportions": AS_STATED}
    try:
        names = client.datasets.get(release.dataset_id).classes
    except (AuthError, NotFoundError):  # the dataset belongs to another project: the service validates the names
        names = [pair.partition("=")[0].strip() for pair in proportions.split(",") if "=" in pair]
        if not names:
            raise CliError(
                "Name the classes: --proportions NAME=NUMBER,... (the privacy card lists them).", Exit.USAGE
            ) from None
    try:
        return {"proportions": read_class_fractions(proportions, names, every=False)}
    except ValueError as error:
        raise CliError(f"--proportions cannot be read: {error}.", Exit.USAGE) from None
