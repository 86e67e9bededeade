"""Everything that is printed goes through one console: text of a server neither moves the cursor nor hides."""

import io
import re
from collections.abc import Callable
from typing import Any

import pytest

from obscura.cli import console
from obscura.cli.console import Output
from obscura.client import ApiError, JobFailed
from obscura.client.progress import JobStatus, TerminalConsole, job_progress
from obscura.wire.job_schemas import EventRecord, ProgressFacts
from obscura.wire.wording import visible

HOSTILE = {
    "clears the screen": "\x1b[2J\x1b[H",
    "sets the title": "\x1b]0;title\x07",
    "a link": "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "C1": "\x9b2J",
    "a carriage return": "safe\rerror",
    "a backspace": "a\x08b",
    "right to left": "\u202egpj.exe\u202c",
    "isolates": "\u2066a\u2069\u200f",
    "no width": "ad\u200bmin\u200d\ufeff\u2060",
    "a filler": "\u3164\u115f\u2800",
    "line separators": "a\u2028b\u2029c\x85d",
    "tags": "\U000e0041",
    "a soft hyphen": "ad\u00admin",
}
MARKUP = "[red]x[/red] [link=https://evil.example]y[/link] :smile: [/] \\["


def shows(write: Callable[[Output], object], monkeypatch: pytest.MonkeyPatch, *, as_json: bool = False) -> str:
    """What a terminal gets, without the colours and lines of our own."""
    file = io.StringIO()
    options = {"file": file, "force_terminal": True, "width": 200, "color_system": None}
    monkeypatch.setattr(console, "TerminalConsole", lambda **_: TerminalConsole(**options))
    write(Output(as_json))
    written = file.getvalue()
    return written if "\x1b[2J" in written else re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written)


def running(**facts: Any) -> EventRecord:
    unknown = dict.fromkeys(EventRecord.model_fields)
    return EventRecord.model_construct(**unknown | {"state": "running", "progress": ProgressFacts(**facts)})


def progress(output: Output, text: str) -> None:
    with job_progress(output.err, text) as on_event:
        on_event(running(stage=text, step=1, steps=2, eta_seconds=90))


WRITES: dict[str, Callable[[Output, str], object]] = {
    "a table": lambda output, text: output.rows([{"name": text, "id": text}], ("name", "id"), text),
    "a record": lambda output, text: output.record({text: text, "list": [text], "dict": {text: text}}, text),
    "an error": lambda output, text: output.failure(ApiError("x", 409, text, {}, [])),
    "a failed job": lambda output, text: output.failure(JobFailed("job_a", "failed", "x", text)),
    "a notice": lambda output, text: output.notice(text),
    "a result": lambda output, text: output.text(text),
    "progress": progress,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_control_and_hidden_characters_are_escaped(write, text, monkeypatch):
    shown = shows(lambda output: write(output, text), monkeypatch)
    hidden = {char for char in text if visible(char) != char}
    assert hidden
    if write is progress:
        hidden -= {"\r"}  # by which the line is drawn again
    assert not hidden & set(shown), ascii(shown)
    assert visible(text).split()[0] in shown


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_markup_and_emoji_codes_are_text(write, monkeypatch):
    assert MARKUP in shows(lambda output: write(output, MARKUP), monkeypatch)


def test_a_terminal_shows_json_in_ascii(monkeypatch):
    shown = shows(lambda output: output.record({"a": "\u202e\x1b\x9b"}, "a"), monkeypatch, as_json=True)
    assert shown.isascii()
    assert "\\u202e\\u001b\\u009b" in shown


def test_an_error_of_a_server_is_one_line(monkeypatch):
    error = ApiError("x", 409, "a\nerror: b", {}, [])
    assert len(shows(lambda output: output.failure(error), monkeypatch).splitlines()) == 1


def test_readable_text_stays_as_it_is():
    for text in ("Größe 3 × 4, ε 1.2", "患者", "مرضى", "a b", "🙂", "naïve"):
        assert visible(text) == text


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"eta_seconds": 150}, "about 3 min left"),
        ({"eta_seconds": 150, "silent_minutes": 5}, "about 3 min left, no sign of life for 5 minutes"),
        ({"silent_minutes": 1}, "no sign of life for 1 minute"),
        ({}, ""),
    ],
)
def test_the_time_left_and_a_silence_are_told(facts, said):
    status = JobStatus()
    status.report(running(**facts))
    assert str(status) == said


def test_an_estimate_moves_between_reports():
    now = 100.0
    status = JobStatus(lambda: now)
    assert str(status) == ""
    status.report(running(eta_seconds=300))
    assert str(status) == "about 5 min left"
    now += 90
    status.report(running(eta_seconds=300))  # repeated, as the service does
    assert str(status) == "about 3 min 30 s left"
    status.report(running(eta_seconds=240))
    assert str(status) == "about 4 min left"
    now += 240
    assert str(status) == "almost done"
    now += 60
    assert str(status) == "almost done"


def test_ids_tell_namesakes_apart_in_a_list(monkeypatch):
    def write(output: Output) -> None:
        output.names = lambda _: {"ds_a": "scans", "ds_b": "scans", "ds_c": "faces"}
        output.rows([{"dataset_id": each} for each in ("ds_a", "ds_b", "ds_c")], ("dataset_id", "id"), "jobs")

    lines = [line.split() for line in shows(write, monkeypatch).splitlines()]
    assert lines[-3:] == [["scans", "ds_a", "-"], ["scans", "ds_b", "-"], ["faces", "-"]]
