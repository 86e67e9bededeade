"""Flags for how pictures are prepared: one for each of `obscura.preparing.Wishes`, with its type and help."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from obscura.preparing import Wishes


def with_wishes(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command whose last parameter is `**wishes` a flag for each; it is called with those that were given."""

    def called(*args: Any, **given: Any) -> None:
        unsaid = {name for name in Wishes.__annotations__ if given[name] in (None, False)}
        command(*args, **{name: value for name, value in given.items() if name not in unsaid})

    own = [
        each for each in inspect.signature(command, eval_str=True).parameters.values() if each.kind != each.VAR_KEYWORD
    ]
    parameters = [*own, *_flags()]
    called.__doc__ = command.__doc__
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def in_flags(wishes: Wishes) -> str:
    """Write wishes as they are given on the command line, each with a space before it."""
    said = [(_flag(name), value) for name, value in wishes.items() if value not in (None, False)]
    return "".join(f" {flag}" if value is True else f" {flag} {shlex.quote(str(value))}" for flag, value in said)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _flags() -> Iterator[inspect.Parameter]:
    for name, hint in get_type_hints(Wishes, include_extras=True).items():
        kind, said = get_args(hint)
        option = typer.Option(_flag(name), help=said)
        usual = False if kind is bool else None
        annotation: Any = Annotated[_written_as(kind), option]
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=usual, annotation=annotation)


def _written_as(kind: Any) -> Any:
    """What a word of the command line is read as: a path where there may be one, else text, a number or a flag."""
    allowed = get_args(kind) or (kind,)
    return next(each if each is bool else each | None for each in (bool, Path, str, int, float) if each in allowed)
