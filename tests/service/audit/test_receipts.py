"""Receipts can be checked offline and cover every field; the signing key."""

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest

from service.audit.proofs import check_receipt
from service.audit.signing import SignatureRefused, SigningKeyUnusable, make_signing_key, open_signing_key, trusted_keys
from service.inspection import inspect_ledger
from service.storage.interface import digest_directory, manifest_of
from tests.together import at_once

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "verify_receipt.py"


def check_offline(receipt: Any, tmp_path: Path, key: str, *more: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "receipt.json"
    path.write_text(receipt if isinstance(receipt, str) else json.dumps(receipt), "utf-8")
    command = [sys.executable, "-I", str(SCRIPT), str(path), "--key", key, *more]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, (*path, name))
    else:
        yield path


def changed(value: Any) -> Any:
    if isinstance(value, str):
        return value[:-1] + ("0" if value[-1] != "0" else "1")
    return "something" if value is None else value + 1


def tampered(receipt: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield receipts with a field changed, removed, or added at each level."""
    levels = ((), ("statement",), ("statement", "entry"), ("statement", "account"))
    for action, paths in (("change", leaves(receipt)), ("remove", leaves(receipt)), ("add", levels)):
        for path in paths:
            forged = copy.deepcopy(receipt)
            *parents, name = (*path, "more") if action == "add" else path
            parent = reduce(getitem, parents, forged)
            if action == "remove":
                del parent[name]
            else:
                parent[name] = changed(parent.get(name))
            yield (*path, action), forged


def test_a_receipt_is_checked_offline_with_a_pinned_key(book, tmp_path):
    folder = tmp_path / "artifact"
    (folder / "inner").mkdir(parents=True)
    (folder / "generator.json").write_text("{}")
    (folder / "inner" / "weights").write_bytes(b"\0\1")
    receipt = book.train("patients", sha256=digest_directory(folder))
    public = str(book.key_path.with_suffix(".pub.pem"))
    for key in (book.key.key_id, public):
        answer = check_offline(receipt, tmp_path, key, "--artifact", str(folder))
        assert answer.returncode == 0, answer.stderr
        assert receipt["statement"]["release_id"] in answer.stdout
    weights = tmp_path / "weights"  # as `obscura releases weights` writes it: some of the files, and others
    weights.mkdir()
    (weights / "artifact.json").write_bytes(manifest_of(folder))
    (weights / "README.md").write_text("a model card")
    no_file = check_offline(receipt, tmp_path, public, "--artifact", str(weights))
    assert (no_file.returncode, "no file of the artifact" in no_file.stderr) == (1, True)
    (weights / "generator.json").write_text("{}")
    covered = check_offline(receipt, tmp_path, public, "--artifact", str(weights))
    assert (covered.returncode, "not covered by the receipt: README.md" in covered.stdout) == (0, True)
    assert check_offline(receipt, tmp_path, public, "--artifact", str(weights / "generator.json")).returncode == 0
    for path in (weights / "README.md", folder / "generator.json", tmp_path / "nowhere"):
        assert check_offline(receipt, tmp_path, public, "--artifact", str(path)).returncode == 1
    for changed_folder in (weights, folder):
        (changed_folder / "generator.json").write_text("{ }")
        assert check_offline(receipt, tmp_path, public, "--artifact", str(changed_folder)).returncode == 1
    (weights / "artifact.json").write_bytes(manifest_of(folder))
    assert check_offline(receipt, tmp_path, public, "--artifact", str(weights)).returncode == 1
    assert check_offline(receipt, tmp_path, "0" * 64).returncode == 1
    assert check_offline(receipt, tmp_path, str(tmp_path / "missing.pem")).returncode == 2


def test_what_is_no_receipt_at_all_is_not_genuine(book, tmp_path):
    receipt, key = json.dumps(book.train("patients")), book.key.key_id
    assert check_offline(receipt, tmp_path, key).returncode == 0
    twice = receipt.replace('{"statement":', '{"statement": {"release_id": "another"}, "statement":', 1)
    assert json.loads(twice) == json.loads(receipt)  # most readers would not notice
    for forged in (twice, "not json", "[" * 100_000, "null", receipt.replace('"base": 0.0', '"base": NaN', 1)):
        answer = check_offline(forged, tmp_path, key)
        assert (answer.returncode, answer.stdout) == (1, ""), forged[:50]
        assert "NOT GENUINE" in answer.stderr


def test_the_script_refuses_a_receipt_changed_in_any_field(book, tmp_path):
    receipt, key = book.train("patients"), book.key.key_id
    # One process checks them all, isolated like the script: it imports the script's own function.
    path = tmp_path / "forged.json"
    forged = [(list(where), document) for where, document in tampered(receipt)]
    path.write_text(json.dumps([*forged, [["as it was"], receipt]]))
    code = (
        "import json, runpy, sys; script = runpy.run_path(sys.argv[1]); accepted = []\n"
        "for where, document in json.load(open(sys.argv[2])):\n"
        "    try: script['check'](document, sys.argv[3]); accepted.append(where)\n"
        "    except (script['Refused'], KeyError, TypeError, ValueError, AttributeError): pass\n"
        "print(json.dumps(accepted))"
    )
    command = [sys.executable, "-I", "-c", code, str(SCRIPT), str(path), key]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout) == [["as it was"]]
    assert len(forged) > 60
    assert check_offline(forged[0][1], tmp_path, key).returncode == 1


def test_the_service_refuses_a_receipt_changed_in_any_field(book):
    receipt, trusted = book.train("patients"), {book.key.key_id: book.key.public}
    assert check_receipt(receipt, trusted) == receipt["statement"]
    for _, forged in tampered(receipt):
        with pytest.raises(SignatureRefused):
            check_receipt(forged, trusted)
    for nothing in (None, [], "x", {"statement": None, "public_key": "", "signature": ""}):
        with pytest.raises(SignatureRefused):
            check_receipt(nothing, trusted)


def test_another_key_cannot_sign_for_this_one(book, tmp_path):
    receipt = book.train("patients")
    stranger = make_signing_key(tmp_path / "other" / "ledger.pem")
    statement = {name: value for name, value in receipt["statement"].items() if name != "key_id"}
    forged = stranger.sign(statement)
    assert check_offline(forged, tmp_path, book.key.key_id).returncode == 1
    with pytest.raises(SignatureRefused):
        check_receipt(forged, {book.key.key_id: book.key.public})


def test_the_receipt_states_the_terms_and_the_entry(book):
    statement = book.train("patients")["statement"]
    assert statement["account"]["epsilon"] == 8.0
    assert (statement["account"]["unit"], statement["account"]["adjacency"]) == ("record", "add_remove")
    assert statement["entry"]["kind"] == "capture"
    assert statement["account"]["spent_nano"] == statement["entry"]["amount_nano"] > 0


def test_services_that_start_at_once_get_one_key(tmp_path):
    path = tmp_path / "keys" / "ledger.pem"
    assert len({key.key_id for key in at_once(*[partial(make_signing_key, path)] * 6)}) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(found.name for found in path.parent.iterdir()) == ["ledger.pem", "ledger.pub.pem"]


def test_reading_the_key_makes_none(tmp_path):
    with pytest.raises(SigningKeyUnusable, match="no signing key"):
        open_signing_key(tmp_path / "keys" / "ledger.pem")
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_others_can_read_or_that_is_none_is_refused(tmp_path):
    path = tmp_path / "ledger.pem"
    make_signing_key(path)
    assert "private" not in repr(open_signing_key(path)).replace("PrivateKey", "")
    path.chmod(0o644)
    with pytest.raises(SigningKeyUnusable, match="0600"):
        open_signing_key(path)
    path.chmod(0o600)
    path.write_text("nothing")
    with pytest.raises(SigningKeyUnusable):
        open_signing_key(path)


def test_the_public_half_of_a_retired_key_still_counts(book, settings):
    book.train("patients")
    retired = book.key_path.with_suffix(".pub.pem")
    retired.rename(retired.with_name("ledger-2030.pub.pem"))
    book.key_path.unlink()
    book.train("patients")
    assert len(trusted_keys(book.key_path)) == 2
    assert inspect_ledger(settings, book.factory).clean


def test_a_receipt_says_the_release_that_its_entry_paid_for(book, tmp_path):
    """A statement about another release than the entry's is refused, even if it is signed."""
    receipt = book.train("patients")
    assert receipt["statement"]["entry"]["details"]["release"]["id"] == receipt["statement"]["release_id"]
    other = {name: value for name, value in receipt["statement"].items() if name != "key_id"}
    forged = book.key.sign(other | {"release_id": "rel_" + "z" * 20})
    with pytest.raises(SignatureRefused, match="contradict"):
        check_receipt(forged, trusted_keys(book.key_path))
    refused = check_offline(forged, tmp_path, book.key.key_id)
    assert (refused.returncode, "pays for a different release" in refused.stderr) == (1, True)
