"""People of two accounts from the command line: recognized, withdrawn, each account with its own budget."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

SMALL = ("-o", "components=4", "-o", "evaluation_samples=100")
TERMS = ("-d", "1e-4", "--unit", "subject")


def people(folder: Path, names: list[str], seed: int) -> Path:
    """Three pictures of each person."""
    rng = np.random.default_rng(seed)
    for number, name in enumerate(names):
        place = folder / ("sick" if number % 2 else "well") / name
        place.mkdir(parents=True)
        for picture in range(3):
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(place / f"{picture}.png")
    return folder


@pytest.fixture
def push(shell: Any, tmp_path: Path) -> Any:
    key = tmp_path / "subjects.key"
    key.write_text("0123456789abcdef" * 4 + "\n")

    def pushed(account: str, names: list[str], seed: int, *more: str, code: int = 0) -> Any:
        folder = people(tmp_path / f"scans-{seed}", names, seed)
        stated = ("--at-most", "100", "--subjects-at-most", "20", "--subjects-key", str(key))
        told = ("datasets", "push", str(folder), "--account", account, "--size", "16", *stated, "--json")
        return shell(*told, *more, code=code)

    return pushed


def test_people_of_two_years_are_recognized_and_may_withdraw(shell, push, tmp_path):
    for name, epsilon in (("seen in 2025", "3"), ("seen in 2026", "5")):
        shell("accounts", "create", name, "-e", epsilon, *TERMS)
    first = push("seen in 2025", [f"p{n}" for n in range(8)], 1).json
    refused = push("seen in 2026", ["p3", "q1"], 2, code=2)
    assert "in another account" in refused.err
    error = refused.err.rpartition("error:")[2]  # below the screen, which names a subject to the owner
    assert not any(word in error for word in ("p3", "q1", "2025"))
    second = push("seen in 2026", [f"q{n}" for n in range(8)], 3).json
    again = push("seen in 2026", ["q1", "r1"], 4).json
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
