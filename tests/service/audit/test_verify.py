"""`verify` finds every change of an entry, a balance, a hold or a limit, and names the first bad entry."""

import re
from collections import Counter
from random import Random
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DataError, IntegrityError

from obscura.wire.words import EntryKind
from service.audit.findings import Fault, FindingCode
from service.audit.replay import Line, LogReplay, Prices
from service.audit.signing import trusted_keys
from service.audit.verify import verify
from service.db.ledger_tables import Entry
from service.db.session import transaction
from service.ledger.chain import GENESIS_HASH, canonical_json, entry_hash, utc_text
from service.wording import ENTRIES
from tests.service.audit.book import LedgerBook
from tests.service.audit.forgery import COLUMNS, store, stored_entries, with_other_byte


@pytest.fixture(scope="module")
def book(filled_book: LedgerBook) -> LedgerBook:
    return filled_book


def test_a_sound_ledger_has_no_findings(book):
    report = book.verify()
    assert report.findings == ()
    assert (report.accounts, report.releases, report.checkpoints, report.full) == (2, 3, 2, True)
    with transaction(book.factory, read_only=True) as session:
        counted = {table: session.scalar(text(f"SELECT count(*) FROM {table}")) for table in ("entries", "holds")}
    assert (report.entries, report.holds) == (counted["entries"], counted["holds"])


def test_no_statement_reads_the_whole_log_for_each_page_or_hold(book):
    """Otherwise a million entries would be read thousands of times before the service answers."""
    if not book.sqlite:
        pytest.skip("PostgreSQL chooses by the size of tables, and these are small")
    engine, asked, plans = book.factory.kw["bind"], Counter[str](), {}

    def explain(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked[(like := re.sub(r"\(\?(, \?)*\)", "(?)", statement))] += 1
        plan = cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
        plans[like] = [str(line[-1]) for line in plan]

    event.listen(engine, "before_cursor_execute", explain)
    try:
        book.verify()
    finally:
        event.remove(engine, "before_cursor_execute", explain)
    whole = {statement: [line for line in plan if line.startswith("SCAN entries")] for statement, plan in plans.items()}
    assert any(whole.values())
    assert [statement for statement, lines in whole.items() if lines and asked[statement] > 1] == []
    inner = [statement for statement, lines in whole.items() if lines and plans[statement][0] != lines[0]]
    assert inner == []  # for each row of another table


def test_another_byte_in_any_column_of_an_entry_is_found(book):
    """Every column of an entry of each kind on SQLite; on PostgreSQL a third of them, to save time."""
    trusted, dice, missed, changes = trusted_keys(book.key_path), Random(7), [], 0
    with book.tampered() as session:
        rows = list({row.kind: row for row in stored_entries(session)}.values())
        for number, row in enumerate(rows):
            for column in COLUMNS if book.sqlite else COLUMNS[number % 3 :: 3]:
                value = getattr(row, column)
                if value is None:
                    value = dice.choice(rows).hold_id or "x"  # an id where there was none
                point = session.begin_nested()
                try:
                    store(session, column, with_other_byte(value, dice, sqlite=book.sqlite), row)
                except (IntegrityError, DataError):  # the database refuses: the place is taken, or it is no JSON
                    point.rollback()
                    continue
                changes += 1
                findings = verify(session, trusted=trusted).findings
                if (row.account_id, row.sequence) not in {(f.account_id, f.sequence) for f in findings}:
                    missed.append((row.sequence, column, findings))
                point.rollback()
        assert verify(session, trusted=trusted).clean  # everything was put back
    assert missed == []
    assert changes > (11 if book.sqlite else 3) * len(rows) > 90 / (1 if book.sqlite else 4)


def test_no_byte_of_a_charge_can_change_unseen(book):
    """Bytes along every text column of an entry, changed to any value, on SQLite."""
    if not book.sqlite:
        pytest.skip("on SQLite alone")
    trusted, dice = trusted_keys(book.key_path), Random(11)
    with book.tampered() as session:
        row = stored_entries(session, "WHERE kind = 'charge'")[-1]
        texts = [(name, value) for name in COLUMNS if isinstance(value := getattr(row, name), str)]
        places = [(name, value, at) for name, value in texts for at in range(0, len(value), 7)]
        for column, value, at in places:
            raw = bytearray(value.encode())
            raw[at] ^= dice.randrange(1, 256)
            point = session.begin_nested()
            store(session, column, bytes(raw), row)
            named = {(f.account_id, f.sequence) for f in verify(session, trusted=trusted).findings}
            assert (row.account_id, row.sequence) in named, (column, at)
            point.rollback()
        assert len(places) > 50


def test_the_same_details_in_another_spelling_are_found(book, patients):
    value = "replace(CAST(details AS TEXT), '\\:', '\\: ')" + ("" if book.sqlite else "::json")
    found = book.found_after(f"UPDATE entries SET details = {value} WHERE account_id = '{patients}' AND sequence = 4")
    assert found == [(FindingCode.HASH_MISMATCH, 4)]


def test_times_that_databases_read_alike_are_not_alike(book, patients):
    values = (
        ["CAST(created_at AS BLOB)", "replace(created_at, ' ', 'T')", "created_at || '0'", "1", "NULL"]
        if book.sqlite
        else ["'infinity'", "created_at - interval '4060 years'", "'2030-01-02 03\\:04\\:05 BC'"]
    )
    for value in values:
        found = book.found_after(
            *([] if book.sqlite else ["ALTER TABLE entries ALTER created_at DROP NOT NULL"]),
            *(_without_rules(book) if value == "NULL" else []),
            f"UPDATE entries SET created_at = {value} WHERE account_id = '{patients}' AND sequence = 4",
        )
        assert found == [(FindingCode.HASH_MISMATCH, 4)], value


def _without_rules(book: LedgerBook) -> list[str]:
    """Allow NULL in columns, which on SQLite needs a rewritten schema."""
    assert book.sqlite
    return [
        "PRAGMA writable_schema=ON",
        "UPDATE sqlite_master SET sql = replace(sql, 'created_at DATETIME NOT NULL', 'created_at DATETIME') "
        "WHERE name = 'entries'",
        "PRAGMA writable_schema=RESET",
    ]


def test_swapped_and_inserted_entries_are_found(book, patients):
    swap = [
        f"UPDATE entries SET sequence = {target} WHERE account_id = '{patients}' AND sequence = {source}"
        for target, source in ((-1, 5), (5, 6), (6, -1))
    ]
    assert book.found_after(*swap)[0] == (FindingCode.HASH_MISMATCH, 5)
    length = book.verify().heads[patients][0]
    columns = ", ".join(column for column in COLUMNS if column != "sequence")
    for place, first_bad in ((0, 1), (-5, 1), (length + 1, length + 1), (length + 2, length + 1)):
        copy = f"INSERT INTO entries (sequence, {columns}) SELECT {place}, {columns} FROM entries"
        found = book.found_after(f"{copy} WHERE account_id = '{patients}' AND kind = 'freeze' LIMIT 1")
        assert found[0][1] == first_bad, place


def test_entries_of_no_account_are_found(book):
    found = book.found_after(f"DELETE FROM accounts WHERE id = '{book.accounts['pupils']}'")
    assert (FindingCode.ORPHAN_ENTRIES, 1) in found


def test_an_account_with_an_id_of_another_form_is_found(book, patients):
    codes = {code for code, _ in book.found_after(f"UPDATE accounts SET id = 'someone' WHERE id = '{patients}'")}
    assert {FindingCode.ACCOUNT_MISMATCH, FindingCode.ORPHAN_ENTRIES} <= codes


def test_a_lost_hold_and_an_invented_one_are_found(book):
    found = book.found_after(f"UPDATE holds SET id = 'hold_invented' WHERE id = '{book.hold_ids[0]}'")
    lost = {(FindingCode.HOLD_MISMATCH, 2), (FindingCode.ORPHAN_HOLD, None), (FindingCode.JOB_MISMATCH, None)}
    assert lost <= set(found)


def test_an_approval_that_raised_nothing_is_found(book):
    names = "action, account_id, epsilon_before, epsilon, reason, state, requested_by, requested_with, requested_at"
    names += ", decided_by, decided_with, decided_at"
    copy = f"INSERT INTO decisions (id, {names}) SELECT 'dec_invented', {names} FROM decisions"
    assert book.found_after(copy) == [(FindingCode.RAISE_UNAPPROVED, None)]


def test_a_release_without_its_capture_is_found(book):
    release = book.releases()[0]
    sequence = release.receipt["statement"]["entry"]["sequence"]
    other = f"UPDATE releases SET artifact_sha256 = '{'cd' * 32}' WHERE id = '{release.id}'"
    found = book.found_after(other)
    assert found == [(FindingCode.RELEASE_MISMATCH, sequence), (FindingCode.RELEASE_UNPAID, sequence)]
    unpaid = f"UPDATE jobs SET hold_id = '{book.hold_ids[1]}' WHERE id = '{release.job_id}'"
    assert (FindingCode.RELEASE_UNPAID, None) in book.found_after(unpaid)
    assert (FindingCode.RELEASE_UNPAID, None) in book.found_after(f"DELETE FROM jobs WHERE id = '{release.job_id}'")


def test_an_altered_receipt_is_found(book):
    first, second, _third = book.releases()
    changed = "replace(CAST(receipt AS TEXT), 'add_remove', 'replace_one')" + ("" if book.sqlite else "::json")
    another = f"(SELECT r.receipt FROM releases r WHERE r.id = '{second.id}')"
    for value in (changed, another, "'{}'", "'null'"):
        found = book.found_after(f"UPDATE releases SET receipt = {value} WHERE id = '{first.id}'")
        assert [code for code, _ in found] == [FindingCode.RECEIPT_MISMATCH], value


@pytest.mark.parametrize("kind", EntryKind)
def test_every_kind_of_entry_is_hashed_alike_has_rules_and_a_name(kind, now):
    balances = {"capacity_nano": 9, "spent_nano": 0, "reserved_nano": 0}
    facts: dict[str, Any] = {
        "account_id": "acc_" + "a" * 20,
        "sequence": 2,
        "kind": kind,
        "amount_nano": 1,
        "details": {},
    }
    facts |= {"hold_id": None, "job_id": None, "previous_hash": GENESIS_HASH, "created_at": now}
    entry = Entry(**facts, **balances)
    entry.hash = entry_hash(entry)
    as_stored = {name: getattr(entry, name) for name in Line._fields if name not in ("created_at", "text")}
    line = Line(**as_stored, created_at=utc_text(now), text=canonical_json(entry.details).decode())
    with pytest.raises(Fault) as fault:  # it says too little, whatever it is; that its hash is wrong is not said
        LogReplay(entry.account_id, Prices(), sequence=1, **balances).apply(line)
    assert fault.value.code in (
        FindingCode.TRANSITION_REFUSED,
        FindingCode.AMOUNT_MISMATCH,
        FindingCode.ENTRY_MALFORMED,
    )
    assert kind in ENTRIES
