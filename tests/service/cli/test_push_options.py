"""The list of push options defines the options of the commands and is complete on its page."""

import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from obscura.cli.app import app
from obscura.cli.datasets import in_flags
from obscura.preparing import Choices

PAGE = Path(__file__).parents[3] / "docs" / "choices.md"
OPTIONS = {
    "classes": "old cat,dog",
    "size": "64x48",
    "labels": Path("my labels.csv"),
    "grey": True,
    "split": "test",
    "skip_broken": False,
}


@pytest.mark.parametrize("path", [("datasets", "push"), ("quickstart",)], ids=" ".join)
def test_each_option_is_on_the_command_line_and_is_parsed_as_it_is_formatted(path):
    command = get_command(app)
    for name in path:
        command = command.commands[name]
    assert set(Choices.model_fields) <= {parameter.name for parameter in command.params}
    context = command.make_context("push", ["images", *shlex.split(in_flags(OPTIONS))])
    read = {name: context.params[name] for name in Choices.model_fields if context.params[name] not in (None, False)}
    assert read == {name: value for name, value in OPTIONS.items() if value is not False}


@pytest.mark.parametrize("option", Choices.model_fields)
def test_the_page_of_choices_shows_each(option):
    assert f"`--{option.replace('_', '-')}" in PAGE.read_text(encoding="utf-8")
