"""Commands against a real service: results on stdout, notices on stderr, exit codes by class of failure."""

import json
import secrets
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.obscura.small import LONG
from tests.pictures import idx_file, write_files, write_folders
from tests.service.cli.conftest import write_arrays

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "verify_receipt.py"
SMALL = ("-r", "moments", "-o", "components=4", "-o", "evaluation_samples=200")


def test_accounts_and_budgets(shell, account):
    listed = shell("accounts", "list", "--json").json
    (found,) = [item for item in listed if item["name"] == account]
    assert shell("accounts", "show", account, "--json").json == found
    assert shell("budget", "show", account, "--json").json["left_epsilon"] == pytest.approx(2.0)
    assert shell("accounts", "entries", account, "--json").json[0]["kind"] == "open"
    table = shell("budget", "show")
    assert account in table.out
    assert table.err == ""


def test_a_large_delta_is_accepted_by_its_flag_alone(shell):
    terms = (f"risky-{secrets.token_hex(4)}", "-e", "2", "-d", "0.05", "--unit", "record")
    refused = shell("accounts", "create", *terms, code=2)
    assert "1 in 20" in refused.err
    assert "--accept-large-delta" in refused.err
    assert terms[0] not in shell("accounts", "list").out
    assert shell("accounts", "create", *terms, "--accept-large-delta", "--json").json["delta"] == pytest.approx(0.05)


def test_a_second_project_is_explained_before_it_is_created(shell):
    refused = shell("projects", "create", "heart", code=2)
    assert "--role owner --project prj_default" in refused.err
    assert "--yes" in refused.err
    assert [project["name"] for project in shell("projects", "list", "--json").json] == ["default"]


def test_pushing_tells_what_becomes_public(shell, account, tmp_path):
    folder = write_folders(tmp_path / "pictures", {"cat": 3, "dog": 3}, (8, 12, 3))
    Image.new("RGBA", (20, 30), (9, 9, 9, 0)).save(folder / "dog" / "clear.png")
    stated = ("--account", account, "--at-most", "250", "--classes", "cat,dog", "--json")
    pushed = shell("datasets", "push", str(folder), *stated)
    json.loads(pushed.out)
    facts = {"state": "ready", "format": "zip", "classes": ["cat", "dog"], "records_declared": 250}
    assert pushed.json.items() >= {**facts, "width": 32, "height": 32, "channels": 3}.items()
    assert 'making public: classes "cat", "dog"; images 32 x 32 x 3' in pushed.err
    assert "7 images: 7 cropped to 32 x 32, 1 put on a white background" in pushed.err
    files = {"images-idx3-ubyte": idx_file(np.zeros((4, 8, 12), np.uint8), 0x803)}
    files["labels-idx1-ubyte"] = idx_file(np.array([0, 1, 0, 1], np.uint8), 0x801)
    idx = write_files(tmp_path / "idx", {f"train-{name}": content for name, content in files.items()})
    pushed = shell("datasets", "push", str(idx), "--public", "--json").json
    assert (pushed["state"], pushed["format"], pushed["visibility"]) == ("ready", "idx", "public")


def test_a_plan_spends_nothing(shell, account, dataset):
    """How it is tried on public images: tests/service/api/routes/test_jobs.py."""
    assert shell("plan", dataset, "-e", "1", *SMALL, "--json").json["budget"]["affordable"] is True
    assert "cost" in shell("plan", dataset, "-e", "1", *SMALL).out
    assert shell("budget", "show", account, "--json").json["reserved_nano"] == 0


def test_no_budget_is_exit_code_3_with_the_numbers(shell, dataset):
    ran = shell("train", dataset, "-e", "5", *SMALL, "--json", code=3)
    error = ran.json["error"]
    assert error["code"] == "insufficient_budget"
    assert error["requested_epsilon"] == 5
    assert error["affordable_epsilon"] == 2
    assert "ask for 2" in ran.err


@pytest.mark.slow
def test_from_training_to_download(shell, account, dataset, tmp_path):
    trained = shell("train", dataset, "-e", "1", *SMALL, "--wait", "--json")
    job = trained.json
    assert job["state"] == "succeeded"
    assert "training" in trained.err
    assert f"obscura download {job['release_id']}" in trained.err
    assert shell("jobs", "watch", job["id"], "--json").json["release_id"] == job["release_id"]
    spent = shell("budget", "show", account, "--json").json
    assert 0 < spent["spent_nano"] <= job["cost_nano"]
    assert spent["reserved_nano"] == 0
    out = tmp_path / "images.zip"
    drawn = shell("download", job["release_id"], "-n", "20", "--out", str(out), "--json").json
    assert out.stat().st_size == drawn["bytes"]
    again = tmp_path / "again.zip"
    shell("download", drawn["id"], "--out", str(again))
    assert again.read_bytes() == out.read_bytes()
    arrays = shell("sample", job["release_id"], "-n", "10", "-f", "npz", "--wait", "--json").json
    assert arrays["state"] == "succeeded"
    first, second = shell("datasets", "show", dataset, "--json").json["classes"][:2]
    uneven = ("download", job["release_id"], "-n", "8", "--unpack", "--out", str(tmp_path / "uneven"), "--json")
    said = shell(*uneven, "--proportions", f"{first}=3,{second}=1").json["proportions"]
    assert said == {first: 3.0, second: 1.0}
    assert [len(list((tmp_path / "uneven" / name).glob("*.png"))) for name in (first, second)] == [6, 2]
    rare = ("sample", job["release_id"], "-n", "8", "-f", "npz", "--proportions", f"{first}=3,{second}=1", "--json")
    several = ("download", drawn["id"], shell(*rare).json["id"], job["release_id"], "-n", "10", "--seed", "1")
    combined = shell(*several, "--out", str(tmp_path / "all"), "--json").json
    assert (combined["images"], combined["sample_ids"][0]) == (38, drawn["id"])
    assert len((tmp_path / "all" / "metadata.jsonl").read_text().splitlines()) == 38
    repacked = list((tmp_path / "all").glob(f"*/{combined['sample_ids'][1]}-*.png"))
    assert sorted(path.parent.name for path in repacked) == sorted([first] * 6 + [second] * 2), (
        "in the same proportions"
    )
    shell(*several, "--out", str(tmp_path / "all"), code=1)
    shell(*several, "--out", str(tmp_path / "all.zip"))
    assert sum(name.endswith(".png") for name in zipfile.ZipFile(tmp_path / "all.zip").namelist()) == 38
    tables = ("download", job["release_id"], "-n", "10", "-f", "parquet", "--unpack", "--out", str(tmp_path / "tables"))
    shell(*tables)
    assert [path.name for path in (tmp_path / "tables" / "data").iterdir()] == ["train-00000-of-00001.parquet"]
    weights = shell("releases", "weights", job["release_id"], "--out", str(tmp_path / "weights"), "--json").json
    assert {"generator.safetensors", "load_generator.py"} < set(weights["files"])
    assert set(weights["files"]) == {path.name for path in (tmp_path / "weights").iterdir()}
    # It is measured afterwards, on public images, as often as anybody likes.
    public = shell("datasets", "push", str(write_arrays(tmp_path / "public.npz", 40)), "--public", "--json").json["id"]
    on = ("evaluate", job["release_id"], "--on", public, "--samples", "100", "--wait", "--json")
    measured = shell(*on).json
    assert (measured["state"], set(measured["accuracy"])) == ("succeeded", {"logistic_regression", "mlp", "cnn"})
    assert shell("releases", "evaluations", job["release_id"], "--json").json == [measured]
    assert shell("releases", "show", job["release_id"], "--json").json["summary"]["accuracy"] == measured["accuracy"]
    shell("releases", "report", job["release_id"], "--out", str(tmp_path / "report.html"))
    report = (tmp_path / "report.html").read_text("utf-8")
    assert "<html" in report
    assert "trained on 100 synthetic images only" in report
    assert shell("budget", "show", account, "--json").json["spent_nano"] == spent["spent_nano"]
    # What was paid verifies as a whole, and its receipt without the service.
    receipt, release_id = tmp_path / "receipt.json", job["release_id"]
    shell("releases", "receipt", release_id, "--out", str(receipt))
    verified = shell("ledger", "verify", "--receipt", str(receipt), "--json").json
    assert verified["clean"]
    assert verified["artifacts"] == verified["releases"] >= 1
    key, stored = shell.data_dir / "keys" / "ledger.pub.pem", shell.data_dir / "releases" / release_id
    for artifact in (stored, tmp_path / "weights", tmp_path / "weights" / "generator.safetensors"):
        command = [sys.executable, "-I", str(SCRIPT), str(receipt), "--key", str(key), "--artifact", str(artifact)]
        checked = subprocess.run(command, capture_output=True, text=True, check=True)
        assert f"paid {spent['spent_nano']} nano-units for release {release_id}" in checked.stdout
    printed = shell("releases", "receipt", release_id).json
    assert printed == json.loads(receipt.read_text("utf-8"))


@pytest.mark.slow
def test_a_cancelled_job_is_exit_code_5(shell, account, dataset):
    long = [word for name, value in LONG.items() for word in ("-o", f"{name}={value}")]
    job = shell("train", dataset, "-r", "datalens", "-e", "1", *long, "--json").json
    shell("jobs", "cancel", job["id"], "--discard", "--yes")
    ran = shell("jobs", "watch", job["id"], "--json", code=5)
    assert ran.json["error"]["state"] == "cancelled"
    assert shell("jobs", "show", job["id"], "--json").json["state"] == "cancelled"
    assert shell("budget", "show", account, "--json").json["reserved_nano"] == 0


def test_nobody_else_may_read_what_the_service_keeps(shell):
    """Started with the usual umask; whatever the tests of this session have made by now."""
    kept = [shell.data_dir, *shell.data_dir.rglob("*")]
    open_to_others = [path.name for path in kept if path.lstat().st_mode & 0o077 and not path.is_symlink()]
    assert open_to_others == []
    assert {"obscura.db", "admin.key", "service.url", "keys"} <= {path.name for path in kept}
