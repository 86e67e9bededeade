"""Every command and program in README.md and docs runs, except those that `examples.py` names."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from models.extractor import ExtractorConfig
from obscura.client import BudgetError
from obscura.client.local_service import LocalClient, local
from tests.conftest import starting_by
from tests.house import examples
from tests.obscura.small import LONG

CLASSES = ("benign", "malignant")
IDS = re.compile(r"\b(acc|ds|job|rel|smp|prv|swp|dec|adm|whk|key)_[a-z2-7]{20}\b")
INTRODUCTION = re.compile(r"\bkey_\w+:[0-9a-f]{64}\b")


def run(block: examples.Block) -> bool:
    if block.is_shell:
        return bool(block.commands())
    return block.language == "python" and block.document not in examples.PYTHON_NOT_RUN


APART = [block for block in examples.blocks() if run(block) and block.document not in examples.TOGETHER]
ALONE = [block for block in APART if "obscura.local(" in block.text]  # each has a service of its own


def test_every_block_is_run_or_named():
    for block in examples.blocks():
        if block.is_shell or block.language == "python":
            continue
        named = [
            key
            for key in examples.SHOWN
            if key[:2] == (block.document, block.language) and block.text.startswith(key[2])
        ]
        assert len(named) == 1, f"{block} is neither run nor named in SHOWN"


def test_nothing_is_named_that_is_not_there():
    found = examples.blocks()
    lines = [line for block in found if block.is_shell for line in block.text.splitlines()]
    assert [start for start in examples.NOT_RUN if not any(line.startswith(start) for line in lines)] == []
    assert examples.PYTHON_NOT_RUN.keys() <= {block.document for block in found if block.language == "python"}
    shown = [(block.document, block.language, block.text) for block in found]
    stale = [
        key for key in examples.SHOWN if not any(key[:2] == one[:2] and one[2].startswith(key[2]) for one in shown)
    ]
    assert stale == []
    assert examples.reason_against("obscura train images") is None


def test_the_description_of_a_network_is_one_that_is_read():
    (shown,) = [block.text for block in examples.blocks() if block.language == "json"]
    assert {"name", *json.loads(shown)} == {field.name for field in dataclasses.fields(ExtractorConfig)}


def pictures(folder: Path, count: int) -> Path:
    rng = np.random.default_rng()
    for number in range(count):
        pixels = rng.integers(0, 60, (28, 28))
        pixels[:14] += 150 * (number % 2)
        place = folder / CLASSES[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.png")
    return folder


class Walk:
    """Runs blocks in a folder; `seen` has the newest id of each kind, and values for other placeholders."""

    def __init__(self, folder: Path, warm: str) -> None:
        self.folder, self.warm, self.variables, self.url, self.python = folder, warm, "", "", ""
        self.seen: dict[str, str] = {}
        tools = folder / ".bin"
        tools.mkdir()
        scripts = {"uuidgen": "cat /proc/sys/kernel/random/uuid", "obscura": f'exec {warm} -m obscura.cli "$@"'}
        for name, line in scripts.items():
            (tools / name).write_text(f"#!/bin/sh\n{line}\n")
            (tools / name).chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OBSCURA_")}
        kept["PATH"] = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = kept | {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}

    def run(self, block: examples.Block, before: Callable[[str], dict[str, str]] = lambda _command: {}) -> None:
        """Run a block; `before` prepares each command, and returns variables for it."""
        if block.language == "python":
            program = self.python + block.text.replace("http://127.0.0.1:8420", self.url)
            self.check(f"{block}", [self.warm, "-c", program], {})
            return
        for command in block.commands():
            changes = before(command)
            filled = self.fill(examples.smaller(command))
            if re.match(r"[A-Z]+=", filled):
                self.variables += filled
                continue
            out = self.check(f"{block}\n{filled}", ["bash", "-euo", "pipefail", "-c", self.variables + filled], changes)
            for name in re.findall(r" -o (\S+)", filled) if filled.startswith("curl") else ():
                out += (self.folder / name).read_bytes()[:1000].decode("utf-8", "replace")
            assert "/docs/reference/errors/#" not in out, f"{block}\n{filled}\n{out}"

    def check(self, what: str, command: list[str], changes: dict[str, str]) -> str:
        ran = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment | changes,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ran.returncode == 0, f"{what}\n{ran.stdout}\n{ran.stderr}"
        shown = list(IDS.finditer(ran.stdout + ran.stderr))
        self.seen |= {match[1] + "_...": match[0] for match in reversed(shown)}  # lists begin with the newest
        if introduced := INTRODUCTION.search(ran.stdout):
            self.seen["introduction"] = introduced[0]
        return ran.stdout

    def fill(self, command: str) -> str:
        """Replace the placeholders of a command by values that were shown before."""
        command = command.replace("http://127.0.0.1:8420", self.url).replace("/backups/", f"{self.folder}/backups/")
        command = re.sub(r"key_\.\.\.:[0-9a-f]*\.\.\.", lambda _: self.seen["introduction"], command)
        command = command.replace("RELEASE_1", self.seen.get("earlier", "")).replace("RELEASE_2", "rel_...")
        command = command.replace("RELEASE", "rel_...").replace("5f1c...e2", self.seen.get("fingerprint", ""))
        command = command.replace(
            '"evaluation_dataset_id": "ds_..."', f'"evaluation_dataset_id": "{self.seen.get("test")}"'
        )
        return re.sub(r"\b[a-z]{2,3}_\.\.\.", lambda found: self.seen[found[0]], command)


@pytest.fixture
def client(tmp_path: Path, warm: str) -> Iterator[LocalClient]:
    with starting_by(warm):
        started = local(tmp_path / "var")
    with started as client:
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("block", ALONE, ids=str)
def test_a_block_runs_by_itself(block, tmp_path, warm):
    pictures(tmp_path / "images", 200)
    Walk(tmp_path, warm).run(block)


@pytest.mark.slow
def test_all_other_blocks_run_one_after_the_other(client, tmp_path, warm):
    for name in ("images", "scans"):
        pictures(tmp_path / name, 200)
    (tmp_path / "data").symlink_to(client.service.data_dir)
    walk = Walk(tmp_path, warm)
    # The second project, which hides the data of the first, comes last.
    for block in sorted(APART, key=lambda block: "people-and-projects" in block.document):
        if block not in ALONE:
            walk.run(block)
    assert zipfile.is_zipfile(tmp_path / "synthetic.zip")


@pytest.mark.slow
def test_the_guides_run_from_the_first_account_to_the_last_deletion(client, tmp_path, warm):
    walk = Walk(tmp_path, warm)
    walk.url = client.service.url
    pictures(tmp_path / "images", 60)
    shutil.make_archive(str(tmp_path / "scans"), "zip", pictures(tmp_path / "scans", 200))
    faces = np.random.default_rng().integers(0, 255, (100, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "faces.npz", images=faces, labels=np.arange(100) % 2, subjects=np.arange(100) // 4)
    like = {"size": 28, "grey": True}  # as the private ones are declared in docs/reference/api-conventions.md
    earlier = client.accounts.create(name="patients of 2025", owner="clinic", epsilon=3, delta=1e-6, unit="record")
    client.datasets.push(pictures(tmp_path / "scans-2025", 60), account_id=earlier.id, size=32, at_most=3000)
    for name in ("scans-2026", "scans-grown"):
        pictures(tmp_path / name, 60)
    walk.seen["test"] = client.datasets.push(pictures(tmp_path / "test", 40), public=True, name="test", **like).id
    shutil.copy(examples.ROOT / "scripts" / "verify_receipt.py", tmp_path)

    def obscura(*words: str) -> str:
        return walk.check(" ".join(words), [warm, "-m", "obscura.cli", *words], {})

    walk.seen["fingerprint"] = json.loads(obscura("ledger", "public-key", "--json"))["fingerprint"]
    obscura("admins", "introduce", "--out", "bob.key")
    obscura("admins", "admit", "Bob", "--introduction", walk.seen["introduction"], "--reason", "the second")
    bob = (tmp_path / "bob.key").read_text("ascii").strip()
    walk.environment |= {
        "ALICE": f"Authorization: Bearer {client.service.token}",
        "BOB": f"Authorization: Bearer {bob}",
    }

    def use(dataset: str) -> None:
        found = client.datasets.get(dataset)
        walk.seen["ds_..."] = found.id
        if found.account_id is not None:
            walk.seen["acc_..."] = found.account_id

    def before(command: str) -> dict[str, str]:
        if '"name": "faces"' in command:
            people = client.accounts.create(name="people", owner="clinic", epsilon=3, delta=1e-5, unit="subject")
            walk.seen["acc_..."] = people.id
        elif "/v1/plans" in command or '"name": "bandwidths"' in command or "/raise-limit " in command:
            use("scans")
        elif '"samples": 30000' in command:
            use("test")
        elif "/cancel" in command:
            long = client.jobs.create(client.datasets.get("scans").id, recipe="datalens", epsilon=0.1, options=LONG)
            walk.seen["job_..."] = long.id
        elif '"name": "Carol"' in command:
            obscura("admins", "introduce", "--out", "first-carol.key")
        elif command.startswith("obscura datasets delete scans\n"):
            for sweep in client.sweeps.list():
                sweep.cancel(discard=True).wait(poll_seconds=0.2)
        elif command.startswith("obscura datasets delete scans --cancel-jobs"):
            patients = client.accounts.get("patients")
            client.datasets.push(pictures(tmp_path / "again", 60), account_id=patients.id, at_most=60, name="scans")
        elif command.startswith("obscura admins remove"):
            walk.seen["adm_..."] = next(admin.id for admin in client.admins.list() if admin.name == "Dave")
        elif command.startswith("obscura train scans-2026"):
            walk.seen["earlier"] = walk.seen["rel_..."]
        elif command.startswith("obscura limits request"):
            client.accounts.get("patients").lower_limit(epsilon=4.5, reason="it was raised to 5 before")
        return {"OBSCURA_TOKEN": bob} if command.startswith("obscura decisions approve") else {}

    for document in examples.TOGETHER:
        walk.python = f"token = {client.service.token!r}\naccount_id = {walk.seen.get('acc_...')!r}\n"
        for block in examples.blocks():
            if block.document == document and run(block):
                walk.run(block, before)
    assert zipfile.is_zipfile(tmp_path / "images.zip")
    assert len(list((tmp_path / "both-years").glob("*/*.png"))) == 200
    patients = client.accounts.get("patients")
    dataset = client.datasets.get("images")
    with pytest.raises(BudgetError) as refused:
        client.jobs.create(dataset.id, recipe="datalens", epsilon=patients.epsilon + 1, options=dict(examples.TINY))
    assert (refused.value.status, refused.value.code) == (409, "insufficient_budget")
