"""`obscura datasets`: declare what is public about a folder or file, and push it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Unpack

import typer

from obscura.cli.connection import Dataset, Json, Yes, add_list, connected, resolve_account, resolve_dataset
from obscura.cli.console import CliError, Exit
from obscura.cli.jobs import confirm, somebody_there
from obscura.cli.push_options import with_push_options
from obscura.client.progress import preparation_progress
from obscura.preparing import PushOptions

datasets = typer.Typer(no_args_is_help=True, help="Declared, uploaded sets of labelled images.")
COLUMNS = (
    "name", "id", "visibility", "state", "account_id", "records=records_declared", "subjects=subjects_declared",
    "height", "width", "channels",
)  # fmt: skip


@datasets.command("push")
@with_push_options
def push(
    context: typer.Context,
    path: Annotated[
        Path,
        typer.Argument(help="A folder of class folders, an archive of one, or an .npz, IDX or Parquet file."),
    ],
    name: Annotated[str | None, typer.Option(help="For people; the folder's or file's name by default.")] = None,
    account: Annotated[str | None, typer.Option(help="Account (name or id) of a private dataset.")] = None,
    public: Annotated[bool, typer.Option("--public", help="Public data: costs nothing and protects nothing.")] = False,
    at_most: Annotated[
        int | None, typer.Option("--at-most", min=1, help="Public upper bound on the records; private data need one.")
    ] = None,
    subjects_at_most: Annotated[
        int | None,
        typer.Option("--subjects-at-most", min=1, help="The same on the subjects, where the account protects those."),
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
    **push_options: Unpack[PushOptions],
) -> None:
    """Prepare images, declare a dataset and send them. File names stay here; declared facts become public.

    Images are made to fit on this machine: stood upright, brought to one size and to grey or colour, laid on
    white. What is declared is what you state, or fixed: it is not read off the images, so that no single one
    shows in it. Nothing is written to the disk.

    At a terminal you see what was found and what becomes public, and are asked before it is declared. --yes answers
    that alone: where the meaning of a folder would have to be guessed, nothing is declared, and the error names the
    flag that decides.

    For an account whose unit is the subject, the files say whose each record is: one folder for each subject inside
    the class folders, a column 'subject' of the table, an array 'subjects' in an .npz, or a third IDX file
    (train-subjects-idx1-int).
    """
    with connected(context, as_json) as (client, output):
        if public == (account is not None):
            raise CliError(
                "Give --account for private data (obscura accounts list), or --public; not both.", Exit.USAGE
            )
        account_id = resolve_account(client, account) if account else None
        with preparation_progress(output.err) as watch:

            def agree() -> None:
                if somebody_there() and not yes:
                    with watch.quiet():
                        confirm("Declare this, for ever, and send the images?", "Nothing was declared or sent.")

            dataset = client.datasets.push(
                path,
                account_id=account_id,
                public=public,
                name=name,
                at_most=at_most,
                subjects_at_most=subjects_at_most,
                say=output.notice,
                agree=agree,
                on_image=watch.on_image,
                on_bytes=watch.on_bytes,
                **push_options,
            )
        if dataset.joined:
            output.notice(
                f"Joined: images of it were known, so its trainings are paid by account {dataset.account_id}."
            )
        output.record(dataset, "dataset")


add_list(datasets, "list", "List datasets, newest first.", lambda client: client.datasets(), COLUMNS, "datasets")


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
    """Destroy a dataset's images for ever. No budget returns; releases and the account's log stay.

    Where nothing was ever trained on it, what was declared is erased as well, names included. If nothing has ever read
    its account, the images may then be pushed to another one, such as one that protects people.
    """
    with connected(context, as_json) as (client, output):
        found = client.dataset(resolve_dataset(client, dataset))
        if not yes:
            output.notice(f"This destroys the images of {found.name} ({found.id}) for ever and returns no budget.")
            typer.confirm("Delete them?", abort=True, err=True)
        output.record(found.delete(cancel_jobs=cancel_jobs), "dataset")
