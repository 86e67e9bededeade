"""Progress of jobs and uploads: bars in a terminal or a notebook, occasional lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment

from obscura.wire.job_schemas import EventRecord, ProgressFacts
from obscura.wire.wording import show_duration, show_epsilon, show_silence, show_words, visible

LINE_SECONDS = 15.0


class TerminalConsole(Console):
    """Console for all output. Prints text literally, without markup, emoji codes or highlighting.

    Escapes control, bidirectional and zero-width characters, because text may come from a server or a file.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False} | options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text, lines=True))


def show_cost(facts: ProgressFacts) -> str:
    """Format the charged and the planned cost of a job: "ε 0.412 of 1.0"."""
    charged, planned = (show_epsilon(each, up=True) for each in (facts.charged_epsilon, facts.planned_epsilon))
    return f"ε {charged} of {planned}"


class JobStatus:
    """The charged budget and the time left of a job: `ε 0.412 of 1.0 charged, about 2 min 30 s left`.

    The time left counts down between the service's coarse estimates. `clock` returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._event: EventRecord | None = None
        self._ends_at: float | None = None

    def report(self, event: EventRecord) -> None:
        """Update the status from an event. A repeated estimate does not restart the countdown."""
        seconds = event.progress.eta_seconds
        if seconds is None:
            self._ends_at = None
        elif self._event is None or seconds != self._event.progress.eta_seconds:
            self._ends_at = self._clock() + seconds
        self._event = event

    def __str__(self) -> str:
        if self._event is None:
            return ""
        facts, parts = self._event.progress, []
        if facts.planned_nano:
            parts.append(f"{show_cost(facts)} charged")
        if self._event.state == "running" and self._ends_at is not None:
            minutes, seconds = divmod(max(math.ceil(self._ends_at - self._clock()), 0), 60)
            left = [show_duration(timedelta(minutes=minutes))] if minutes else []
            left += [f"{seconds} s"] if seconds and minutes < 60 else []
            parts.append(f"about {' '.join(left)} left" if left else "almost done")
        if facts.silent_minutes:
            parts.append(show_silence(facts.silent_minutes))
        return ", ".join(parts)


@contextmanager
def job_progress(console: Console, label: str) -> Iterator[Callable[[EventRecord], None]]:
    """Yield a callback for the events of a job. Shows a bar in a terminal, and occasional lines elsewhere."""
    status, printed_at, printed_stage = JobStatus(), float("-inf"), ""
    columns = (
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[steps]}", markup=False),
        TextColumn("{task.fields[facts]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) if console.is_terminal else nullcontext() as bar:
        task = None if bar is None else bar.add_task(visible(label), total=None, steps="", facts="")

        def on_event(event: EventRecord) -> None:
            nonlocal printed_at, printed_stage
            facts, running = event.progress, event.state == "running"
            stage = show_words(facts.stage or "starting").lower() if running else event.state
            steps = f"{facts.step:,} of {facts.steps:,}" if running and facts.steps else ""
            status.report(event)
            if bar is not None and task is not None:
                described = visible(f"{label}: {stage}")
                bar.update(task, description=described, completed=facts.step or 0, total=facts.steps or None)
                bar.update(task, steps=steps, facts=status)
            elif stage != printed_stage or time.monotonic() - printed_at >= LINE_SECONDS:
                printed_at, printed_stage = time.monotonic(), stage
                line = f"{label}: {stage}" + (f" {steps}" if steps else "") + (f", {status}" if str(status) else "")
                console.print(visible(line))

        yield on_event


class Preparing(NamedTuple):
    """Callbacks for the progress of preparing and sending images."""

    on_image: Callable[[int], None]
    on_bytes: Callable[[int, int], None]
    quiet: Callable[[], AbstractContextManager[None]]


@contextmanager
def preparation_progress(console: Console) -> Iterator[Preparing]:
    """Yield callbacks that show surveyed images and sent bytes, and pause the display for a question."""
    if not console.is_terminal:
        yield Preparing(lambda _count: None, lambda _done, _total: None, nullcontext)
        return
    with console.status("reading the images") as status:

        def on_image(count: int) -> None:
            if count % 100 == 0:
                status.update(f"reading the images: {count:,}")

        @contextmanager
        def quiet() -> Iterator[None]:
            status.stop()
            yield
            status.start()

        yield Preparing(on_image, lambda done, _total: status.update(f"uploading: {done / 1e6:,.1f} MB"), quiet)
