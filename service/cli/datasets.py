"""`obscura datasets`: declare what is public about a folder or file, and push it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from service.cli.connection import Dataset, Json, Yes, add_list, connected, resolve_account, resolve_dataset
from service.cli.console import CliError, Exit, byte_progress
from service.cli.packing import Package, pack
from service.client import Client

datasets = typer.Typer(no_args_is_help=True, help="Declared, uploaded sets of labelled images.")
COLUMNS = (
    "id", "name", "visibility", "state", "account_id", "records=records_declared", "subjects=subjects_declared",
    "height", "width", "channels",
)  # fmt: skip


@datasets.command("push")
def push(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help="A folder of class folders, an .npz, a .zip, or IDX files.")],
    name: Annotated[str | None, typer.Option(help="For people; the folder's or file's name by default.")] = None,
    account: Annotated[str | None, typer.Option(help="Account (name or id) of a private dataset.")] = None,
    public: Annotated[bool, typer.Option("--public", help="Public data: costs nothing and protects nothing.")] = False,
    classes: Annotated[str | None, typer.Option(help="Class names in label order, separated by commas.")] = None,
    records: Annotated[
        int | None, typer.Option(help="Public upper bound on the records; the count, rounded up, by default.")
    ] = None,
    subjects: Annotated[
        int | None,
        typer.Option(
            help="Public upper bound on the subjects, where the account protects subjects; rounded up likewise."
        ),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Which IDX pair of the folder, e.g. train or t10k.")] = None,
    as_json: Json = False,
) -> None:
    """Declare a dataset and stream its content. File names stay here; declared facts become public.

    For an account whose unit is the subject, the files say whose each record is: one folder for each subject inside
    the class folders, an array 'subjects' in an .npz, or a third IDX file (train-subjects-idx1-int).
    """
    with connected(context, as_json) as (client, output):
        if public == (account is not None):
            raise CliError("Give --account for private data, or --public; not both.", Exit.USAGE)
        account_id = resolve_account(client, account) if account else None
        by_subject = account_id is not None and client.account(account_id).unit == "subject"
        if subjects is not None and not by_subject:
            raise CliError("--subjects is for accounts whose unit is the subject.", Exit.USAGE)
        package = pack(path, split=split, subjects=by_subject)
        names = classes.split(",") if classes else list(package.classes)
        declared = records if records is not None else rounded_up(package.records)
        owners = None
        if package.subjects is not None:
            owners = subjects if subjects is not None else min(rounded_up(package.subjects), declared)
        output.notice(
            f"Declaring, and thereby making public: classes {', '.join(names)}; images {package.height} x "
            f"{package.width} x {package.channels} (height, width, channels); at most {declared} records"
            + (f" of at most {owners} subjects." if owners is not None else ".")
        )
        dataset = client.declare_dataset(
            name=name or path.resolve().name,
            visibility="public" if public else "private",
            account_id=account_id,
            classes=names,
            height=package.height,
            width=package.width,
            channels=package.channels,
            records_declared=declared,
            subjects_declared=owners,
        )
        with byte_progress(output.err, "uploading") as on_bytes:
            dataset = dataset.push(counted(package, on_bytes), format=package.format)
        if dataset.joined:
            output.notice(
                f"Joined: images of it were known, so its trainings are paid by account {dataset.account_id}."
            )
        output.record(dataset, "dataset")


add_list(datasets, "list", "List datasets, newest first.", Client.datasets, COLUMNS, "datasets")


@datasets.command("show")
def show_dataset(
    context: typer.Context,
    dataset: Dataset,
    as_json: Json = False,
) -> None:
    """Show one dataset."""
    with connected(context, as_json) as (client, output):
        output.record(client.dataset(resolve_dataset(client, dataset)), "dataset")


@datasets.command("delete")
def delete_dataset(
    context: typer.Context,
    dataset: Dataset,
    cancel_jobs: Annotated[
        bool,
        typer.Option(
            "--cancel-jobs",
            help="Cancel the jobs that need it; what trainings charged stays spent, and nothing of it is published.",
        ),
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Destroy a dataset's images for ever. No budget returns; releases and the account's log stay."""
    with connected(context, as_json) as (client, output):
        found = client.dataset(resolve_dataset(client, dataset))
        if not yes:
            output.notice(f"This destroys the images of {found.name} ({found.id}) for ever and returns no budget.")
            typer.confirm("Delete them?", abort=True, err=True)
        output.record(found.delete(cancel_jobs=cancel_jobs), "dataset")


def rounded_up(count: int) -> int:
    """Round a count up to two significant digits, so that a default declaration does not give the exact number away."""
    unit: int = 10 ** max(math.floor(math.log10(max(count, 1))) - 1, 0)
    return math.ceil(count / unit) * unit


def counted(package: Package, on_bytes: Callable[[int, int], None]) -> Iterator[bytes]:
    """Stream a package and report how many bytes have gone."""
    sent = 0
    for chunk in package.open():
        yield chunk
        sent += len(chunk)
        on_bytes(sent, 0)
