"""What is told once of how pictures are prepared reaches the command line and its page."""

import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from obscura.cli.app import app
from obscura.cli.wishes import in_flags
from obscura.preparing import Wishes

PAGE = Path(__file__).parents[3] / "docs" / "choices.md"
WISHES: Wishes = {
    "classes": "old cat,dog",
    "size": "64x48",
    "labels": Path("my labels.csv"),
    "grey": True,
    "split": "test",
    "skip_broken": False,
}


@pytest.mark.parametrize("path", [("datasets", "push"), ("quickstart",)], ids=" ".join)
def test_each_wish_is_a_flag_and_what_is_written_in_flags_is_read_again(path):
    command = get_command(app)
    for name in path:
        command = command.commands[name]
    assert set(Wishes.__annotations__) <= {parameter.name for parameter in command.params}
    context = command.make_context("push", ["pictures", *shlex.split(in_flags(WISHES))])
    read = {name: context.params[name] for name in Wishes.__annotations__ if context.params[name] not in (None, False)}
    assert read == {name: value for name, value in WISHES.items() if value is not False}


@pytest.mark.parametrize("wish", Wishes.__annotations__)
def test_the_page_of_choices_shows_each(wish):
    assert f"`--{wish.replace('_', '-')}" in PAGE.read_text(encoding="utf-8")
