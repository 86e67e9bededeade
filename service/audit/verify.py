"""Recompute the ledger from its entries, and compare the result with all rows and signatures that repeat a part of it.

Read only. Run it in a snapshot (`transaction(..., snapshot=True)`). Read receipts before that transaction begins, so
that they cannot be newer than the snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from obscura.wire.words import EntryKind, HoldState
from privacy.errors import PrivacyError
from service.audit import beside
from service.audit.data_folder import read_accepted
from service.audit.findings import FINDINGS_MAX, Fault, Finding, FindingCode, Report
from service.audit.proofs import Signed, Witness, check_checkpoints
from service.audit.replay import TERMS, HoldReplay, Line, LogReplay, Prices, check_hash, replay_hold
from service.audit.rows import EntryReader, RowReader, account_rows, moment, savepoint, with_marks
from service.db.base import is_id
from service.db.ledger_tables import Account, Entry, Hold

_HOLDS_AT_A_TIME = 500
_OF_ACCOUNT = ("capacity_nano", "spent_nano", "reserved_nano", "epsilon", "rate", "base", "frozen")
_FREEZING = (EntryKind.LIMIT, EntryKind.FREEZE, EntryKind.ACCEPT)
_OF_HOLD = (
    *("job_id", "state", "amount_nano", "charged_nano", "captured_nano", "armed_attempt", "last_sequence"),
    *("created_at", "updated_at"),
)


def verify(
    session: Session,
    *,
    trusted: Mapping[str, bytes],
    known: Sequence[Witness] = (),
    kept: Signed | None = None,
    full: bool = True,
) -> Report:
    """Verify every account.

    Args:
        trusted: public keys by fingerprint; checkpoints and receipts signed by other keys are findings.
        known: entries that receipts prove.
        kept: the checkpoint stored beside the database.
        full: read every entry, and rows of other tables. Otherwise, read only entries after the newest valid
            checkpoint, if there is one: earlier entries were verified when it was written.
    """

    def read() -> Report:
        accepted = read_accepted(session)
        absent = None if kept is not None and kept.hash in accepted.checkpoints else kept
        signed, findings, newest = check_checkpoints(session, trusted, absent, newest_alone=not full)
        outside = [*known, *(kept.witnesses("the kept checkpoint") if kept else ())]
        heads = {} if full or newest is None else newest.heads
        reading = _Reading(session, [*signed, *outside], heads, accepted.witnesses)
        reading.findings += findings
        for row in account_rows(session):
            reading.account(row)
        for witnesses in reading.witnesses.values():  # left over: accounts that do not exist
            reading.contradicted(witnesses[min(witnesses)][0], None)
        releases = 0
        if not heads:
            others: list[Finding] = []
            try:
                with savepoint(session):
                    for find in (beside.find_orphans, beside.find_unapproved_raises):
                        others += find(session)
                    others += beside.find_changed_rows(session, reading.heads, reading.facts)
                    for release in beside.find_unpaid_releases(session, trusted):
                        releases += 1
                        others += [] if release is None else [release]
            except DBAPIError:
                if not any(finding.code is FindingCode.LOG_UNREADABLE for finding in reading.findings):
                    raise  # otherwise these statements hit the same damage, which is already reported
            # A log with missing entries proves nothing about other rows: the missing entries may concern them.
            reading.findings += [finding for finding in others if finding.account_id not in reading.holes]
        return Report(
            full=not heads,
            accounts=reading.accounts,
            entries=reading.entries,
            holds=reading.holds,
            releases=releases,
            checkpoints=newest.sequence if newest else 0,
            witnesses=len(signed) + len(outside),
            findings=tuple(reading.findings[:FINDINGS_MAX]),
            heads=reading.heads,
        )

    try:
        report = read()
        if any(finding.code is FindingCode.LOG_UNREADABLE for finding in report.findings):
            session.rollback()  # after a broken page, SQLite refuses to commit even a transaction that only read
        return report
    except OperationalError:  # SQLite: invalid UTF-8
        if session.get_bind().dialect.name != "sqlite":
            raise
    with with_marks(session):
        return read()


def count_entries(session: Session) -> int:
    """Return the number of entries that a full verification would read, according to the accounts' rows."""
    return int(session.scalar(select(func.sum(Account.head_sequence))) or 0)


class _Reading:
    def __init__(
        self,
        session: Session,
        witnesses: Iterable[Witness],
        starts: Mapping[str, Any],
        accepted: Mapping[str, Set[tuple[int, str]]],
    ) -> None:
        self.findings: list[Finding] = []
        self.heads: dict[str, list[Any]] = {}
        self.facts: dict[str, int] = {}  # by account: number of entries that `find_changed_rows` must also find
        self.holes: set[str] = set()  # accounts with missing or unreadable entries
        self.accounts = self.entries = self.holds = 0
        self._session, self._prices, self._starts, self._accepted = session, Prices(), starts, accepted
        self._entries, self._hold_rows = EntryReader(session), RowReader(session, Hold.metadata.tables["holds"])
        self.witnesses: dict[str, dict[int, list[Witness]]] = {}  # of accounts not read yet
        for witness in witnesses:
            self.witnesses.setdefault(witness.account_id, {}).setdefault(witness.sequence, []).append(witness)

    def account(self, row: Row[Any]) -> None:
        """Replay an account's log, and compare it with its row, its holds, and the entries that signatures prove."""
        self.accounts += 1
        if not is_id(str(row.id), "acc"):
            message = "The id of an account does not have the form of an account id."
            self.findings.append(Finding(FindingCode.ACCOUNT_MISMATCH, message))
            return
        log, facts = LogReplay(row.id, self._prices), 0
        accepted, witnesses = self._accepted.get(row.id, frozenset()), dict[int, list[Witness]]()
        for sequence, known in self.witnesses.pop(row.id, {}).items():
            for each in known:  # except those that the account's ACCEPT entries cover
                if (sequence, each.hash) not in accepted or (each.spent_nano or 0) > (row.spent_nano or 0):
                    witnesses.setdefault(sequence, []).append(each)
        try:
            if row.id in self._starts:
                self._resume(log, *self._starts[row.id][:2])
            for sequence in [number for number in witnesses if number <= log.sequence]:
                earlier = self._one(log, sequence)
                _compare(witnesses.pop(sequence), None if earlier is None else earlier.hash)
            for line in self._entries.after(row.id, log.sequence):
                log.apply(line)
                if line.sequence in witnesses:
                    _compare(witnesses.pop(line.sequence), line.hash)
                if len(log.ended) >= _HOLDS_AT_A_TIME:
                    self._compare_holds(log)
                self.entries += 1
                facts += line.kind in beside.COMMITTING_KINDS
        except Fault as fault:
            self._found(fault.code, log, fault.sequence or log.sequence + 1, fault.message)
            return
        except _Contradicted as contradiction:
            self.contradicted(contradiction.args[0], row)
            return
        if self._compare_account(row, log):
            self.heads[row.id], self.facts[row.id] = [log.sequence, log.hash, log.spent_nano], facts
        if row.id not in self.holes:
            self._compare_holds(log, closing=True)
        if witnesses:  # beyond the end of the log
            self.contradicted(witnesses[min(witnesses)][0], row)

    def _resume(self, log: LogReplay, sequence: int, digest: str) -> None:
        """Continue from a head in a checkpoint, as if every entry up to that head had been read."""
        try:
            opening, head = (self._one(log, number) for number in (1, sequence))
            if head is None or head.hash != digest:
                raise _Contradicted(Witness(log.account_id, sequence, digest, "the newest checkpoint"))
            if opening is None:
                raise Fault(FindingCode.ENTRY_MISSING, "entry 1 is missing")
            log.terms = {name: opening.details[name] for name in TERMS}
            log.rate, log.epsilon = opening.details["rate"], opening.details["epsilon"]
            log.created_at = opening.created_at
            for kinds, names in (((EntryKind.LIMIT,), ("epsilon", "rate", "base")), (_FREEZING, ("frozen",))):
                earlier = Entry.account_id == log.account_id, Entry.kind.in_(kinds), Entry.sequence <= sequence
                number = self._session.scalar(select(func.max(Entry.sequence)).where(*earlier))
                entry = None if number is None else self._one(log, number)
                details = {} if entry is None else entry.details
                for name in names:
                    setattr(log, name, details.get(name, getattr(log, name)))
            for name in ("sequence", "hash", "capacity_nano", "spent_nano", "reserved_nano"):
                setattr(log, name, getattr(head, name))
            log.use_filter()
            is_open = Hold.state.in_((HoldState.HELD, HoldState.ARMED))
            job_ids = select(Hold.job_id).where(Hold.account_id == log.account_id, is_open)
            for job_id in self._session.scalars(job_ids):
                self._adopt(log, job_id, sequence)
            log.find_hold = lambda line: self._adopt(log, line.job_id, sequence)
        except (KeyError, TypeError, ValueError, AttributeError, PrivacyError):
            raise Fault(FindingCode.ENTRY_MALFORMED, "or an entry before it is malformed", sequence) from None

    def _adopt(self, log: LogReplay, job_id: str | None, until: int) -> HoldReplay | None:
        """Replay a hold that was open at the checkpoint, from the entries before the checkpoint."""
        if job_id is None:
            return None
        hold = replay_hold(log.account_id, self._entries.about(log.account_id, job_id, until))
        if hold is not None:
            log.open_holds[hold.id] = hold
        return hold

    def _one(self, log: LogReplay, sequence: int) -> Line | None:
        try:
            line = self._entries.one(log.account_id, sequence)
            if line is not None:
                check_hash(log.account_id, line)
        except Fault as fault:
            raise Fault(fault.code, fault.message, sequence) from None
        return line

    def _compare_account(self, row: Row[Any], log: LogReplay) -> bool:
        if log.sequence == 0 or (type(row.head_sequence) is int and row.head_sequence > log.sequence):
            missing = f"entry {log.sequence + 1} is missing"
            return self._found(FindingCode.ENTRY_MISSING, log, log.sequence + 1, missing)
        if (row.head_sequence, row.head_hash) != (log.sequence, log.hash):
            what = "is not the newest entry that the account's row names"
            return self._found(FindingCode.ACCOUNT_MISMATCH, log, log.sequence, what)
        replayed = {name: getattr(log, name) for name in _OF_ACCOUNT} | log.terms
        differing = sorted(name for name, value in replayed.items() if getattr(row, name) != value)
        differing += ["created_at"] if moment(row.created_at) != log.created_at else []
        if differing:
            what = f"implies values that differ from the account's row: {', '.join(differing)}"
            return self._found(FindingCode.ACCOUNT_MISMATCH, log, log.sequence, what)
        return True

    def _compare_holds(self, log: LogReplay, *, closing: bool = False) -> None:
        """Compare hold rows with the replayed holds. Open holds are compared only at the end of the log."""
        replayed = [*log.ended, *log.open_holds.values()] if closing else log.ended
        rows = self._hold_rows.by(hold.id for hold in replayed)
        for hold in replayed:
            row = rows.get(hold.id)
            if row is None:
                self._found(FindingCode.HOLD_MISMATCH, log, hold.sequence, f"opens hold {hold.id}, which has no row")
                continue
            differing = [name for name in _OF_HOLD if row[name] != getattr(hold, name)]
            differing += ["account_id"] if row["account_id"] != log.account_id else []
            attempt = row["attempt"]
            differing += ["attempt"] if type(attempt) is not int or attempt < hold.armed_attempt else []
            if differing:
                what = f"opens hold {hold.id}, whose row differs from its entries: {', '.join(differing)}"
                self._found(FindingCode.HOLD_MISMATCH, log, hold.sequence, what)
        self.holds += len(replayed)
        log.ended.clear()

    def contradicted(self, witness: Witness, row: Row[Any] | None) -> None:
        older = FindingCode.OLDER_THAN_CHECKPOINT if "checkpoint" in witness.source else FindingCode.OLDER_THAN_RECEIPT
        message = (
            f"Account {witness.account_id}: {witness.source} proves entry {witness.sequence}, which is missing or has "
            "another hash. The log was rewritten before or at this entry, or the database is older than the entry, so "
            "later spending could be repeated."
        )
        if witness.spent_nano is not None and row is not None:
            message += f" At that entry {witness.spent_nano} nano-units were spent; the database says {row.spent_nano}."
            if type(row.spent_nano) is int and witness.spent_nano > row.spent_nano:
                message += f" `obscura ledger accept {row.id}` records the difference as spent."
        self.findings.append(Finding(older, message, witness.account_id, witness.sequence))

    def _found(self, code: FindingCode, log: LogReplay, sequence: int, what: str) -> bool:
        subject = "" if what.startswith("entry ") else f"entry {sequence} "
        message = f"Account {log.account_id}: {subject}{what}."
        self.findings.append(Finding(code, message, log.account_id, sequence))
        if code in (FindingCode.ENTRY_MISSING, FindingCode.LOG_UNREADABLE):
            self.holes.add(log.account_id)
        return False


class _Contradicted(Exception):
    """The log contradicts an entry that a signature proves: the exception's argument."""


def _compare(witnesses: Iterable[Witness], digest: str | None) -> None:
    for witness in witnesses:
        if witness.hash != digest:
            raise _Contradicted(witness)
