"""From the folder on: neighbouring folders are declared, paid for and planned alike, whichever way they are brought.

Every folder here is a neighbour of another, on both sides of each number that a count used to be rounded at, or with
one picture that is unlike the others. Their pictures are other ones each, or they would be known.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from obscura.cli.console import CliError
from obscura.client import Client, Dataset, MoreThanStated
from obscura.client.collections import Jobs
from obscura.client.datasets import Datasets
from obscura.client.one_step import push_for
from tests.pictures import saved, write_folders
from tests.service.api.conftest import Served

COUNTS = (99, 100, 101, 109, 110, 1400, 1401)
ODD = {"colour": (8, 8, 3), "larger": (40, 17), "transparent": (8, 8, 4), "broken": None}
OF_ITS_OWN = {"id", "name", "account_id", "dataset_id", "created_at", "ready_at", "sequence", "sha256", "fingerprints"}
Bring = Callable[[Served, Client, Path], Dataset]


def album(root: Path, count: int, odd: str = "") -> Path:
    """A folder of grey pictures of 8 x 8 in two classes, and perhaps one that is unlike them."""
    folder = write_folders(root / f"album-{count}{odd}", {"cat": (count + 1) // 2, "dog": count // 2})
    if odd:
        shape = ODD[odd]
        pixels = np.random.default_rng().integers(0, 256, shape or (1, 1), dtype=np.uint8)
        (folder / "dog" / "odd.png").write_bytes(saved(pixels) if shape else b"no picture")
    return folder


@pytest.fixture(scope="module")
def albums(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("albums")
    return [album(root, count) for count in COUNTS] + [album(root, 100, odd) for odd in ODD]


def without(facts: Any) -> Any:
    """The facts without what names them, and when."""
    if isinstance(facts, dict):
        return {name: without(value) for name, value in facts.items() if name not in OF_ITS_OWN}
    return [without(value) for value in facts] if isinstance(facts, list) else facts


def public_facts(client: Client, dataset: Dataset) -> dict[str, Any]:
    """Everything that anybody may read about a dataset, its account and its log, and what trainings would be."""
    account = client.accounts.get(str(dataset.account_id))
    plan = client.plan(dataset.id, recipe="dp_classifier", epsilon=0.5)
    everything = {"dataset": dataset.refresh(), "account": account, "plan": plan}
    shown = {name: record.model_dump(mode="json") for name, record in everything.items()}
    log = [{"kind": each.kind, "spent": each.spent_nano, "details": each.details} for each in account.entries()]
    return dict(without({**shown, "entries": log}))


def push(_: Served, client: Client, folder: Path) -> Dataset:
    account = client.accounts.create(name=folder.name, owner="clinic", epsilon=1, delta=1e-5, unit="record")
    return client.datasets.push(folder, account_id=account.id, at_most=2000, skip_broken=True)


def one_step(_: Served, client: Client, folder: Path) -> Dataset:
    reading = {"size": 16, "grey": True, "skip_broken": True}
    return push_for(client, Console(quiet=True), folder, None, epsilon=1, at_most=2000, **reading)[0]


def quickstart(*flags: str) -> Bring:
    def bring(served: Served, client: Client, folder: Path) -> Dataset:
        place = str(folder.parent / f"synthetic-{folder.name}")
        ran = served.obscura("quickstart", str(folder), "--yes", "--out", place, *flags)
        assert "no training here" in ran.stderr, ran.output
        return next(each for each in client.transport.pages(Dataset, Dataset.PATH) if each.name == folder.name)

    return bring


WAYS = {
    "push": push,
    "one step": one_step,
    "quickstart": quickstart("--at-most", "2000", "--size", "64", "--skip-broken", "--accept-rough"),
}


@pytest.mark.parametrize("bring", WAYS.values(), ids=WAYS.keys())
def test_neighbouring_folders_are_declared_paid_for_and_planned_alike(
    served: Served, client: Client, albums: list[Path], bring: Bring, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_training(*_: object, **__: object) -> None:
        raise CliError("no training here")

    monkeypatch.setattr(Jobs, "create", no_training)
    if bring is not push:  # what is sent is the same whichever way, and takes seconds each time
        monkeypatch.setattr(Datasets, "send", lambda _datasets, dataset, *_: dataset)
    else:  # the smallest folders, and each odd one
        albums = albums[:3] + albums[-len(ODD) :]
    first, *others = [public_facts(client, bring(served, client, folder)) for folder in albums]
    assert first["dataset"]["state"] == ("ready" if bring is push else "declared")
    for other in others:
        assert other == first


def test_a_folder_that_holds_more_than_was_stated_is_refused_here_and_nothing_is_left(
    client: Client, tmp_path: Path
) -> None:
    folder = album(tmp_path, 11)
    account = client.accounts.create(name="patients", owner="clinic", epsilon=1, delta=1e-5, unit="record")
    with pytest.raises(MoreThanStated) as error:
        client.datasets.push(folder, account_id=account.id, at_most=10)
    assert not set("0123456789") & set(str(error.value)), "no number of the pictures"
    assert list(client.datasets.list()) == []
    with pytest.raises(MoreThanStated):
        push_for(client, Console(quiet=True), folder, None, epsilon=1, at_most=10)
    assert [each.name for each in client.accounts.list()] == ["patients"]


@pytest.mark.parametrize("missing", ["no-such-folder", "album-3"])
def test_a_bound_that_is_missing_is_asked_for_before_the_folder_is_looked_at(
    client: Client, tmp_path: Path, missing: str
) -> None:
    album(tmp_path, 3)
    account = client.accounts.create(name="patients", owner="clinic", epsilon=1, delta=1e-5, unit="record")
    for ask in (
        lambda: client.datasets.push(tmp_path / missing, account_id=account.id),
        lambda: client.train(tmp_path / missing, epsilon=1, show=False),
    ):
        with pytest.raises(Exception, match=r"`at_most` is missing.* at_most=2000"):
            ask()
