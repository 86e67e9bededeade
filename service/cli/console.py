"""What the command line writes: results on stdout (tables, or JSON), everything else on stderr; exit codes by class."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from privacy.wording import show_number
from service.client import (
    ApiError,
    AuthError,
    BudgetError,
    ChoiceNeeded,
    JobFailed,
    NotFoundError,
    ObscuraClientError,
    PackingError,
    RequestError,
)

WIDTH = 120  # of tables that do not go to a terminal


class Exit(enum.IntEnum):
    """Exit codes, by class of failure."""

    OK = 0
    OTHER = 1
    USAGE = 2
    BUDGET = 3
    AUTH = 4
    JOB_FAILED = 5
    INTERRUPTED = 130


class CliError(Exception):
    """A failure on this side of the connection."""

    def __init__(self, message: str, code: Exit = Exit.OTHER) -> None:
        super().__init__(message)
        self.code = code


class Output:
    """Writes results and notices.

    Args:
        as_json: Results as one JSON document on stdout instead of tables.
    """

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        terminal = sys.stdout.isatty()
        self._out = Console(soft_wrap=True, width=None if terminal else WIDTH)
        self.err = Console(stderr=True, soft_wrap=True)

    def notice(self, text: str) -> None:
        """Tell a person something; never on stdout."""
        self.err.print(escape(text), highlight=False)

    def record(self, record: BaseModel | dict[str, Any], title: str) -> None:
        """Show one result."""
        values = record.model_dump(mode="json") if isinstance(record, BaseModel) else record
        if self.as_json:
            self._json(values)
            return
        table = Table(title=escape(title), show_header=False, title_justify="left")
        for name, value in values.items():
            table.add_row(escape(name), escape(_cell(value)))
        self._out.print(table)

    def rows(self, records: Sequence[BaseModel], columns: Sequence[str], title: str) -> None:
        """Show a list; a column is a path such as `balance.left_epsilon`, with another title as `left=balance...`."""
        values = [record.model_dump(mode="json") for record in records]
        if self.as_json:
            self._json(values)
            return
        table = Table(title=escape(title), title_justify="left")
        paths = []
        for column in columns:
            heading, _, path = column.rpartition("=")
            paths.append(path)
            heading = heading or path.rpartition(".")[2].replace("_", " ")
            table.add_column(heading, no_wrap=path == "id", overflow="fold")
        for value in values:
            table.add_row(*(escape(_cell(_at(value, path))) for path in paths))
        self._out.print(table)

    def text(self, text: str) -> None:
        """Show a line of result; not in JSON mode."""
        if not self.as_json:
            self._out.print(escape(text), highlight=False)

    def _json(self, value: Any) -> None:
        self._out.print_json(json.dumps(value)) if self._out.is_terminal else typer.echo(json.dumps(value, indent=2))

    def failure(self, error: Exception) -> Exit:
        """Report an error and return the exit code of its class."""
        code = exit_code(error)
        if self.as_json:
            document: dict[str, Any] = {"message": str(error), "exit_code": int(code)}
            if isinstance(error, ApiError):
                document |= {"code": error.code, "status": error.status, **error.numbers}
            if isinstance(error, ChoiceNeeded):
                document |= {"flags": list(error.flags)}
            if isinstance(error, JobFailed):
                document |= {"code": error.code, "job_id": error.job_id, "state": error.state}
            self._json({"error": document})
        self.err.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        return code


def exit_code(error: Exception) -> Exit:
    """The exit code of an error's class."""
    if isinstance(error, CliError):
        return error.code
    if isinstance(error, BudgetError):
        return Exit.BUDGET
    if isinstance(error, AuthError):
        return Exit.AUTH
    if isinstance(error, JobFailed):
        return Exit.JOB_FAILED
    if isinstance(error, NotFoundError | PackingError):
        return Exit.USAGE
    if isinstance(error, RequestError) and error.status != 409:
        return Exit.USAGE
    return Exit.OTHER


@contextmanager
def reporting(as_json: bool) -> Iterator[Output]:
    """Turn errors of the block into a message and the exit code of their class."""
    output = Output(as_json)
    try:
        yield output
    except (ObscuraClientError, CliError) as error:
        raise typer.Exit(int(output.failure(error))) from error
    except KeyboardInterrupt:
        output.notice("Interrupted.")
        raise typer.Exit(int(Exit.INTERRUPTED)) from None


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{name}={_cell(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(_cell(item) for item in value)
    return show_number(value) if isinstance(value, bool | float) else str(value)  # an integer may be copied, as a seed
