"""What the command line writes: results on stdout (tables, or JSON), everything else on stderr; exit codes by class."""

from __future__ import annotations

import enum
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from privacy.wording import show_duration, show_epsilon, show_number
from service.api.job_schemas import EventRecord, ProgressFacts
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


LINE_SECONDS = 15.0


def show_cost(facts: ProgressFacts) -> str:
    """What a job has charged of its price."""
    charged, planned = (show_epsilon(each, up=True) for each in (facts.charged_epsilon, facts.planned_epsilon))
    return f"epsilon {charged} of {planned}"


def describe(event: EventRecord) -> str:
    """Charged budget and time left, for example `epsilon 0.412 of 1.0 charged, about 2 min 30 s left`."""
    facts, parts = event.progress, []
    if facts.planned_nano:
        parts.append(f"{show_cost(facts)} charged")
    if facts.eta_seconds and event.state == "running":
        parts.append(f"about {show_duration(timedelta(seconds=round(facts.eta_seconds)))} left")
    return ", ".join(parts)


@contextmanager
def job_progress(console: Console, label: str) -> Iterator[Callable[[EventRecord], None]]:
    """Yield what to call with each event of a job."""
    if not console.is_terminal:
        yield _lines(console, label)
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[steps]}"),
        TextColumn("{task.fields[facts]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(label, total=None, steps="", facts="")

        def on_event(event: EventRecord) -> None:
            facts = event.progress
            stage = _stage(event)
            bar.update(
                task,
                description=f"{escape(label)} {escape(stage)}",
                completed=facts.step or 0,
                total=facts.steps or None,
                steps=_steps(event),
                facts=describe(event),
            )

        yield on_event


@contextmanager
def byte_progress(console: Console, label: str, total_bytes: int | None = None) -> Iterator[Callable[[int, int], None]]:
    """Yield what to call with (bytes done, bytes in all) of a transfer."""
    if not console.is_terminal:
        yield lambda _done, _total: None
        return
    columns = (TextColumn("[bold]{task.description}"), BarColumn(bar_width=30), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(label, total=total_bytes)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


@contextmanager
def preparation_progress(console: Console) -> Iterator[tuple[Callable[[int], None], Callable[[int, int], None]]]:
    """Yield what to call with the number of pictures looked at, and then with the bytes sent."""
    if not console.is_terminal:
        yield (lambda _count: None), (lambda _done, _total: None)
        return
    with console.status("looking at the pictures") as status:

        def on_picture(count: int) -> None:
            if count % 100 == 0:
                status.update(f"looking at the pictures: {count:,}")

        yield on_picture, lambda done, _total: status.update(f"uploading: {done / 1e6:,.1f} MB")


def _lines(console: Console, label: str) -> Callable[[EventRecord], None]:
    said_at, said_stage = float("-inf"), ""

    def on_event(event: EventRecord) -> None:
        nonlocal said_at, said_stage
        stage = _stage(event)
        if stage == said_stage and time.monotonic() - said_at < LINE_SECONDS:
            return
        said_at, said_stage = time.monotonic(), stage
        steps, tail = _steps(event), describe(event)
        line = f"{label} {stage}" + (f" {steps}" if steps else "") + (f": {tail}" if tail else "")
        console.print(escape(line), highlight=False)

    return on_event


def _stage(event: EventRecord) -> str:
    return event.state if event.state != "running" else event.progress.stage or "starting"


def _steps(event: EventRecord) -> str:
    facts = event.progress
    return f"{facts.step}/{facts.steps}" if event.state == "running" and facts.steps else ""
