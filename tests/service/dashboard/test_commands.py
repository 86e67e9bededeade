"""What pages are made of: commands that the command line takes, and colours that can be told apart."""

import html
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import service.dashboard
from obscura.client.datasets import require_statements
from service import dashboard
from tests.commands import command_of

TEMPLATES = sorted((Path(dashboard.__file__).parent / "templates").glob("*.html"))


def parse(line: str) -> dict[str, Any]:
    """Parse a command as the terminal does, without running it; raises where it refuses, or pushes without a bound."""
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


STYLE = Path(service.dashboard.__file__).parent / "static" / "dashboard.css"


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_meet_wcag_aa_in_both_schemes(scheme):
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part)) for part in STYLE.read_text().split("@media")[:2]
    )
    colours = light | (dark if scheme == "dark" else {})
    text = [(ink, ground) for ink in ("ink", "soft", "accent") for ground in ("paper", "raised", "wash")]
    text += [("accent-ink", "accent"), *((name, f"{name}-wash") for name in ("good", "bad", "busy", "warn"))]
    for ink, ground in text:
        assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    shapes = [("edge", "paper"), ("edge", "raised"), ("focus", "paper"), ("focus", "raised"), ("spent", "left-base")]
    shapes += [("spent", "raised"), ("held-mark", "held-base"), ("left-mark", "left-base")]
    for shape, ground in shapes:
        minimum = 2.0 if shape == "left-mark" else 3.0  # the dots are texture; the bar's edge and text carry "left"
        assert contrast(colours[shape], colours[ground]) >= minimum, (shape, ground)
