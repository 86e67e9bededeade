"""A log whose hashes all agree may still be forged: what it means, what was signed and what is kept give it away.

What nothing gives away is tested as well, so that it is known.
"""

import json
from typing import Any

import pytest
from sqlalchemy import text

from service.audit.findings import FindingCode
from service.audit.proofs import Signed, Witness, read_proofs
from service.audit.signing import trusted_keys
from service.audit.verify import verify
from service.db.base import new_id
from service.db.session import transaction
from service.storage.folder import FolderStorage
from tests.service.audit.book import EVENT, LedgerBook
from tests.service.audit.forgery import in_details, rewritten


@pytest.fixture(scope="module")
def book(filled_book: LedgerBook) -> LedgerBook:
    return filled_book


@pytest.fixture
def kept(book: LedgerBook) -> Signed:
    found = read_proofs(FolderStorage(book.data_dir), trusted_keys(book.key_path)).kept
    assert found is not None
    return found


def as_it_was(_body: dict[str, Any]) -> None:
    pass


def test_a_log_hashed_again_as_it_was_has_no_findings(book, patients):
    """Control: rewriting alone is not found."""
    assert book.found_after(*rewritten(book, patients, as_it_was)) == []


def inflate(body: dict[str, Any]) -> None:
    if body["kind"] == "open":
        body["amount_nano"] = body["capacity_nano"] = body["capacity_nano"] + 10**9


def discount(body: dict[str, Any]) -> None:
    for stage in body["details"].get("stages", ()):
        stage["event"]["stddev"] = EVENT.stddev / 2  # would cost more than was held


def overcharge(body: dict[str, Any]) -> None:
    if body["kind"] == "charge":
        body["amount_nano"] *= 10
        body["details"]["event"]["count"] *= 10
        body["details"]["charged_nano"] *= 10


def forgive(body: dict[str, Any]) -> None:
    if body["kind"] == "capture":
        body["spent_nano"] -= 1


def overdraw(body: dict[str, Any]) -> None:
    if body["sequence"] == 2:
        (stage,) = body["details"]["stages"]
        unit_nano = stage["cost_nano"] // stage["event"]["count"]
        stage["event"]["count"] = body["capacity_nano"] // unit_nano + 1
        stage["cost_nano"] = stage["event"]["count"] * unit_nano  # all prices are right
        body["amount_nano"] = body["reserved_nano"] = stage["cost_nano"]


@pytest.mark.parametrize(
    ("change", "code", "sequence"),
    [
        (inflate, FindingCode.CAPACITY_MISMATCH, 1),
        (discount, FindingCode.PRICE_MISMATCH, 2),
        (overdraw, FindingCode.OVERSPENT, 2),
        (in_details("hold", lambda details: details.pop("stages")), FindingCode.PRICE_UNKNOWN, 2),
        (in_details("arm", lambda details: details.update(attempt=0)), FindingCode.TRANSITION_REFUSED, 3),
        (overcharge, FindingCode.AMOUNT_MISMATCH, 4),
        (in_details("charge", lambda details: details.pop("event")), FindingCode.PRICE_UNKNOWN, 4),
        (forgive, FindingCode.BALANCE_MISMATCH, 6),
        (in_details("limit", lambda details: details.update(frozen=True)), FindingCode.TRANSITION_REFUSED, 9),
    ],
)
def test_a_forged_meaning_is_found_though_hashes_and_rows_agree(book, patients, change, code, sequence):
    assert book.found_after(*rewritten(book, patients, change))[0] == (code, sequence)


@pytest.mark.parametrize(
    "change",
    [
        # not two keys
        lambda details: details.update(approved_with=details["requested_with"]),
        lambda details: details.pop("approved_with"),
        lambda details: details.update(request_id=new_id("lim")),
        lambda details: details.pop("request_id"),
        # approved by a person who was no admin when it was asked for
        lambda details: details.update(approver_admitted_at="2030-01-03T00:00:00.000000+00:00"),
        lambda details: details.pop("approver_admitted_at"),
        lambda details: details.update(requested_at="2029-01-01T00:00:00.000000+00:00"),
        lambda details: details.update(requested_at=7),
        lambda details: details.pop("requested_at"),
    ],
)
def test_a_raise_without_two_people_is_found(book, change):
    forged = rewritten(book, book.accounts["pupils"], in_details("limit", change))
    assert (FindingCode.RAISE_UNAPPROVED, 2) in book.found_after(*forged)


def test_a_rewritten_chain_is_found_by_a_checkpoint(book, patients, kept):
    # A freeze is covered by no receipt of a release before it.
    excuse = in_details("freeze", lambda details: details.update(reason="other"))
    forged = rewritten(book, patients, excuse)
    head = kept.heads[patients][0]
    assert (FindingCode.OLDER_THAN_CHECKPOINT, head) in book.found_after(*forged)
    assert (FindingCode.OLDER_THAN_CHECKPOINT, head) in book.found_after(*forged, full=False)


def test_a_rewritten_chain_is_found_by_a_receipt(book, patients):
    receipt = book.releases()[0].receipt["statement"]
    witness = Witness(patients, receipt["entry"]["sequence"], receipt["entry_hash"], "a receipt")

    excuse = in_details("capture", lambda details: details.update(reason="other"))
    forged = [*rewritten(book, patients, excuse), "DELETE FROM checkpoints"]
    # Nothing in the log itself gives it away; the copies of the entry in the receipts do.
    assert {code for code, _ in book.found_after(*forged)} == {FindingCode.RECEIPT_MISMATCH}
    assert (FindingCode.OLDER_THAN_RECEIPT, witness.sequence) in book.found_after(*forged, known=(witness,))
    forged.append("DELETE FROM releases")
    assert book.found_after(*forged, known=(witness,)) == [(FindingCode.OLDER_THAN_RECEIPT, witness.sequence)]


def test_a_truncated_log_is_found_by_its_head_and_by_a_checkpoint(book, patients, kept):
    length, head = book.verify().heads[patients][0], kept.heads[patients][0]
    cut = f"DELETE FROM entries WHERE account_id = '{patients}' AND sequence = {length}"
    assert book.found_after(cut)[0] == (FindingCode.ENTRY_MISSING, length)
    forged = rewritten(book, patients, as_it_was, until=head - 1)
    assert (FindingCode.OLDER_THAN_CHECKPOINT, head) in book.found_after(*forged)
    assert (FindingCode.OLDER_THAN_CHECKPOINT, head) in book.found_after(*forged, full=False)


def test_what_was_cut_off_after_the_newest_witness_is_not_found(book, patients, kept):
    """A known gap: the newest entries are not missed if everything that repeats them is removed as well.

    What they paid for is in the world, so this matters; a checkpoint or a receipt kept elsewhere would tell.
    """
    head = kept.heads[patients][0]
    with transaction(book.factory, read_only=True) as session:
        charged = f"SELECT hold_id FROM entries WHERE account_id = '{patients}' AND sequence = {head + 1}"
        hold_id = session.execute(text(charged)).scalar_one()
        before = session.execute(
            text(
                f"SELECT sequence, created_at, CAST(details AS TEXT) FROM entries WHERE hold_id = '{hold_id}' "
                f"AND sequence <= {head} ORDER BY sequence DESC LIMIT 1"
            )
        ).one()
    newest = book.releases()[-1]
    cut = [
        *rewritten(book, patients, as_it_was, until=head),
        f"UPDATE holds SET charged_nano = {json.loads(before[2])['charged_nano']}, last_sequence = {before[0]}, "
        f"updated_at = '{str(before[1]).replace(':', chr(92) + ':')}' WHERE id = '{hold_id}'",
        f"DELETE FROM releases WHERE id = '{newest.id}'",
        f"DELETE FROM jobs WHERE id = '{newest.job_id}'",
        f"DELETE FROM holds WHERE job_id = '{newest.job_id}'",
    ]
    assert book.found_after(*cut, kept=kept) == []
    statement = newest.receipt["statement"]
    held = Witness(patients, statement["entry"]["sequence"], statement["entry_hash"], "a receipt")
    assert book.found_after(*cut, known=(held,)) == [(FindingCode.OLDER_THAN_RECEIPT, held.sequence)]


def test_a_lost_account_is_found_by_a_checkpoint(book, kept):
    gone = book.accounts["pupils"]
    tables = ("releases", "jobs", "holds", "entries", "decisions")
    lost = [f"DELETE FROM {table} WHERE account_id = '{gone}'" for table in tables]
    lost.append(f"DELETE FROM accounts WHERE id = '{gone}'")
    assert [code for code, _ in book.found_after(*lost)] == [FindingCode.OLDER_THAN_CHECKPOINT]
    lost.append("DELETE FROM checkpoints")
    assert {code for code, _ in book.found_after(*lost, kept=kept)} == {
        FindingCode.CHECKPOINT_MISSING,
        FindingCode.OLDER_THAN_CHECKPOINT,
    }


def test_an_altered_or_deleted_checkpoint_is_found(book):
    values = {name: f"replace({name}, substr({name}, 3, 1), 'z')" for name in ("previous_hash", "hash", "key_id")}
    values |= {
        "signature": "replace(signature, substr(signature, 3, 1), 'z')",
        "heads": "replace(CAST(heads AS TEXT), 'acc_', 'acb_')" + ("" if book.sqlite else "::json"),
        "created_at": "'2031-01-02 03\\:04\\:05.678901'",
        "sequence": "0",
    }
    for column, value in values.items():
        found = book.found_after(f"UPDATE checkpoints SET {column} = {value} WHERE sequence = 1")
        assert found == [(FindingCode.CHECKPOINT_BROKEN, None)], column
    assert book.found_after("DELETE FROM checkpoints WHERE sequence = 1") == [(FindingCode.CHECKPOINT_BROKEN, None)]
    spaced = "replace(CAST(heads AS TEXT), ',', ', ')" + ("" if book.sqlite else "::json")
    found = book.found_after(f"UPDATE checkpoints SET heads = {spaced} WHERE sequence = 2", full=False)
    assert found[0] == (FindingCode.CHECKPOINT_BROKEN, None)


def test_checkpoints_that_were_removed_are_missed_by_the_kept_one(book, kept):
    for removed in ("DELETE FROM checkpoints WHERE sequence = 2", "DELETE FROM checkpoints"):
        assert book.found_after(removed) == []  # the log itself is as it was
        for full in (True, False):
            found = book.found_after(removed, kept=kept, full=full)
            assert found == [(FindingCode.CHECKPOINT_MISSING, None)]
    assert book.verify(kept=kept).clean


def test_what_an_unknown_key_has_signed_is_not_believed(book):
    with transaction(book.factory, read_only=True, snapshot=True) as session:
        codes = {finding.code for finding in verify(session, trusted={}).findings}
    assert codes == {FindingCode.CHECKPOINT_BROKEN, FindingCode.RECEIPT_MISMATCH}


def test_a_witness_that_agrees_is_no_finding(book, patients):
    sequence, digest, _spent_nano = book.verify().heads[patients]
    for full in (True, False):
        assert book.found(known=(Witness(patients, sequence, digest, "a receipt"),), full=full) == []
        for account_id, place in ((patients, sequence + 1), (patients, 2), (new_id("acc"), 1)):
            wrong = Witness(account_id, place, digest, "a receipt")
            assert book.found(known=(wrong,), full=full) == [(FindingCode.OLDER_THAN_RECEIPT, place)]


def test_verification_from_a_checkpoint_reads_only_what_came_after(book, patients):
    everything, later = book.verify(), book.verify(full=False)
    assert later.clean
    assert not later.full
    assert later.heads == everything.heads
    assert 0 < later.entries < everything.entries
    head = everything.heads[patients][0]
    update = f"UPDATE entries SET amount_nano = amount_nano + 1 WHERE account_id = '{patients}' AND sequence = {head}"
    assert book.found_after(update, full=False)[0] == (FindingCode.HASH_MISMATCH, head)
    spent = f"UPDATE accounts SET spent_nano = spent_nano - 1 WHERE id = '{patients}'"
    assert book.found_after(spent, full=False) == [(FindingCode.ACCOUNT_MISMATCH, head)]
    opened = f"UPDATE holds SET charged_nano = charged_nano - 1 WHERE id = '{book.hold_ids[2]}'"
    assert [code for code, _ in book.found_after(opened, full=False)] == [FindingCode.HOLD_MISMATCH]


def test_it_is_known_what_the_partial_verification_leaves_out(book, patients):
    """Control: only a full verification finds a change before the checkpoint."""
    early = f"UPDATE entries SET amount_nano = 5 WHERE account_id = '{patients}' AND sequence = 4"
    assert book.found_after(early, full=False) == []
    assert book.found_after(early)[0] == (FindingCode.HASH_MISMATCH, 4)
