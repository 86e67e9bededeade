"""`obscura backup` and `obscura restore`: exit codes, and what they say of keys, of no service."""

import shutil

from service import installation
from service.settings import Settings
from tests.conftest import NOW
from tests.service.cli.conftest import Shell
from tests.service.people import make_key


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
    assert "lacks nothing" in there("ledger", "accept", "acc_" + "a" * 20, code=2).err
    book.factory.kw["bind"].dispose()
    for file in ours.glob("obscura.db*"):
        file.unlink()
    kept = here("restore", backup, "--keep-files", "--json").json
    assert (kept["stops"], kept["findings"]) == ([], [])
