"""`obscura datasets push` and `obscura subjects withdraw`: options, questions, and what is declared and sent."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from obscura.cli.datasets import in_flags
from obscura.preparing import Choices
from tests.commands import command_of
from tests.pictures import write_folders
from tests.service.cli.conftest import Terminal, write_arrays

PAGES = [Path(__file__).parents[3] / "docs" / "how-to" / f"{name}-images.md" for name in ("upload", "medical")]
OPTIONS = {
    "classes": "old cat,dog",
    "size": "64x48",
    "labels": Path("my labels.csv"),
    "grey": True,
    "split": "test",
    "skip_broken": False,
}
SMALL = ("-o", "components=4", "-o", "evaluation_samples=100")
TERMS = ("-d", "1e-4", "--unit", "subject")


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """Two classes; one person in both; seven pictures of three people."""
    return write_folders(tmp_path / "people", {"cat/zoe": 2, "cat/bert": 1, "dog/zoe": 3, "dog/carl": 1})


def test_pushing_to_a_subject_account_declares_and_sends_subjects(shell, people, tmp_path):
    opened = ("--epsilon", "8", "--delta", "1e-5", "--json")
    account = str(shell("accounts", "create", "families", "--unit", "subject", *opened).json["id"])
    stated = ("--account", account, "--at-most", "9", "--subjects-at-most", "5")
    pushed = shell("datasets", "push", str(people), *stated, "--json")
    assert (pushed.json["state"], pushed.json["records_declared"], pushed.json["subjects_declared"]) == ("ready", 9, 5)
    assert "at most 9 records of at most 5 subjects" in pushed.err
    path = write_arrays(tmp_path / "arrays.npz", 120)
    stated = ("--account", account, "--at-most", "120", "--subjects-at-most", "50")
    refused = shell("datasets", "push", str(path), *stated, code=2)
    assert "third array 'subjects'" in refused.err
    with np.load(path) as arrays:
        np.savez(path, images=arrays["images"], labels=arrays["labels"], subjects=np.arange(120) // 3)
    pushed = shell("datasets", "push", str(path), *stated, "--json").json
    assert (pushed["state"], pushed["records_declared"], pushed["subjects_declared"]) == ("ready", 120, 50)
    asked = ("--recipe", "datalens", "--epsilon", "1", "--option", "teachers=10", "--json")
    made = shell("plan", pushed["id"], *asked).json
    assert made["unit"] == "subject"
    assert made["facts"].items() >= {"protects": "all records of one subject", "units_declared": 50}.items()


def test_at_a_terminal_push_asks_before_it_declares(shell, client, tmp_path):
    path = str(write_arrays(tmp_path / "asked.npz", 30))
    command = ("datasets", "push", path, "--public", "--name", "asked")
    declined = shell(*command, input=Terminal("n\n"), code=1).err
    assert 'Stays here: images by class: "0" 15, "1" 15.' in declined
    assert "Nothing was declared or sent." in declined
    assert "asked" not in {each.name for each in client.datasets.list()}
    shell(*command, input=Terminal("y\n"))
    client.datasets.get("asked").delete()
    shell(*command, "--yes", input=Terminal(""))
    (tmp_path / "train").mkdir()
    Image.new("L", (8, 8), 9).save(tmp_path / "train" / "1.png")
    refused = shell("datasets", "push", str(tmp_path), "--public", "--yes", input=Terminal(""), code=2)
    assert "--classes train" in refused.err


@pytest.mark.parametrize("path", [("datasets", "push"), ("quickstart",)], ids=" ".join)
def test_each_option_is_on_the_command_line_and_is_parsed_as_it_is_formatted(path):
    command, _ = command_of([*path])
    assert set(Choices.model_fields) <= {parameter.name for parameter in command.params}
    context = command.make_context("push", ["images", *shlex.split(in_flags(OPTIONS))])
    read = {name: context.params[name] for name in Choices.model_fields if context.params[name] not in (None, False)}
    assert read == {name: value for name, value in OPTIONS.items() if value is not False}


@pytest.mark.parametrize("option", Choices.model_fields)
def test_a_page_shows_each_choice(option):
    assert any(f"`--{option.replace('_', '-')}" in page.read_text(encoding="utf-8") for page in PAGES)


@pytest.fixture
def push(shell: Any, tmp_path: Path) -> Any:
    key = tmp_path / "subjects.key"
    key.write_text("0123456789abcdef" * 4 + "\n")

    def pushed(account: str, names: list[str], code: int = 0) -> Any:
        each = {f"{('well', 'sick')[number % 2]}/{name}": 3 for number, name in enumerate(names)}
        folder = write_folders(tmp_path / f"scans-{names[0]}", each, (16, 16, 3))
        stated = ("--at-most", "100", "--subjects-at-most", "20", "--subjects-key", str(key))
        told = ("datasets", "push", str(folder), "--account", account, "--size", "16", *stated, "--json")
        return shell(*told, code=code)

    return pushed


def test_people_of_two_years_are_recognized_and_may_withdraw(shell, push, tmp_path):
    for name, epsilon in (("seen in 2025", "3"), ("seen in 2026", "5")):
        shell("accounts", "create", name, "-e", epsilon, *TERMS)
    first = push("seen in 2025", [f"p{n}" for n in range(8)]).json
    refused = push("seen in 2026", ["p3", "q1"], code=2)
    assert "in another account" in refused.err
    error = refused.err.rpartition("error:")[2]  # below the screen, which names a subject to the owner
    assert not any(word in error for word in ("p3", "q1", "2025"))
    second = push("seen in 2026", [f"q{n}" for n in range(8)]).json
    again = push("seen in 2026", ["q1", "r1"]).json
    assert [each["subjects_recognised"] for each in (first, second, again)] == [True] * 3

    key, left = tmp_path / "subjects.key", tmp_path / "left.txt"
    left.write_text("subject\r\nq2\r\n\r\n nobody \r\n", encoding="utf-8-sig")  # as Excel saves it
    named_by = ("--account", "seen in 2026", "--subjects-key", str(key), "--json", "--yes")
    before = shell("accounts", "show", "seen in 2026", "--json").json
    done = shell("subjects", "withdraw", *named_by, "q1", "--ids-from", str(left)).json
    assert set(done["dataset_ids"]) == {second["id"], again["id"]}
    assert (done["not_recognised"], done["waiting"]) == ([], False)
    assert shell("accounts", "show", "seen in 2026", "--json").json == before, "no budget returns"
    shell("subjects", "withdraw", *named_by, code=2)
    refused = shell("subjects", "withdraw", *named_by, "unknown", code=2)
    assert "is a placeholder" in refused.err
    asked = ("--recipe", "moments", "-e", "1.5", *SMALL)
    left.write_text("q3\n\ufeffq4\n", encoding="utf-8-sig")
    refused = shell("subjects", "withdraw", *named_by, "--ids-from", str(left), code=2)
    assert "Line 2 of left.txt" in refused.err
    assert "byte-order mark" in refused.err
    after = shell("train", second["name"], *asked, "--wait", "--json").json
    assert after["state"] == "succeeded", "on what is left"
    assert shell("ledger", "verify", "--json").json["findings"] == []
