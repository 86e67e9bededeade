"""What people read: summaries instead of records, names instead of ids, help by panel, and pages in a browser."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from obscura.cli.app import PANELS, app
from obscura.cli.console import Output
from obscura.cli.fields import show_field
from obscura.wire.job_schemas import RECIPE_USUAL
from privacy.plans.registry import RECIPES
from tests.service.cli.conftest import Shell, environment
from tests.together import wait_until

INTERNAL = re.compile(r"_nano|[a-z]+=\S|facts|progress\.|\b(acc|ds)_[a-z2-7]{20}\b")
BUDGET = {"capacity_nano": 100, "spent_nano": 31, "reserved_nano": 30, "left_nano": 39, "limit_epsilon": 3.0}
BUDGET |= dict.fromkeys(("spent_epsilon", "reserved_epsilon", "left_epsilon", "affordable_epsilon"), 1.0)
BUDGET |= {"guaranteed_epsilon": 3.0, "attacker_certainty_max": 0.9}


@pytest.fixture
def browser(tmp_path: Path) -> tuple[Path, str]:
    """A program that is started as a browser, and the file in which it notes what it was given."""
    notes, program = tmp_path / "notes", tmp_path / "browser"
    program.write_text(
        f'#!/bin/sh\necho "$1" > {notes}.new\ncat "${{1#file://}}" >> {notes}.new\nmv {notes}.new {notes}\n'
    )
    program.chmod(0o700)
    return notes, str(program)


def run_alone(shell: Shell, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "obscura.cli", "--data-dir", str(shell.data_dir), *arguments]
    return subprocess.run(command, env=environment(**variables), capture_output=True, text=True, timeout=120)


def test_an_account_is_a_summary_with_a_budget_bar(shell, account):
    shown = shell("accounts", "show", account)
    assert shown.out.startswith(f"{account}  acc_")
    assert re.search(r"budget +░{20} 100% left", shown.out)
    assert re.search(r"left +ε 2\.0\n", shown.out)
    assert not INTERNAL.search(shown.out.partition("\n")[2])
    assert "obscura datasets push FOLDER --account 'people " in shown.err
    assert shell("budget", "show", account).out == shown.out


def test_the_bar_adds_up_and_rounds_spending_up():
    bar = show_field("balance", {"balance": BUDGET}, {})
    assert bar.plain == "█" * 7 + "▒" * 6 + "░" * 7 + " 39% left"
    assert [str(span.style) for span in bar.spans] == ["red", "yellow", "green"]


def test_lists_name_accounts_and_datasets(shell, account, dataset):
    row = next(line for line in shell("datasets", "list").out.splitlines() if dataset in line)
    assert account in row
    assert not INTERNAL.search(row.replace(dataset, ""))
    assert re.search(rf"account +{account}  acc_", shell("datasets", "show", dataset).out)
    plan = shell("plan", dataset, "-e", "1").out
    assert not INTERNAL.search(plan)
    assert re.search(r"left before +ε 2\.0", plan)


def test_shares_of_the_budget_replace_nano_units(shell, account):
    assert re.search(r"1 +\d+ \w+ \d{4}, \d\d:\d\d UTC +open +100% +0% +0%", shell("accounts", "entries", account).out)


def test_an_empty_list_is_a_sentence_with_the_next_command(shell):
    shown = shell("webhooks", "list")
    assert (shown.out, shown.err) == ("", "There are no webhooks yet. To create one: obscura webhooks create URL\n")
    assert shell("webhooks", "list", "--json").json == []


def test_long_cells_are_shortened_and_long_words_of_a_record_are_not(capsys):
    output = Output(as_json=False)
    output.rows([{"name": "n" * 500}], ("name",), "things")
    assert max(map(len, capsys.readouterr().out.splitlines())) == 90
    output.record({"token": "t" * 500, "note": "several words " * 50}, "key")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["token", "t" * 500]
    assert max(map(len, [lines[0], *lines[2:]])) <= 80


def test_a_state_has_a_colour_and_a_finished_job_no_progress():
    facts = {"stage": "warm_start", "step": 2, "steps": 1000}
    assert str(show_field("state", {"state": "failed"}, {}).style) == "red"
    assert show_field("progress", {"state": "running", "progress": facts}, {}).plain == "warm start 2 of 1,000"
    assert show_field("progress", {"state": "succeeded", "progress": facts}, {}).plain == "-"


def test_the_recipe_is_optional_and_the_recommended_one(shell, client, dataset):
    assert next(iter(RECIPES)) == RECIPE_USUAL
    order = {"dataset_id": dataset, "epsilon": 1}
    assert client.transport.request("POST", "/v1/plans", json=order, repeatable=True).json()["recipe"] == RECIPE_USUAL
    assert shell("plan", dataset, "-e", "1", "--json").json["recipe"] == RECIPE_USUAL
    swept = shell("sweep", dataset, "-e", "0.01", "-g", "centre=0.1,0.2", "--json").json
    assert swept["recipe"] == RECIPE_USUAL
    shell("sweeps", "cancel", swept["id"], "--discard", "--yes")


def test_every_command_has_a_panel_and_no_type_of_python_is_shown(shell):
    command = typer.main.get_command(app)
    assert {each.rich_help_panel for each in command.commands.values()} == set(PANELS)  # type: ignore[attr-defined]
    shown = shell("--help").out
    assert [*re.findall(r"─ (\w+) ─", shown)] == ["Options", *PANELS]
    for words in (("quickstart",), ("train",), ("datasets", "push"), ("accounts", "create")):
        assert not re.search(r"<\w+>", shell(*words, "--help").out)
    paragraph = shell("datasets", "push", "--help", COLUMNS="200").out
    assert "converted to grey or colour, and put on a white background" in paragraph, "its lines are joined"


def test_open_shows_a_page_in_the_browser_and_prints_its_address(shell, account, dataset, browser):
    notes, program = browser
    url = (shell.data_dir / "service.url").read_text("ascii").strip()
    for words, page in ((("open", dataset), f"/datasets/{dataset}"), (("open",), "/")):
        opened = run_alone(shell, *words, BROWSER=program)
        assert url + page in opened.stdout, opened.stderr
        wait_until(notes.exists, "the browser was started")
        assert notes.read_text().splitlines()[0] == url + page
        notes.unlink()
    named = run_alone(shell, "open", account, "--json", BROWSER=program)
    assert re.search(rf"{url}/accounts/acc_\w{{20}}", named.stdout)
    assert not notes.exists(), "with --json it opens nothing"
    assert "No account, dataset or release is named" in shell("open", "nobody", code=2).err


def test_up_opens_a_link_that_no_process_has_as_an_argument(warm, tmp_path, browser):
    notes, program = browser
    command = [warm, "-m", "obscura.cli", "--data-dir", str(tmp_path / "data"), "up", "--port", "0", "--open"]
    with subprocess.Popen(
        command, env=environment(BROWSER=program), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_until(notes.exists, "the browser was started", seconds=60)
        finally:
            process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
    argument, page = notes.read_text().split("\n", 1)
    assert argument.startswith("file:///")
    assert re.search(r"url=http://127\.0\.0\.1:\d+/sign-in/[0-9a-f]{64}", page)
    assert "/sign-in/" not in said, "a log has no link"
    assert not os.path.exists(argument.removeprefix("file://"))


@pytest.mark.slow
def test_releases_are_compared_by_results_first_and_then_by_options(shell, dataset):
    small = ("-e", "0.5", "-o", "evaluation_samples=200", "--wait")
    one = shell("train", dataset, *small, "-o", "components=4", "--json").json["release_id"]
    shown = shell("train", dataset, *small, "-o", "components=5")
    assert re.search(r"^ +cost +ε 0\.5$", shown.out, re.MULTILINE)
    other = re.search(r"rel_\w{20}", shown.out)[0]
    assert f"obscura download {other}" in shown.err
    row = next(line for line in shell("releases", "list").out.splitlines() if other in line)
    assert "ε 0.5" in row
    compared = shell("compare", one, other)
    labels = [line.split("  ")[0] for line in compared.out.splitlines()[1:]]
    assert labels[:3] == ["name", "id", "cost"]
    assert labels[-1] == "components", "the option that is the same is left out"
    assert [each["options"]["components"] for each in shell("compare", one, other, "--json").json] == [4, 5]
    card = shell("releases", "card", other).out
    assert re.search(r"• that there are at most 200 records", card)
    assert "plan_sha256" not in card
    assert "two or more" in shell("compare", one, code=2).err
