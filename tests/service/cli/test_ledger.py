"""`obscura ledger`, `backup` and `restore`: exit codes and what they write, on a database and without a service."""

import json
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import pytest

from service import installation, ledger
from service.audit.proofs import CHECKPOINT_FILE
from service.db.access_tables import Installation
from service.db.base import new_id
from service.db.session import transaction
from service.ledger.stops import arming_stops
from service.settings import Settings
from tests.conftest import NOW
from tests.service.audit.book import LedgerBook
from tests.service.cli.conftest import Ran, Shell, environment
from tests.service.steps import make_key

ALTERED = "UPDATE entries SET amount_nano = amount_nano + 1 WHERE sequence = 3"
RESTORED = "UPDATE entries SET amount_nano = amount_nano - 1 WHERE sequence = 3"


@pytest.fixture
def run(book: LedgerBook) -> Callable[..., Ran]:
    """Run `obscura ledger ...` on the book: `run("verify", code=1)`."""
    return partial(Shell(book.data_dir), "ledger")


def test_findings_are_the_result_of_the_process_and_not_its_log(book, warm):
    book.corrupt(ALTERED)
    command = [warm, "-m", "obscura.cli", "--data-dir", str(book.data_dir), "ledger", "verify"]
    found = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (1, "")
    assert "hash_mismatch" in found.stdout
    assert "entry 3" in found.stdout


def test_without_a_database_nothing_is_made(tmp_path):
    assert "no database" in Shell(tmp_path / "nowhere")("ledger", "verify", code=2).err
    assert not (tmp_path / "nowhere").exists()


def test_a_sound_ledger_is_reported_in_numbers(run):
    report = run("verify", "--json").json
    assert report.items() >= {"clean": True, "full": True, "accounts": 1, "entries": 5, "holds": 1}.items()
    assert (report["releases"], report["artifacts"], report["findings"], report["stops"]) == (1, 1, [], [])
    assert "entries" in run("verify").out


def test_what_is_found_stops_arming_until_it_is_mended_and_cleared(book, run):
    account_id = book.accounts["patients"]
    book.corrupt(ALTERED)
    (finding,) = run("verify", "--json", code=1).json["findings"][:1]
    assert (finding["code"], finding["account_id"], finding["sequence"]) == ("hash_mismatch", account_id, 3)
    status = run("status", "--json").json
    assert (status["trainings"], status["stops"][0]["account_id"]) == ("stopped", account_id)
    assert (status["stops"][0]["code"], status["stops"][0]["sequence"]) == ("hash_mismatch", 3)
    assert run("verify", "--clear", "--json", code=1).json["cleared"] == 0  # not while it is broken
    book.corrupt(RESTORED)
    assert run("verify", "--json").json["stops"] == [account_id]  # it does not fall by itself
    assert run("verify", "--clear", "--json").json["cleared"] == 1
    assert run("status", "--json").json["trainings"] == "open"


def test_files_that_are_gone_are_reported_and_keep_nobody_from_clearing(book, run):
    book.corrupt(ALTERED)
    run("verify", code=1)
    book.corrupt(RESTORED)
    shutil.rmtree(book.data_dir / "releases")
    report = run("verify", "--clear", "--json", code=1).json
    assert [finding["code"] for finding in report["findings"]] == ["artifact_mismatch"]
    assert (report["cleared"], report["stops"]) == (1, [])
    assert run("verify", "--quick", "--json").json["artifacts"] == 0


def test_a_receipt_that_a_user_holds_is_compared(book, run, tmp_path):
    kept = next((book.data_dir / "receipts").glob("acc_*.json"))
    held = shutil.copyfile(kept, tmp_path / "held.json")
    kept.unlink()
    assert run("verify", "--receipt", str(held), "--json").json["witnesses"] == 1
    held.write_text(held.read_text().replace("add_remove", "replace_one"))
    report = run("verify", "--receipt", str(held), "--json", code=1).json
    assert [finding["code"] for finding in report["findings"]] == ["receipt_refused"]
    assert report["stops"] == []  # anybody may hand in anything
    assert run("verify", "--receipt", str(tmp_path / "missing.json"), code=2)


def test_a_checkpoint_is_signed_over_a_sound_ledger_alone(book, run):
    assert run("checkpoint", "--json").json == {"sequence": 1, "accounts": 1, "entries": 5}
    kept = json.loads((book.data_dir / "receipts" / CHECKPOINT_FILE).read_text())
    assert kept["statement"]["heads"][book.accounts["patients"]][0] == 5
    newest = run("status", "--json").json["checkpoint"]
    assert (newest["sequence"], newest["key_id"]) == (1, book.key.key_id)
    book.corrupt(ALTERED)
    run("checkpoint", code=1)
    assert not book.read(arming_stops)  # signing nothing is all that `checkpoint` does
    assert run("status", "--json").json["checkpoint"]["sequence"] == 1


def test_the_status_tells_when_it_was_last_verified(run):
    status = run("status", "--json").json
    assert status == {"trainings": "open", "stops": [], "verifications": [], "checkpoint": None}
    run("verify")
    (verified,) = run("status", "--json").json["verifications"]
    assert (verified["kind"], verified["entries"], verified["findings"]) == ("full", 5, 0)
    assert "verifications" in run("status").out


def test_the_public_key_is_shown_to_be_pinned(book, run):
    shown = run("public-key", "--json").json
    assert shown["fingerprint"] == book.key.key_id
    assert shown["public_key"] == book.key.public_pem()
    assert book.key.key_id in run("public-key").out
    book.key_path.chmod(0o644)
    assert run("public-key", code=2)


def test_a_key_that_cannot_be_read_is_no_verdict(book, run):
    book.key_path.with_suffix(".pub.pem").write_text("nothing")
    assert run("verify", code=2)


def test_a_clock_that_was_ahead_is_accepted_once(book, run):
    """Entries of these tests are dated 2030: the machine's clock is behind them."""
    if datetime.now(UTC) > NOW:
        pytest.skip("the entries are in the past by now")
    with transaction(book.factory) as session:
        session.add(Installation(id=new_id("ins"), made_at=NOW))
    assert run("accept-clock", "--json").json["newest_entry"].startswith("2030")
    with transaction(book.factory) as session:
        ledger.require_clock(session, datetime.now(UTC))
    run("accept-clock", code=1)


# --- backups ----------------------------------------------------------------------------------------------------------


def test_a_backup_comes_back_by_the_commands_and_says_where_the_keys_are(book, tmp_path):
    assert installation.pair(Settings(data_dir=book.data_dir), book.factory, now=NOW)
    _, token = book.do(make_key, name="boss", scopes=["admin"])
    (book.data_dir / "admin.key").write_text(f"{token}\n")
    ours, new, backup = book.data_dir, tmp_path / "new", str(tmp_path / "backup")
    here, there = Shell(ours), Shell(new)
    assert str(ours / "keys") in here("backup", backup).err.replace("\n", "")
    assert "is not empty" in here("backup", backup, code=2).err
    assert "First restore the key folder" in " ".join(there("restore", backup, code=2).err.split())
    assert not (new / "obscura.db").exists()
    shutil.copytree(ours / "keys", new / "keys")
    restored = there("restore", backup, "--json", code=1)
    assert (restored.json["stops"], restored.json["findings"]) == (["restored"], [])
    assert "obscura ledger accept ACCOUNT" in restored.err.replace("\n", " ")
    verified = there("ledger", "verify", "--clear", "--json", code=1).json
    assert (verified["cleared"], verified["locked"]) == (0, True)
    ((account_id, nano),) = [(loss["account_id"], loss["missing_nano"]) for loss in verified["missing"]]
    assert nano == 0
    assert f"obscura ledger accept {account_id}" in there("ledger", "verify", code=1).out.replace("\n", " ")
    shutil.copy(ours / "admin.key", new / "admin.key")
    for epsilon in ("nan", "-inf"):
        assert "0" in there("ledger", "accept", account_id, "--epsilon", epsilon, code=2).err
    assert "Nothing of account" in there("ledger", "accept", "acc_" + "a" * 20, code=2).err
    book.factory.kw["bind"].dispose()
    for file in ours.glob("obscura.db*"):
        file.unlink()
    kept = here("restore", backup, "--keep-files", "--json").json
    assert (kept["stops"], kept["findings"]) == ([], [])
