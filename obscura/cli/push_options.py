"""Command line options for `obscura.preparing.PushOptions`."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from obscura.preparing import PushOptions


def with_push_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the `**push_options` of a command by command line options; it is called with those that were given."""

    def called(*args: Any, **values: Any) -> None:
        absent = {name for name in PushOptions.__annotations__ if values[name] in (None, False)}
        command(*args, **{name: value for name, value in values.items() if name not in absent})

    own = [
        each for each in inspect.signature(command, eval_str=True).parameters.values() if each.kind != each.VAR_KEYWORD
    ]
    parameters = [*own, *_parameters()]
    called.__doc__ = command.__doc__
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def in_flags(options: PushOptions) -> str:
    """Format options as on the command line, each with a space before it."""
    present = [(_flag(name), value) for name, value in options.items() if value not in (None, False)]
    return "".join(f" {flag}" if value is True else f" {flag} {shlex.quote(str(value))}" for flag, value in present)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parameters() -> Iterator[inspect.Parameter]:
    for name, hint in get_type_hints(PushOptions, include_extras=True).items():
        kind, help_text = get_args(hint)
        allowed = get_args(kind) or (kind,)
        word = next(each for each in (bool, Path, str, int) if each in allowed)  # how the command line is parsed
        annotation: Any = Annotated[word if word is bool else word | None, typer.Option(_flag(name), help=help_text)]
        default = False if word is bool else None
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
