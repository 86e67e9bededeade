"""Progress of jobs and uploads: bars in a terminal or a notebook, a line now and then elsewhere."""

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
from obscura.wire.wording import show_duration, show_epsilon, show_silence, visible

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
    """Return the charged part of a job's cost."""
    charged, planned = (show_epsilon(each, up=True) for each in (facts.charged_epsilon, facts.planned_epsilon))
    return f"epsilon {charged} of {planned}"


class Countdown:
    """Counts down between the coarse estimates of the service. clock: monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reported: float | None = None
        self._ends_at = 0.0

    def report(self, seconds: float | None) -> None:
        """Accept a new estimate; a repeated one keeps counting down."""
        if seconds is not None and seconds != self._reported:
            self._ends_at = self._clock() + seconds
        self._reported = seconds

    def __str__(self) -> str:
        if self._reported is None:
            return ""
        left = self._ends_at - self._clock()
        if left <= 0:
            return "almost done"
        minutes, seconds = divmod(math.ceil(left), 60)
        parts = [show_duration(timedelta(minutes=minutes))] if minutes else []
        parts += [f"{seconds} s"] if seconds and minutes < 60 else []
        return f"about {' '.join(parts)} left"


def describe(event: EventRecord, countdown: Countdown) -> str:
    """Return the charged budget and the time left: `epsilon 0.412 of 1.0 charged, about 2 min 30 s left`."""
    facts, parts = event.progress, []
    if facts.planned_nano:
        parts.append(f"{show_cost(facts)} charged")
    if event.state == "running" and str(countdown):
        parts.append(str(countdown))
    if facts.silent_minutes:
        parts.append(show_silence(facts.silent_minutes))
    return ", ".join(parts)


@contextmanager
def job_progress(console: Console, label: str) -> Iterator[Callable[[EventRecord], None]]:
    """Yield a callback for the events of a job: a bar in a terminal, elsewhere a line now and then."""
    countdown, printed_at, printed_stage = Countdown(), float("-inf"), ""
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
            stage = (facts.stage or "starting") if running else event.state
            steps = f"{facts.step}/{facts.steps}" if running and facts.steps else ""
            countdown.report(facts.eta_seconds)
            if bar is not None and task is not None:
                described = visible(f"{label} {stage}")
                bar.update(task, description=described, completed=facts.step or 0, total=facts.steps or None)
                bar.update(task, steps=steps, facts=_Facts(event, countdown))
            elif stage != printed_stage or time.monotonic() - printed_at >= LINE_SECONDS:
                printed_at, printed_stage = time.monotonic(), stage
                tail = describe(event, countdown)
                line = f"{label} {stage}" + (f" {steps}" if steps else "") + (f": {tail}" if tail else "")
                console.print(visible(line))

        yield on_event


class Preparing(NamedTuple):
    """Callbacks for the progress of preparing and sending images."""

    on_image: Callable[[int], None]
    on_bytes: Callable[[int, int], None]
    quiet: Callable[[], AbstractContextManager[None]]


@contextmanager
def preparation_progress(console: Console) -> Iterator[Preparing]:
    """Yield callbacks for images surveyed, bytes sent, and pausing the display for a question."""
    if not console.is_terminal:
        yield Preparing(lambda _count: None, lambda _done, _total: None, nullcontext)
        return
    with console.status("looking at the images") as status:

        def on_image(count: int) -> None:
            if count % 100 == 0:
                status.update(f"looking at the images: {count:,}")

        @contextmanager
        def quiet() -> Iterator[None]:
            status.stop()
            yield
            status.start()

        yield Preparing(on_image, lambda done, _total: status.update(f"uploading: {done / 1e6:,.1f} MB"), quiet)


class _Facts(NamedTuple):
    """Facts of an event, formatted anew whenever the bar is drawn."""

    event: EventRecord
    countdown: Countdown

    def __str__(self) -> str:
        return describe(*self)
