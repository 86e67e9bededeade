"""`obscura datasets`: declare what is public about a folder or file, and push it."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from obscura.cli.connection import Dataset, Json, Yes, add_list, connected, resolve_account, resolve_dataset
from obscura.cli.console import CliError, Exit
from obscura.cli.jobs import confirm, is_interactive
from obscura.client.progress import preparation_progress
from obscura.preparing import Choices

datasets = typer.Typer(no_args_is_help=True, help="Declared, uploaded sets of labelled images.")
COLUMNS = (
    "name", "id", "visibility", "state", "account_id", "records=records_declared", "subjects=subjects_declared",
    "height", "width", "channels",
)  # fmt: skip


def with_push_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the `**push_options` of a command with flags; only the given ones are passed on."""

    def called(*args: Any, **values: Any) -> None:
        absent = {name for name in Choices.model_fields if values[name] in (None, False)}
        command(*args, **{name: value for name, value in values.items() if name not in absent})

    own = [
        each for each in inspect.signature(command, eval_str=True).parameters.values() if each.kind != each.VAR_KEYWORD
    ]
    parameters = [*own, *_parameters()]
    called.__doc__ = command.__doc__
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def in_flags(options: Mapping[str, Any]) -> str:
    """Format options as flags, each with a space before it."""
    present = [(_flag(name), value) for name, value in options.items() if value not in (None, False)]
    return "".join(f" {flag}" if value is True else f" {flag} {shlex.quote(str(value))}" for flag, value in present)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parameters() -> Iterator[inspect.Parameter]:
    for name, field in Choices.model_fields.items():
        allowed = [*field.metadata, field.annotation, *get_args(field.annotation)]
        word = next(each for each in (bool, Path, str, int) if each in allowed)  # how the command line is parsed
        option = typer.Option(_flag(name), help=field.description)
        annotation: Any = Annotated[word if word is bool else word | None, option]
        default = False if word is bool else None
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


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
    **push_options: Any,
) -> None:
    """Prepare images, declare a dataset and upload them. File names stay here; declared facts become public.

    Images are converted on this machine: turned upright, scaled to one size, converted to grey or colour, and
    transparent ones laid on white. Only values you state, or fixed defaults, become public. Nothing is derived from the
    images, and nothing is written to disk.

    At a terminal you see the findings and what becomes public, and must confirm. --yes skips only that question: if the
    meaning of a folder is unclear, nothing is declared, and the error names the flag that decides.

    If the account protects subjects, the files must contain subject ids: one folder for each subject inside the class
    folders, a column 'subject' of the table, an array 'subjects' in an .npz, or a third IDX file
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
                if is_interactive() and not yes:
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
    """Destroy a dataset's images forever. No budget returns; releases and the account's log stay.

    If nothing was ever trained on it, the declaration is erased as well, including names. If no job has ever read its
    account, the images may then be pushed to another account, such as one that protects people.
    """
    with connected(context, as_json) as (client, output):
        found = client.dataset(resolve_dataset(client, dataset))
        if not yes:
            output.notice(f"This destroys the images of {found.name} ({found.id}) for ever and returns no budget.")
            typer.confirm("Delete them?", abort=True, err=True)
        output.record(found.delete(cancel_jobs=cancel_jobs), "dataset")
