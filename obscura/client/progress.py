"""What is shown of work that goes on: bars in a terminal or a notebook, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.segment import Segment

from obscura.wire.job_schemas import EventRecord, ProgressFacts
from obscura.wire.wording import show_duration, show_epsilon, show_silence, visible

LINE_SECONDS = 15.0


class TerminalConsole(Console):
    """The console of everything that is printed. It prints text as it is, without markup, emoji codes or highlighting.

    Control, bidirectional and zero-width characters are escaped, because text may come from a server or a file.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False} | options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Render into segments, whose text is escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text, lines=True))


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
    if facts.silent_minutes:
        parts.append(show_silence(facts.silent_minutes))
    return ", ".join(parts)


@contextmanager
def job_progress(console: Console, label: str) -> Iterator[Callable[[EventRecord], None]]:
    """Yield what to call with each event of a job."""
    if not console.is_terminal:
        yield _lines(console, label)
        return
    columns = (
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[steps]}", markup=False),
        TextColumn("{task.fields[facts]}", markup=False),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(label, total=None, steps="", facts="")

        def on_event(event: EventRecord) -> None:
            facts = event.progress
            stage = _stage(event)
            bar.update(
                task,
                description=visible(f"{label} {stage}"),
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
    columns = (TextColumn("{task.description}", style="bold", markup=False), BarColumn(bar_width=30), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(label, total=total_bytes)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


class Preparing(NamedTuple):
    """How pictures are prepared and sent, for whoever watches."""

    on_picture: Callable[[int], None]
    on_bytes: Callable[[int, int], None]
    quiet: Callable[[], AbstractContextManager[None]]


@contextmanager
def preparation_progress(console: Console) -> Iterator[Preparing]:
    """Yield what to call with the number of pictures looked at, with the bytes sent, and while somebody is asked."""
    if not console.is_terminal:
        yield Preparing(lambda _count: None, lambda _done, _total: None, nullcontext)
        return
    with console.status("looking at the pictures") as status:

        def on_picture(count: int) -> None:
            if count % 100 == 0:
                status.update(f"looking at the pictures: {count:,}")

        @contextmanager
        def quiet() -> Iterator[None]:
            status.stop()
            yield
            status.start()

        yield Preparing(on_picture, lambda done, _total: status.update(f"uploading: {done / 1e6:,.1f} MB"), quiet)


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
        console.print(visible(line))

    return on_event


def _stage(event: EventRecord) -> str:
    return event.state if event.state != "running" else event.progress.stage or "starting"


def _steps(event: EventRecord) -> str:
    facts = event.progress
    return f"{facts.step}/{facts.steps}" if event.state == "running" and facts.steps else ""
