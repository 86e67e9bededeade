"""Output of the command line: results on stdout (tables or JSON), messages on stderr, and exit codes."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from pydantic import BaseModel
from rich.table import Table
from rich.text import Text

from obscura.client import (
    ApiError,
    AuthError,
    BudgetError,
    ChoiceNeeded,
    ConnectionFailed,
    JobFailed,
    NoSuchName,
    NotFoundError,
    ObscuraClientError,
    PackingError,
    RequestError,
)
from obscura.client.progress import TerminalConsole
from obscura.client.transport import is_here
from obscura.wire.wording import show_number, visible

LISTED = ("account", "dataset", "job", "release", "sweep")  # nouns with a list command
UNBOUNDED = 10_000  # characters; tables outside a terminal are never truncated


class Exit(enum.IntEnum):
    """Exit codes by class of failure."""

    OK = 0
    OTHER = 1
    USAGE = 2
    BUDGET = 3
    AUTH = 4
    JOB_FAILED = 5
    INTERRUPTED = 130


EXITS: Mapping[type[Exception], Exit] = {
    BudgetError: Exit.BUDGET,
    AuthError: Exit.AUTH,
    JobFailed: Exit.JOB_FAILED,
    NotFoundError: Exit.USAGE,
    NoSuchName: Exit.USAGE,
    PackingError: Exit.USAGE,
    RequestError: Exit.USAGE,
}


class CliError(Exception):
    """A failure in the command line itself."""

    def __init__(self, message: str, code: Exit = Exit.OTHER) -> None:
        super().__init__(message)
        self.code = code


class Output:
    """Writes results to stdout and notices to stderr. With `as_json`, the result is one JSON document, no table."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        terminal = sys.stdout.isatty()
        self._out = TerminalConsole(soft_wrap=True, width=None if terminal else UNBOUNDED)
        self.err = TerminalConsole(stderr=True, soft_wrap=True)

    def notice(self, text: str) -> None:
        """Print a message to stderr."""
        self.err.print(visible(text, lines=True))

    def record(self, record: BaseModel | dict[str, Any], title: str) -> None:
        values = record.model_dump(mode="json") if isinstance(record, BaseModel) else record
        if self.as_json:
            self._json(values)
            return
        table = Table(title=Text(visible(title)), show_header=False, title_justify="left")
        for name, value in values.items():
            table.add_row(visible(name), visible(_cell(value)))
        self._out.print(table)

    def rows(self, records: Sequence[BaseModel | dict[str, Any]], columns: Sequence[str], title: str) -> None:
        """Show a list, one line per record. Columns that do not fit the terminal are omitted, and a notice names them.

        A column is a path such as `balance.left_epsilon`, optionally with a title: `left=balance.left_epsilon`.
        """
        values = [each.model_dump(mode="json") if isinstance(each, BaseModel) else each for each in records]
        if self.as_json:
            self._json(values)
            return
        headed = [column.rpartition("=") for column in columns]
        named = [(heading or path.rpartition(".")[2].replace("_", " "), path) for heading, _, path in headed]
        shown = len(named)
        table = _table(title, named, values)
        unbounded = self._out.options.update_width(UNBOUNDED)
        while shown > 2 and self._out.measure(table, options=unbounded).maximum > self._out.width:
            shown -= 1
            table = _table(title, named[:shown], values)
        self._out.print(table)
        if shown < len(named):
            left_out = ", ".join(heading for heading, _ in named[shown:])
            self.notice(f"Columns that do not fit this terminal: {left_out}. --json shows everything.")

    def text(self, text: str) -> None:
        """Print a line of the result, except in JSON mode."""
        if not self.as_json:
            self._out.print(visible(text, lines=True))

    def _json(self, value: Any) -> None:
        self._out.print_json(json.dumps(value), ensure_ascii=True) if self._out.is_terminal else typer.echo(
            json.dumps(value, indent=2)
        )

    def failure(self, error: Exception) -> Exit:
        """Report an error and return its exit code."""
        code = next((code for kind, code in EXITS.items() if isinstance(error, kind)), Exit.OTHER)
        if isinstance(error, CliError):
            code = error.code
        elif isinstance(error, RequestError) and error.status == 409:
            code = Exit.OTHER
        if self.as_json:
            document: dict[str, Any] = {"message": str(error), "exit_code": int(code)}
            if isinstance(error, ApiError):
                document |= {"code": error.code, "status": error.status, **error.numbers}
            if isinstance(error, ChoiceNeeded):
                document |= {"flags": list(error.flags)}
            if isinstance(error, JobFailed):
                document |= {"code": error.code, "job_id": error.job_id, "state": error.state}
            self._json({"error": document})
        said, following = str(error), next_command(error)
        said = f"{said.rstrip('.')}. {following}" if following else said
        line = visible(said, lines=not isinstance(error, ApiError | JobFailed))  # a server cannot inject extra lines
        self.err.print(Text.assemble(("error:", "bold red"), " ", line))
        return code


def next_command(error: Exception) -> str:
    """Return a sentence with the command to run next, or "" if the error's own message contains it."""
    if isinstance(error, ConnectionFailed):
        if is_here(error.url):
            return "To start a service here: obscura up"
        return f"Is the address right? To log in again: obscura login {error.url}"
    if isinstance(error, AuthError) and error.status == 401:
        return "To save another key: obscura login"
    if isinstance(error, BudgetError):
        return "To see the remaining budget: obscura budget show"
    if isinstance(error, NotFoundError):
        noun = next((noun for noun in LISTED if noun in error.detail.lower()), None)
        return f"To list them: obscura {noun}s list" if noun else ""
    if isinstance(error, ApiError) and "parameter" in error.numbers:
        return "To see recipes and their options: obscura recipes"
    return ""


@contextmanager
def reporting(as_json: bool) -> Iterator[Output]:
    """Convert errors in the block to a message and an exit code."""
    output = Output(as_json)
    try:
        yield output
    except (ObscuraClientError, CliError) as error:
        raise typer.Exit(int(output.failure(error))) from error
    except KeyboardInterrupt:
        output.notice("Interrupted.")
        raise typer.Exit(int(Exit.INTERRUPTED)) from None


def confirm(question: str, otherwise: str = "Nothing was cancelled.", flag: str = "--yes") -> None:
    """Ask at the terminal, and raise CliError unless the answer is yes."""
    if not sys.stdin.isatty():
        raise CliError(f"{question} There is no terminal to answer in: repeat the command with {flag}.", Exit.USAGE)
    if not typer.confirm(visible(question, lines=True), err=True):
        raise CliError(otherwise)


def _table(title: str, columns: Sequence[tuple[str, str]], values: Sequence[dict[str, Any]]) -> Table:
    table = Table(title=Text(visible(title)), title_justify="left")
    for heading, _ in columns:
        table.add_column(visible(heading), no_wrap=True)
    for value in values:
        cells: list[Any] = []
        for _, path in columns:
            cell: Any = value
            for part in path.split("."):
                cell = cell.get(part) if isinstance(cell, dict) else None
            cells.append(cell)
        table.add_row(*(visible(_cell(cell)) for cell in cells))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{name}={_cell(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(_cell(item) for item in value)
    return show_number(value) if isinstance(value, bool | float) else str(value)  # seeds are copied
