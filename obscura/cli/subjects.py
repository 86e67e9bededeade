"""`obscura subjects`: who withdraws from an account."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from obscura.cli.connection import Json, Yes, connected, resolve_account
from obscura.cli.console import CliError, Exit
from obscura.preparing.errors import some
from obscura.preparing.subjects import read_ids, require_plain_ids
from obscura.wire.subjects import SubjectId

subjects = typer.Typer(no_args_is_help=True, help="People whose images are recognised in several datasets.")


@subjects.callback()
def of_subjects() -> None:
    """People whose images are recognised in several datasets."""


@subjects.command("withdraw")
def withdraw(
    context: typer.Context,
    account: Annotated[str, typer.Option(help="Name or id of the account that they withdraw from.")],
    subjects_key: Annotated[
        Path, typer.Option("--subjects-key", help="The file with the secret under which everything was pushed.")
    ],
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Subject ids, as they were pushed.")
    ] = None,
    ids_from: Annotated[
        Path | None,
        typer.Option("--ids-from", help="A file with one id on each line, or a table of subjects; - for stdin."),
    ] = None,
    join_subjects: Annotated[bool, typer.Option("--join-subjects", help="If it was pushed with that.")] = False,
    cancel_jobs: Annotated[
        bool, typer.Option("--cancel-jobs", help="Cancel the jobs that need the data; what they charged stays spent.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Destroy the images of subjects forever, in all datasets of an account that recognise them. No budget returns.

    Ids stay on this machine. The answer does not reveal whether a subject was there, so check the spelling of each id.
    """
    with connected(context, as_json) as (client, output):
        heading, named = read_ids(ids_from) if ids_from is not None else ("", dict[SubjectId, str]())
        for private_id in ids or ():
            named.setdefault(private_id, "")
        if not named:
            raise CliError("Name the subjects who withdraw, or a file of their ids with --ids-from.", Exit.USAGE)
        require_plain_ids(named, join=join_subjects, withdrawal=True)
        if heading:
            output.notice(f"The first line of {ids_from} is a heading, {heading!r}, and not an id.")
        found = resolve_account(client, account)
        if not yes:
            shown = some([repr(each) for each in named], len(named))
            output.notice(f"This destroys forever all images of {len(named)} subjects in account {account}: {shown}.")
            typer.confirm("Destroy them?", abort=True, err=True)
        done = client.withdraw_subjects(
            found, list(named), subjects_key=subjects_key, join_subjects=join_subjects, cancel_jobs=cancel_jobs
        )
        output.record(done, "withdrawal")
        if done.waiting:
            output.notice("The datasets are written anew when trainings have stopped: obscura datasets list")
        for dataset_id in done.not_recognised:
            output.notice(f"Nobody is recognised in dataset {dataset_id}: delete it, and push it again without them.")
