"""Output of the command line: results on stdout (tables or JSON), messages on stderr, and exit codes."""

from __future__ import annotations

import enum
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from textwrap import wrap
from typing import Any

import typer
from pydantic import BaseModel
from rich import box
from rich.table import Table
from rich.text import Text

from obscura import errors
from obscura.cli.fields import COLUMNS, Names, next_step, show_field
from obscura.client.progress import TerminalConsole
from obscura.client.transport import is_here
from obscura.wire.wording import visible

LISTED = ("account", "dataset", "job", "release", "sweep")  # nouns with a list command
UNBOUNDED = 10_000  # characters; outside a terminal, tables show every column
CELL_COLUMNS = 90  # widest cell of a list; an introduction, which people compare, is 89 wide
PROSE_COLUMNS = 80  # widest line of a record, unless a word is longer
FIRST_COMMANDS = {  # the command that makes the first item of a list
    "accounts": "accounts create NAME --epsilon 1 --delta 1e-5 --unit record",
    "datasets": "datasets push FOLDER --account ACCOUNT --at-most 2000",
    "jobs": "train DATASET --epsilon 1",
    "releases": "train DATASET --epsilon 1",
    "sweeps": "sweep DATASET --epsilon 1 --grid NAME=VALUE,VALUE",
    "evaluations": "evaluate RELEASE --on DATASET",
    "webhooks": "webhooks create URL",
}


class Exit(enum.IntEnum):
    OK = 0
    OTHER = 1
    USAGE = 2
    BUDGET = 3
    AUTH = 4
    JOB_FAILED = 5
    INTERRUPTED = 130


EXITS: Mapping[type[Exception], Exit] = {
    errors.BudgetError: Exit.BUDGET,
    errors.AuthError: Exit.AUTH,
    errors.JobFailed: Exit.JOB_FAILED,
    **dict.fromkeys((errors.NotFoundError, errors.NoSuchName, errors.PackingError, errors.RequestError), Exit.USAGE),
}


class CliError(Exception):
    def __init__(self, message: str, code: Exit = Exit.OTHER) -> None:
        super().__init__(message)
        self.code = code


class Output:
    """Writes results to stdout and notices to stderr. With `as_json`, the result is one JSON document, no table."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.names: Callable[[Sequence[dict[str, Any]]], Names] = lambda _records: {}  # a connection sets it
        terminal = sys.stdout.isatty()
        self._out = TerminalConsole(soft_wrap=True, width=None if terminal else UNBOUNDED)
        self.err = TerminalConsole(stderr=True, soft_wrap=True)

    def notice(self, text: str, style: str = "") -> None:
        self.err.print(visible(text, lines=True), style=style)

    def record(self, record: BaseModel | dict[str, Any], title: str) -> None:
        """Show the fields of a record that `obscura.cli.fields` names for `title`, or all, and the next command.

        Empty fields are omitted. JSON has every field.
        """
        values = record.model_dump(mode="json") if isinstance(record, BaseModel) else record
        if self.as_json:
            self._json(values)
            return
        names, following = self.names([values]), next_step(title, values)
        columns = [column for column in COLUMNS.get(title, tuple(values)) if column not in ("name", "id")]
        shown = [(visible(label), show_field(path, values, names, whole=True)) for label, path in map(_headed, columns)]
        fields = [(label, field) for label, field in shown if field.plain not in ("", "-")]
        heading = Text().append(visible(str(values.get("name") or title)), "bold")
        self._out.print(heading.append(f"  {visible(str(values.get('id', '')))}".rstrip(), "dim"))
        indent = max((len(label) for label, _ in fields), default=0) + 4
        for label, value in fields:
            width = max(min(self._out.width, PROSE_COLUMNS) - indent, 20)
            wrapped = [part for line in value.plain.split("\n") for part in wrap(line, width, break_long_words=False)]
            for number, line in enumerate([value] if len(wrapped) == 1 else map(Text, wrapped)):
                self._out.print(Text.assemble((f"  {'' if number else label}".ljust(indent), "dim"), line))
        if following:
            self.notice(following)

    def rows(self, records: Sequence[BaseModel | dict[str, Any]], columns: Sequence[str], title: str) -> None:
        """Show a list, one line per record. Columns that do not fit the terminal are omitted, and a notice names them.

        A column is a path such as `balance.left_epsilon`, optionally with a title: `left=balance.left_epsilon`. Long
        cells are shortened.
        """
        values = [each.model_dump(mode="json") if isinstance(each, BaseModel) else each for each in records]
        if self.as_json:
            self._json(values)
            return
        if not values:
            first = FIRST_COMMANDS.get(title)
            self.notice(f"There are no {title} yet." + (f" To create one: obscura {first}" if first else ""))
            return
        named, names = [_headed(column) for column in columns], self.names(values)
        shown = len(named)
        table = _table(title, named, values, names)
        unbounded = self._out.options.update_width(UNBOUNDED)
        while shown > 2 and self._out.measure(table, options=unbounded).maximum > self._out.width:
            shown -= 1
            table = _table(title, named[:shown], values, names)
        self._out.print(table)
        if shown < len(named):
            left_out = ", ".join(heading for heading, _ in named[shown:])
            self.notice(f"Columns that do not fit this terminal: {left_out}. --json shows everything.")

    def beside(self, records: Sequence[dict[str, Any]], columns: Sequence[str], title: str) -> None:
        """Show records side by side: a column each, and a line for each of `columns` (see `rows`) that has a value."""
        if self.as_json:
            self._json(records)
            return
        names = self.names(records)
        table = _table(title, [("", "")] * (len(records) + 1), [], names)
        table.show_header = False
        for column in table.columns[1:]:
            column.no_wrap, column.overflow = False, "fold"
        for heading, path in map(_headed, columns):
            cells = [show_field(path, each, names) for each in records]
            if any(cell.plain != "-" for cell in cells):
                table.add_row(Text(visible(heading), "dim"), *cells)
        self._out.print(table, soft_wrap=False)

    def text(self, text: str) -> None:
        if not self.as_json:
            self._out.print(visible(text, lines=True))

    def _json(self, value: Any) -> None:
        self._out.print_json(json.dumps(value), ensure_ascii=True) if self._out.is_terminal else typer.echo(
            json.dumps(value, indent=2)
        )

    def failure(self, error: Exception) -> Exit:
        code = next((code for kind, code in EXITS.items() if isinstance(error, kind)), Exit.OTHER)
        if isinstance(error, CliError):
            code = error.code
        elif isinstance(error, errors.RequestError) and error.status == 409:
            code = Exit.OTHER
        said = str(error.args[0] if isinstance(error, errors.LocalError) else error)  # with flags, not Python arguments
        if self.as_json:
            document: dict[str, Any] = {"message": said, "exit_code": int(code)}
            if isinstance(error, errors.ApiError):
                document |= {"code": error.code, "status": error.status, **error.numbers}
            if isinstance(error, errors.ChoiceNeeded):
                document |= {"flags": list(error.flags)}
            if isinstance(error, errors.JobFailed):
                document |= {"code": error.code, "job_id": error.job_id, "state": error.state}
            self._json({"error": document})
        following = next_command(error)
        said = f"{said.rstrip('.')}. {following}" if following else said
        remote = isinstance(error, errors.ApiError | errors.JobFailed)
        line = visible(said, lines=not remote)  # a server cannot inject extra lines
        self.err.print(Text.assemble(("error:", "bold red"), " ", line))
        return code


def next_command(error: Exception) -> str:
    """Return a sentence with the command to run next, or "" if the error's own message contains it."""
    if isinstance(error, errors.ConnectionFailed):
        if is_here(error.url):
            return "To start a service here: obscura up"
        return f"Is the address right? To log in again: obscura login {error.url}"
    if isinstance(error, errors.AuthError) and error.status == 401:
        return "To save another key: obscura login"
    if isinstance(error, errors.BudgetError):
        return "To see the remaining budget: obscura budget show"
    if isinstance(error, errors.NotFoundError):
        noun = next((noun for noun in LISTED if noun in error.detail.lower()), None)
        return f"To list them: obscura {noun}s list" if noun else ""
    if isinstance(error, errors.ApiError) and "parameter" in error.numbers:
        return "To see recipes and their options: obscura recipes"
    return ""


@contextmanager
def reporting(as_json: bool) -> Iterator[Output]:
    """Convert errors in the block to a message and an exit code."""
    output = Output(as_json)
    try:
        yield output
    except (errors.ObscuraClientError, CliError) as error:
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


def _headed(column: str) -> tuple[str, str]:
    heading, _, path = column.rpartition("=")
    return heading or re.sub("_(id|at|nano)$", "", path.rpartition(".")[2]).replace("_", " "), path


def _table(title: str, columns: Sequence[tuple[str, str]], values: Sequence[dict[str, Any]], names: Names) -> Table:
    table = Table(
        title=Text(visible(title), "bold"), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False
    )
    for heading, _ in columns:
        table.add_column(visible(heading), no_wrap=True)
    for value in values:
        cells = [show_field(path, value, names) for _, path in columns]
        for cell in cells:
            cell.truncate(CELL_COLUMNS, overflow="ellipsis")
        table.add_row(*cells)
    return table
