"""Limits, freezing and sweeps from the command line."""

import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.cli.console import CliError
from service.cli.sweeps import combinations
from service.client import Client
from service.db.base import new_id

TINY = ["-o", "teachers=10", "-o", "top_k=4", "-o", "images=20", "-o", "evaluation_samples=100"]


@pytest.fixture(scope="module")
def client(shell: Any) -> Iterator[Client]:
    """The first admin, for what the commands do not need to do themselves."""
    url = (shell.data_dir / "service.url").read_text("ascii").strip()
    with Client(url, (shell.data_dir / "admin.key").read_text("ascii").strip()) as client:
        yield client


@pytest.fixture
def account(client: Client) -> str:
    name = f"people {new_id('x')}"
    client.create_account(name=name, owner="clinic", epsilon=2.0, delta=1e-5, unit="record")
    return name


def test_a_limit_is_raised_by_two_admins_and_an_account_frozen_by_one(shell, client, account, tmp_path):
    alice = (shell.data_dir / "admin.key").read_text("ascii").strip()
    introduction = shell("admins", "introduce", "--out", str(tmp_path / "bob.key"), "--json").json["introduction"]
    bob = (tmp_path / "bob.key").read_text("ascii").strip()
    assert stat.S_IMODE((tmp_path / "bob.key").stat().st_mode) == 0o600
    shell("admins", "admit", "bob", "--introduction", introduction, "--reason", "the second", "--json")
    assert [admin.name for admin in client.admins()] == ["first admin", "bob"]
    asked = shell("limits", "request", account, "-e", "3", "--reason", "a second study", "--json", OBSCURA_TOKEN=alice)
    request_id = asked.json["id"]
    assert f"obscura limits approve {request_id}" in asked.err
    refused = shell("limits", "approve", request_id, OBSCURA_TOKEN=alice, code=4)
    assert "two people" in refused.err
    assert shell("limits", "approve", request_id, "--json", OBSCURA_TOKEN=bob).json["state"] == "approved"
    assert request_id in shell("limits", "list").out
    lowered = shell("limits", "lower", account, "-e", "1", "--reason", "less", "--json", OBSCURA_TOKEN=bob)
    assert lowered.json["epsilon"] == 1.0
    assert shell("accounts", "freeze", account, "--reason", "an audit", "--json").json["frozen"] is True
    assert shell("accounts", "unfreeze", account, "--reason", "it is over", "--json").json["frozen"] is False


@pytest.mark.parametrize(
    ("grids", "found"),
    [
        (["a=1,2"], [{"a": 1}, {"a": 2}]),
        (
            ["a=0,0.5", "b=x,true"],
            [{"a": 0, "b": "x"}, {"a": 0, "b": True}, {"a": 0.5, "b": "x"}, {"a": 0.5, "b": True}],
        ),
        (['a=["x,y", null]'], [{"a": "x,y"}, {"a": None}]),
    ],
)
def test_grids_give_every_combination(grids, found):
    assert combinations(grids) == found


@pytest.mark.parametrize(
    "grids", [["a=1"], ["a"], ["a="], ["=1,2"], ["a=1,2", "a=3,4"], ["a=" + ",".join("0" * 65)], []]
)
def test_grids_that_are_no_search_are_refused(grids):
    with pytest.raises(CliError):
        combinations(grids)


@pytest.fixture
def dataset(client: Client, account: str, tmp_path: Path, make_images: Callable[[Path, int], Path]) -> str:
    account_id = next(found.id for found in client.accounts() if found.name == account)
    facts = {"classes": ["top", "left"], "height": 8, "width": 8, "channels": 1, "records_declared": 200}
    declared = client.declare_dataset(name="shapes", visibility="private", account_id=account_id, **facts)
    pushed = declared.push([make_images(tmp_path / "images.npz", 200).read_bytes()], format="npz")
    return pushed.id


@pytest.mark.slow
def test_a_sweep_is_paid_for_as_a_whole(shell, dataset):
    arguments = ["sweep", dataset, "-r", "datalens", *TINY, "-g", "vote_share=0,0.1"]
    done = shell(*arguments, "-e", "0.4", "--wait", "--json").json
    assert [trial["options"]["vote_share"] for trial in done["trials"]] == [0, 0.1]
    assert [trial["state"] for trial in done["trials"]] == ["succeeded", "succeeded"]
    assert done["totals"]["held_nano"] == 0 < done["totals"]["spent_nano"] <= done["totals"]["price_nano"]
    assert "Every trial is paid for" in shell("sweeps", "show", done["id"]).out
    refused = shell(*arguments, "-e", "1.5", "-g", "rounds=1,2,3,4,5,6", "--json", code=3).json["error"]
    assert (refused["trials"], refused["code"]) == (12, "insufficient_budget")
    assert refused["trials_affordable"] == 1
    assert shell("sweeps", "cancel", done["id"], "--json").json == shell("sweeps", "show", done["id"], "--json").json
