"""Every command on a page is one that the command line takes: no unknown option, and none missing."""

import html
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from obscura.client.datasets import require_statements
from service import dashboard
from tests.commands import command_of

TEMPLATES = sorted((Path(dashboard.__file__).parent / "templates").glob("*.html"))


def parse(line: str) -> dict[str, Any]:
    """Parse a command as the terminal does, without running it, and return its parameters.

    Raises:
        AssertionError, click.UsageError: There is no such command, or it refuses an argument.
        PackingError: It pushes private images without stating how many there are at most.
    """
    command, words = command_of(shlex.split(line)[1:])
    context = command.make_context(line, words)
    if line.startswith("obscura datasets push"):
        bounds = context.params["at_most"], context.params["subjects_at_most"]
        require_statements(*bounds, private=not context.params["public"], by_subject=False)
        assert context.params["public"] != (context.params["account"] is not None)
    return dict(context.params)


def in_source(template: str) -> list[str]:
    """The commands that a template writes, with a stand-in for each value that is filled in."""
    literals = [text.encode().decode("unicode_escape") for text in re.findall(r'"(obscura [^"]*)"', template)]
    blocks = re.findall(r"<pre[^>]*><code>(obscura [^<]*)</code>", template)
    lines = "\n".join(literals + blocks).splitlines()
    return [re.sub(r"\{\{.*?\}\}|%[sd]", "1", line) for line in lines if line.startswith("obscura ")]


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_the_commands_of_a_template_are_parsed(template):
    for line in in_source(template.read_text("utf-8")):
        if "push" in line and "--account" not in line:
            line += " --account patients"  # the dataset's own page
        parse(line)


def copied(text: str) -> list[str]:
    """The lines of a page's blocks of code that call `obscura`."""
    blocks = re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", text, re.DOTALL)
    return [line for block in blocks for line in html.unescape(block).splitlines() if line.startswith("obscura ")]


def test_the_commands_of_rendered_pages_are_parsed(site, stock):
    admin = site.signed_in("admin")
    wishes = ["recipe=datalens&options=teachers+%3D+300", "vary=epsilon&values=0.1,0.2&name=two+words"]
    pages = [*stock.pages, *(f"/train?dataset={stock.dataset}&epsilon=0.4&{wish}" for wish in wishes)]
    lines = [line for page in pages for client in (admin, site.client()) for line in copied(client.get(page).text)]
    assert {line.split()[1] for line in lines} >= {"accounts", "datasets", "train", "sweep", "download", "sample"}
    for line in set(lines):
        parse(line)


def test_the_first_steps_are_commands_that_run(make_site):
    lines = copied(make_site(dashboard_public=True).client().get("/").text)
    assert [line.split()[1] for line in lines] == ["accounts", "datasets", "train"]
    assert [parse(line)["at_most"] for line in lines if "push" in line] == [2000]


@pytest.mark.parametrize(
    "line",
    [
        "obscura datasets push images/ --account patients --size 64",
        "obscura datasets push images/ --at-most 2000",
        "obscura accounts create patients --epsilon 3 --unit record",
        "obscura train images --recipe moments --wait",
        "obscura train images --epsilon 1 --no-such-option",
        "obscura no-such-command",
    ],
)
def test_a_command_that_the_command_line_refuses_is_found(line):
    with pytest.raises(Exception):  # noqa: B017, PT011  of the parser, or of what is stated about private images
        parse(line)
