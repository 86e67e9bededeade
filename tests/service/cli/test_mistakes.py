"""Typical mistakes: each ends in one sentence that names the next command or option, and that command exists."""

import re
import shlex
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from obscura.cli.console import Output
from obscura.client import Arrays, Client
from service.db.base import new_id
from tests.commands import command_of
from tests.pictures import write_files
from tests.service.cli.conftest import Shell

ID = "x" * 20


@pytest.fixture(scope="session")
def people(client: Client) -> str:
    """The name of an account, which has a dataset of the same name; made once, or that name would be ambiguous."""
    name = f"people-{new_id('x')}"
    images = np.random.default_rng().integers(0, 255, (200, 8, 8), dtype=np.uint8)
    account = client.accounts.create(name=name, owner="clinic", epsilon=2, delta=1e-4, unit="record")
    client.datasets.push(Arrays(images, np.arange(200) % 2), account_id=account.id, at_most=200, name=name)
    facts = {"classes": ["a", "b"], "height": 8, "width": 8, "channels": 1, "records_declared": 10}
    for each in ("twins", "twins", "ds_store"):
        client.datasets.create(name=each, visibility="public", **facts)
    return name


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to be in, with pictures in it, and no profile."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    images = [Image.new("RGB", size, (number, 0, 9)) for number, size in enumerate([(8, 8), (9, 12)])]
    pets = {f"pets/{name}/{n}.png": image for name in ("cat", "dog") for n, image in enumerate(images)}
    return write_files(tmp_path, {**pets, "full/file": ""})


TRAIN = "train {people} -r datalens -e"
MISTAKES = {
    "a command that is mistyped": ("trian", "Did you mean 'train'?"),
    "a command of a group that is mistyped": ("datasets psh", "Did you mean 'push'?"),
    "no service": ("--url http://127.0.0.1:1 --token t accounts list", "obscura up"),
    "no service on this machine, and none named": ("--data-dir nowhere accounts list", "obscura login URL"),
    "an option of `obscura` after a command": ("up --data-dir x", "before the command: obscura --data-dir DIR up ..."),
    "one after a command of a group": ("accounts list --token t", "obscura --token TOKEN accounts ..."),
    "a page of a name that two datasets have": ("open twins", "Give an id instead: ds_"),
    "a setting that is invalid": ("ledger status", "The setting OBSCURA_PORT is invalid"),
    "no key for an address": ("--url https://obscura.example.org accounts list", "obscura login https://obscura"),
    "a key that the service does not know": ("--token nonsense accounts list", "obscura login"),
    "a profile that is not there": ("--profile work accounts list", "obscura login URL --profile work"),
    "an account that is not there": ("accounts show nobody", "obscura accounts list"),
    "a dataset that is not there": ("datasets show nothing", "obscura datasets list"),
    "a name that two datasets have": ("datasets show twins", "Choose one by its id: ds_"),
    "a job that is not there": (f"jobs show job_{ID}", "obscura jobs list"),
    "a release that is not there": (f"releases show rel_{ID}", "obscura releases list"),
    "a sweep that is not there": (f"sweeps show swp_{ID}", "obscura sweeps list"),
    "neither account nor public": ("datasets push pets", "--public"),
    "a folder that is not there": ("datasets push images --public", "obscura datasets push"),
    "pictures without classes": ("datasets push pets/cat --public", "--labels labels.csv"),
    "no bound": ("datasets push pets --account {people}", "--at-most 2000"),
    "fewer than there are": ("datasets push pets --account {people} --at-most 1", "--at-most"),
    "a name that is taken": (
        "datasets push pets --account {people} --name {people} --at-most 9 --size 8",
        "obscura datasets delete",
    ),
    "a recipe that is not there": ("train {people} -r alchemy -e 1", "obscura recipes"),
    "an option that the recipe has not": (f"{TRAIN} 1 -o colour_blind=1", "obscura recipes"),
    "an option without a value": (f"{TRAIN} 1 -o teachers", "--option takes NAME=VALUE"),
    "more than is left": (f"{TRAIN} 5", "obscura budget show"),
    "two datasets": ("train {people} {people} -r datalens -e 1", "unexpected extra argument"),
    "an epsilon below 0": (f"{TRAIN} -1", "epsilon"),
    "an epsilon that is no number": ("plan {people} -r datalens -e nan", "epsilon"),
    "no epsilon": ("plan {people} -r datalens", "--epsilon"),
    "several without a place": (f"download rel_{ID} smp_{ID} -n 5", "--out"),
    "several as arrays": (f"download rel_{ID} smp_{ID} -n 5 -f npz --out both", "--format"),
    "one named twice": (f"download smp_{ID} smp_{ID} --out both", "twice"),
    "how many images": (f"download rel_{ID}", "--count"),
    "a folder that is taken": (f"download rel_{ID} -n 5 --unpack --out full", "choose another place"),
    "nobody to answer": ("quickstart pets --at-most 9", "--yes"),
    "no limit and nobody to ask": ("quickstart pets --yes", "--at-most 2000"),
    "another folder than the service's": ("--data-dir nowhere ledger verify", "--data-dir"),
    "an address that is no address": ("login obscura.example.org", "obscura login https://obscura.example.org"),
}


CODES = dict.fromkeys(("no service", "a folder that is taken"), 1) | {"more than is left": 3}
CODES |= dict.fromkeys((mistake for mistake in MISTAKES if mistake.startswith(("no key", "no service on", "a key"))), 4)


@pytest.mark.usefixtures("no_backoff")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_in_what_to_do_next(mistake, shell, people):
    line, expected = MISTAKES[mistake]
    settings = {"OBSCURA_PORT": "1e400"} if "setting" in mistake else {}
    ran = shell(*shlex.split(line.format(people=people)), code=CODES.get(mistake, 2), input="key\n", **settings)
    assert ran.out == ""
    said = " ".join(re.sub("[│╭╮╰╯─]", " ", ran.err).split())
    assert expected in said[-200:], said
    for named in re.findall(r"obscura ([a-z][a-z -]*)", said.partition("Error")[2] or said):
        command_of(named.split())


def test_names_come_before_what_looks_like_an_id(shell, people):
    assert shell("datasets", "show", "ds_store", "--json").json["name"] == "ds_store"


def test_a_second_push_of_a_folder_gets_a_name_of_its_own(shell, people):
    for name in ("pets", "pets-2"):
        assert shell("datasets", "push", "pets", "--public", "--size", "8", "--json").json["name"] == name


def test_a_profile_is_kept_for_its_owner_and_its_key_goes_nowhere_else(target, people, place):
    url, token, run = target[1], target[3], Shell(place)
    run("login", url, code=4, input="nonsense\n")
    assert not (place / "config").exists()
    kept = run("login", url, "--profile", "clinic", input=f"{token}\n")
    assert token not in kept.out + kept.err
    (file,) = (place / "config").rglob("*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    run("--profile", "clinic", "accounts", "show", people)
    run("--url", url, "accounts", "show", people)
    other = run("--profile", "clinic", "--url", "https://obscura.example.org", "accounts", "list", code=4)
    assert "There is no key for https://obscura.example.org" in other.err
    run("logout", "--profile", "clinic")
    run("--profile", "clinic", "accounts", "list", code=2)


def test_doctor_looks_at_everything(shell, people, place):
    well = shell("doctor", "--json").json
    states = {finding["what"]: finding["state"] for finding in well if not finding["what"].startswith("packages of ")}
    assert states == dict.fromkeys(
        ("python", "service", "data folder", "database", "storage", "supervisor", "disk"), "ok"
    )
    (place / "data").mkdir()
    (place / "data").chmod(0o755)  # whatever the process's umask has become
    (place / "data" / "obscura.db").write_text("no database")
    ill = Shell(place / "data")("doctor", code=1).out
    assert re.search(r"bad +data folder: .*chmod", ill)
    assert re.search(r"bad +database: .*obscura ledger verify", ill)
    assert re.search(r"missing +supervisor: .*obscura up", ill)
    assert re.search(r"missing +storage: ", ill)


def test_doctor_asks_the_storage_whose_it_is_and_whether_it_takes_anything(shell, tmp_path):
    copied = tmp_path / "copied"
    copied.mkdir(mode=0o700)
    source = sqlite3.connect(shell.data_dir / "obscura.db")
    with closing(source), closing(sqlite3.connect(copied / "obscura.db")) as target:
        source.backup(target)

    def said(**variables: str) -> str:
        shown = Shell(copied)("doctor", code=1, **variables).out
        return next(line for line in shown.splitlines() if re.match(r"\w+ +storage:", line))

    assert said().startswith("missing")
    (copied / "installation").write_text(f"ins_{'a' * 20}\n", "ascii")
    assert re.fullmatch(r"bad +storage: .* belongs to installation ins_a+, but the database to ins_\w+", said())
    assert [path.name for path in copied.rglob("*trial*")] == []
    elsewhere = said(OBSCURA_STORAGE="ftp://elsewhere")
    assert re.match(r"bad +storage: ftp://elsewhere cannot be read and written to: .*folder, s3", elsewhere)


def test_a_row_is_one_line_and_what_has_no_room_is_named(shell, people, capsys):
    table = shell("datasets", "list").out
    assert len([line for line in table.splitlines() if people in line]) == 1
    assert "images" in table
    output = Output(as_json=False)
    output._out = Console(width=40)
    output.rows([{"name": "n" * 20, "id": "i" * 12, "state": "ready"}], ("name", "id", "state"), "things")
    shown = capsys.readouterr()
    assert "n" * 20 + "   " + "i" * 12 in shown.out
    assert "ready" not in shown.out
    assert "state" in shown.err
