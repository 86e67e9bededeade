"""`obscura datasets push` as people run it: what it prepares, what it asks for, what it declares and sends."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from obscura.cli import console, datasets
from obscura.cli.app import app
from obscura.client import Client


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """Two classes; one person in both; seven pictures of three people."""
    root = tmp_path / "people"
    rng = np.random.default_rng()
    for folder, count in (("cat/zoe", 2), ("cat/bert", 1), ("dog/zoe", 3), ("dog/carl", 1)):
        (root / folder).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(root / folder / f"{number}.png")
    return root


def test_pushing_to_a_subject_account_declares_and_sends_subjects(shell, make_images, people, tmp_path):
    opened = ("--epsilon", "8", "--delta", "1e-5", "--json")
    account = str(shell("accounts", "create", "families", "--unit", "subject", *opened).json["id"])
    stated = ("--account", account, "--at-most", "9", "--subjects-at-most", "5")
    pushed = shell("datasets", "push", str(people), *stated, "--json")
    assert (pushed.json["state"], pushed.json["records_declared"], pushed.json["subjects_declared"]) == ("ready", 9, 5)
    assert "at most 9 records of at most 5 subjects" in pushed.err
    path = make_images(tmp_path / "arrays.npz", 120)
    stated = ("--account", account, "--at-most", "120", "--subjects-at-most", "50")
    refused = shell("datasets", "push", str(path), *stated, code=2)
    assert "third array 'subjects'" in refused.err
    with np.load(path) as arrays:
        np.savez(path, images=arrays["images"], labels=arrays["labels"], subjects=np.arange(120) // 3)
    pushed = shell(
        "datasets", "push", str(path), "--account", account, "--at-most", "120", "--subjects-at-most", "50", "--json"
    ).json
    assert (pushed["state"], pushed["records_declared"], pushed["subjects_declared"]) == ("ready", 120, 50)
    asked = ("--recipe", "datalens", "--epsilon", "1", "--option", "teachers=10", "--json")
    made = shell("plan", pushed["id"], *asked).json
    assert (made["unit"], made["buys"]["protects"], made["buys"]["units_declared"]) == (
        "subject",
        "all records of one subject",
        50,
    )


def test_a_motley_folder_is_brought_to_what_is_stated_or_fixed(shell, people):
    """Of two sizes and partly transparent."""
    root = people.rename(people.with_name("motley"))
    for name in ("zoe", "bert", "carl"):
        for path in root.glob(f"*/{name}/*.png"):
            path.rename(path.parent.parent / f"{name}-{path.name}")
    Image.new("RGBA", (20, 30), (9, 9, 9, 0)).save(root / "dog" / "clear.png")
    pushed = shell("datasets", "push", str(root), "--public", "--json").json
    assert (pushed["state"], pushed["width"], pushed["height"], pushed["channels"]) == ("ready", 32, 32, 3)
    pushed = shell("datasets", "push", str(root), "--public", "--size", "16", "--json")
    assert (pushed.json["state"], pushed.json["width"], pushed.json["height"]) == ("ready", 16, 16)
    assert "8 images: 1 cropped to 16 x 16, 7 scaled to 16 x 16, 1 laid on white" in pushed.err


def test_at_a_terminal_push_asks_before_it_declares(shell, make_images, tmp_path, monkeypatch):
    url = (shell.data_dir / "service.url").read_text("ascii").strip()
    token = (shell.data_dir / "admin.key").read_text("ascii").strip()
    path = str(make_images(tmp_path / "asked.npz", 30))
    command = ("--url", url, "--token", token, "datasets", "push", path, "--public", "--name", "asked")
    for module in (datasets, console):
        monkeypatch.setattr(module, "is_interactive", lambda: True)
    with Client(url, token) as client:
        declined = CliRunner().invoke(app, command, input="n\n")
        assert declined.exit_code == 1
        assert 'Stays here: images by class: "0" 15, "1" 15.' in declined.stderr
        assert "Nothing was declared or sent." in declined.stderr
        assert "asked" not in {each.name for each in client.datasets()}
        assert CliRunner().invoke(app, command, input="y\n").exit_code == 0
        (found,) = (each for each in client.datasets() if each.name == "asked")
        found.delete()
        assert CliRunner().invoke(app, [*command, "--yes"]).exit_code == 0
        (tmp_path / "train").mkdir()
        Image.new("L", (8, 8), 9).save(tmp_path / "train" / "1.png")
        guessed = CliRunner().invoke(app, [*command[:6], str(tmp_path), "--public", "--yes"])
        assert (guessed.exit_code, "--classes train" in guessed.stderr) == (2, True)
