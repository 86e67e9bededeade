"""`obscura datasets` and `obscura subjects`: push images, and destroy the images of subjects who withdraw."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from obscura.cli.connection import Dataset, Shown, Yes, add_command, command, with_parameters
from obscura.cli.console import CliError, Exit, Output, confirm
from obscura.cli.fields import COLUMNS
from obscura.client import Client
from obscura.client.progress import preparation_progress
from obscura.errors import some
from obscura.preparing import Choices
from obscura.preparing.subjects import require_plain_ids
from obscura.preparing.tables import read_ids
from obscura.wire.uploads import SubjectId

datasets = typer.Typer(no_args_is_help=True, help="Declared, uploaded sets of labelled images.")
subjects = typer.Typer(no_args_is_help=True, help="People whose images are recognised in several datasets.")
AtMost = Annotated[int | None, typer.Option(min=1, help="Public upper limit on the images; required for private data.")]
SubjectsAtMost = Annotated[int | None, typer.Option(min=1, help="Public upper limit on the protected subjects.")]
Images = Annotated[Path, typer.Argument(help="Class folders, an archive of them, or an .npz, IDX or Parquet file.")]
CancelJobs = Annotated[bool, typer.Option("--cancel-jobs", help="Cancel jobs that need the data. Charges stay spent.")]


def with_push_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Replace the `**push_options` of a command with one flag per option. Omitted flags are not passed on."""

    def called(*args: Any, **values: Any) -> Any:
        absent = {name for name, option in Choices.model_fields.items() if values[name] in (None, option.default)}
        return function(*args, **{name: value for name, value in values.items() if name not in absent})

    parameters = [
        each for each in inspect.signature(function, eval_str=True).parameters.values() if each.kind != each.VAR_KEYWORD
    ]
    for name, option in Choices.model_fields.items():
        allowed = [*option.metadata, option.annotation, *get_args(option.annotation)]
        word = next(each for each in (bool, Path, str, int) if each in allowed)  # typer parses this signature
        words = f"--{name.replace('_', '-')}" + ("/--colour" if name == "grey" else "")
        flag = typer.Option(words, rich_help_panel="Images", help=option.description)
        default = option.default if word is bool else None
        annotation: Any = Annotated[word | None if default is None else word, flag]
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    return with_parameters(called, parameters, function.__doc__)


def in_flags(options: Mapping[str, Any]) -> str:
    """Format options as flags, each preceded by a space."""
    if options.get("grey") is False:
        options = {**options, "grey": None, "colour": True}
    present = [(f"--{name.replace('_', '-')}", value) for name, value in options.items() if value not in (None, False)]
    return "".join(f" {flag}" if value is True else f" {flag} {shlex.quote(str(value))}" for flag, value in present)


@command(datasets, "push", "dataset")
@with_push_options
def push(
    client: Client,
    output: Output,
    path: Images,
    name: Annotated[str | None, typer.Option(help="Name; default: the name of the folder or file.")] = None,
    account: Annotated[str | None, typer.Option(metavar="ACCOUNT", help="Name or id; for private data.")] = None,
    public: Annotated[bool, typer.Option("--public", help="Public data: costs nothing and protects nothing.")] = False,
    at_most: AtMost = None,
    subjects_at_most: SubjectsAtMost = None,
    yes: Yes = False,
    **push_options: Any,
) -> Shown:
    """Prepare images, declare a dataset and upload them. The declaration becomes public; file names do not.

    Images are converted on this machine: turned upright, scaled to one size, converted to grey or colour, and
    put on a white background if transparent. Only values you state, or fixed defaults, become public. Nothing is
    derived from the images, and nothing is written to disk.

    At a terminal you see the findings and the public metadata, and must confirm. --yes skips only that question: if the
    meaning of a folder is unclear, nothing is declared, and the error names the flag that decides.

    If the account protects subjects, the files must contain subject ids. Use a folder per subject in the class folders,
    a table column 'subject', an array 'subjects' in an .npz, or a third IDX file (train-subjects-idx1-int).
    """
    if public == (account is not None):
        raise CliError("Give --account for private data (obscura accounts list), or --public; not both.", Exit.USAGE)
    with preparation_progress(output.err) as watch:

        def agree() -> None:
            if sys.stdin.isatty() and not yes:
                with watch.quiet():
                    confirm("Declare this, forever, and send the images?", "Nothing was declared or sent.")

        dataset = client.datasets.push(
            path,
            account_id=client.accounts.get(account).id if account else None,
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
            f"Some images were already known, so account {dataset.account_id} pays for trainings on this dataset."
        )
    return dataset


add_command(datasets, "list", "datasets", "datasets.list", "List datasets, newest first.", COLUMNS["dataset"][:9])
add_command(datasets, "show", "dataset", "datasets.get", "Show one dataset.", name_or_id=Dataset)


@command(datasets, "delete", "dataset")
def delete_dataset(
    client: Client, output: Output, dataset: Dataset, cancel_jobs: CancelJobs = False, yes: Yes = False
) -> Shown:
    """Destroy a dataset's images forever. Spent budget stays spent; releases and the account's log stay.

    If nothing was ever trained on the dataset, its declaration is erased as well, including names. If no job has ever
    read the account's data, you may then push the images to another account, such as one that protects subjects. Jobs
    that --cancel-jobs cancels publish nothing.
    """
    found = client.datasets.get(dataset)
    if not yes:
        output.notice(f"This destroys the images of {found.name} ({found.id}) forever and returns no budget.")
        typer.confirm("Delete them?", abort=True, err=True)
    return found.delete(cancel_jobs=cancel_jobs)


@command(subjects, "withdraw", "withdrawal")
def withdraw(
    client: Client,
    output: Output,
    account: Annotated[str, typer.Option(help="Name or id of the account to withdraw from.")],
    subjects_key: Annotated[Path, typer.Option(help="File with the secret that was used for all pushes.")],
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Subject ids, as pushed.")] = None,
    ids_from: Annotated[Path | None, typer.Option(help="A file of ids, one per line, or a table; - for stdin.")] = None,
    join_subjects: Annotated[
        bool, typer.Option("--join-subjects", help="Add this if the images were pushed with --join-subjects.")
    ] = False,
    cancel_jobs: CancelJobs = False,
    yes: Yes = False,
) -> None:
    """Destroy the images of subjects forever, in each dataset of the account that recognises subjects.

    Datasets pushed with --subjects-key recognise subjects. Spent budget stays spent. Ids stay on this machine. The
    answer does not reveal whether a subject was found, so check the spelling of each id.
    """
    heading, named = read_ids(ids_from) if ids_from is not None else ("", dict[SubjectId, str]())
    for private_id in ids or ():
        named.setdefault(private_id, "")
    if not named:
        raise CliError("Name the subjects who withdraw, or a file of their ids with --ids-from.", Exit.USAGE)
    require_plain_ids(named, join=join_subjects, withdrawal=True)
    if heading:
        output.notice(f"The first line of {ids_from} was read as a heading, {heading!r}, not as an id.")
    found = client.accounts.get(account)
    if not yes:
        listed = some([repr(each) for each in named], len(named))
        output.notice(f"This destroys forever all images of {len(named)} subjects in account {account}: {listed}.")
        typer.confirm("Destroy them?", abort=True, err=True)
    done = found.withdraw_subjects(
        list(named), subjects_key=subjects_key, join_subjects=join_subjects, cancel_jobs=cancel_jobs
    )
    output.record(done, "withdrawal")
    if done.waiting:
        output.notice("The datasets will be rewritten once trainings have stopped. To check: obscura datasets list")
    for dataset_id in done.not_recognised:
        output.notice(
            f"Dataset {dataset_id} does not recognise subjects: delete it, and push it again without these people."
        )
