"""Tables of the ledger: accounts, holds, append-only entries, checkpoints and arming stops."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, String, false, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from obscura.wire.words import Adjacency, EntryKind, HoldState, Unit, VerificationKind
from service.db.access_tables import DEFAULT_PROJECT
from service.db.base import Base, CanonicalJson, Id, Name, Nano, Sha256, ShortText, partial_index, values_of

_ENDING = "kind IN ('capture', 'return')"
EVERYWHERE = "*"  # the scope of a fault that does not concern a single account
# Codes of findings which show that the database is older than the proofs in storage. They lock the whole installation.
LOCKING = frozenset(
    {
        *("journal_unknown", "journal_ahead", "release_unknown", "dataset_unknown"),
        *("older_than_receipt", "older_than_checkpoint", "checkpoint_missing", "restored"),
    }
)


class Account(Base):
    """A population with one lifetime privacy budget.

    `spent_nano`, `reserved_nano`, `head_sequence` and `head_hash` cache the newest entry, `head` (invariant I8). An
    UPDATE requires that `head_sequence` has not changed. `closed` accounts accept no new data; no entry records this,
    because no amount depends on it. `subjects_key_check` is the check value of the client's key for subject ids: None
    before the first upload, empty if subject ids are sent as plain text.
    """

    __tablename__ = "accounts"
    __table_args__ = (
        CheckConstraint("epsilon > 0", "epsilon_positive"),
        CheckConstraint("delta > 0 AND delta < 1", "delta_open_unit"),
        CheckConstraint("capacity_nano > 0", "capacity_positive"),
        CheckConstraint("spent_nano >= 0", "spent_not_negative"),
        CheckConstraint("reserved_nano >= 0", "held_not_negative"),
        # A limit below the spent budget freezes the account; the spent amount does not change (I13).
        CheckConstraint("frozen OR spent_nano + reserved_nano <= capacity_nano", "within_capacity"),
        CheckConstraint("head_sequence >= 1", "head_sequence_positive"),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    name: Mapped[Name] = mapped_column(unique=True)
    owner: Mapped[Name]
    epsilon: Mapped[float]
    delta: Mapped[float]
    unit: Mapped[Unit] = mapped_column(values_of(Unit, "unit"))
    adjacency: Mapped[Adjacency] = mapped_column(values_of(Adjacency, "adjacency"))
    rate: Mapped[float]
    base: Mapped[float]
    capacity_nano: Mapped[Nano]
    spent_nano: Mapped[Nano]
    reserved_nano: Mapped[Nano]
    frozen: Mapped[bool]
    closed: Mapped[bool] = mapped_column(default=False, server_default=false())
    head_sequence: Mapped[Nano] = mapped_column()
    head_hash: Mapped[Sha256]
    created_at: Mapped[datetime] = mapped_column(index=True)
    project_id: Mapped[Id] = mapped_column(server_default=DEFAULT_PROJECT)
    subjects_key_check: Mapped[str | None] = mapped_column(String(16))

    head: Mapped[Entry | None] = relationship(
        primaryjoin="and_(foreign(Account.id) == Entry.account_id, foreign(Account.head_sequence) == Entry.sequence)",
        lazy="raise_on_sql",
        viewonly=True,
    )

    __mapper_args__ = {"version_id_col": head_sequence, "version_id_generator": False}  # noqa: RUF012 - protocol of SQLAlchemy

    @property
    def left_nano(self) -> int:
        """The nano-units that can still be held; 0 if the limit is below the spent and held budget."""
        return max(self.capacity_nano - self.spent_nano - self.reserved_nano, 0)


class Entry(Base):
    """One immutable row of an account's log; triggers reject UPDATE and DELETE.

    `sequence` counts 1, 2, 3, ... per account without a gap. `capacity_nano`, `spent_nano` and `reserved_nano` are the
    account's balances after this entry.
    """

    __tablename__ = "entries"
    __table_args__ = (
        CheckConstraint("sequence >= 1", "sequence_positive"),
        CheckConstraint("amount_nano >= 0", "amount_not_negative"),
        # I3: one HOLD and at most one terminal entry for each hold.
        partial_index("uq_entries_one_hold", "hold_id", where="kind = 'hold'", unique=True),
        partial_index("uq_entries_one_terminal", "hold_id", where=_ENDING, unique=True),
        partial_index("ix_entries_accepted", "account_id", where="kind = 'accept'"),
    )

    account_id: Mapped[Id] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    sequence: Mapped[Nano] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[EntryKind] = mapped_column(values_of(EntryKind, "kind"))
    hold_id: Mapped[Id | None]
    job_id: Mapped[Id | None] = mapped_column(index=True)
    amount_nano: Mapped[Nano]
    capacity_nano: Mapped[Nano]
    spent_nano: Mapped[Nano]
    reserved_nano: Mapped[Nano]
    details: Mapped[dict[str, Any]] = mapped_column(CanonicalJson())
    previous_hash: Mapped[Sha256]
    hash: Mapped[Sha256]
    created_at: Mapped[datetime]


# The condition for entries that end a hold. SQLite uses a partial index only if a query repeats its condition.
ENDS_A_HOLD = text(f"entries.{_ENDING}")
ACCEPTS_A_LOSS = text("entries.kind = 'accept'")


class Hold(Base):
    """Budget reserved for one job; a job has at most one hold.

    Only the job's attempt with the number `attempt` may write. `armed_attempt` is the last attempt that opened the
    private data (0: none). `last_sequence` and `updated_at` come from the newest entry about this hold, `last_entry`.
    An UPDATE requires that `last_sequence` has not changed. `job_id` has no foreign key: the ledger outlives the jobs.
    """

    __tablename__ = "holds"
    __table_args__ = (
        CheckConstraint("amount_nano > 0", "amount_positive"),
        CheckConstraint("charged_nano >= 0 AND charged_nano <= amount_nano", "charged_within_hold"),
        CheckConstraint("captured_nano >= 0 AND captured_nano <= amount_nano", "captured_within_hold"),
        CheckConstraint("charged_nano = 0 OR state IN ('armed', 'captured')", "charged_only_when_armed"),
        CheckConstraint("captured_nano = 0 OR state = 'captured'", "captured_only_when_captured"),
        CheckConstraint("attempt >= 0 AND armed_attempt >= 0 AND armed_attempt <= attempt", "attempts_in_order"),
        CheckConstraint("last_sequence >= 2", "last_sequence_after_opening"),
        partial_index("ix_holds_open", "account_id", "created_at", where="state IN ('held', 'armed')"),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    account_id: Mapped[Id] = mapped_column(ForeignKey("accounts.id"), index=True)
    job_id: Mapped[Id] = mapped_column(unique=True)
    state: Mapped[HoldState] = mapped_column(values_of(HoldState, "state"))
    amount_nano: Mapped[Nano]
    charged_nano: Mapped[Nano]
    captured_nano: Mapped[Nano]
    attempt: Mapped[int]
    armed_attempt: Mapped[int]
    last_sequence: Mapped[Nano] = mapped_column()
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]

    account: Mapped[Account] = relationship(lazy="raise_on_sql", viewonly=True)
    last_entry: Mapped[Entry | None] = relationship(
        primaryjoin="and_(foreign(Hold.account_id) == Entry.account_id, foreign(Hold.last_sequence) == Entry.sequence)",
        lazy="raise_on_sql",
        viewonly=True,
    )

    __mapper_args__ = {"version_id_col": last_sequence, "version_id_generator": False}  # noqa: RUF012 - protocol of SQLAlchemy


class Checkpoint(Base):
    """The signed heads of all accounts at one time. Checkpoints are chained and append-only, like entries.

    `heads` maps an account's id to the head's [sequence, hash, spent balance].
    """

    __tablename__ = "checkpoints"
    __table_args__ = (CheckConstraint("sequence >= 1", "sequence_positive"),)

    sequence: Mapped[Nano] = mapped_column(primary_key=True, autoincrement=False)
    heads: Mapped[dict[str, Any]] = mapped_column(CanonicalJson())
    previous_hash: Mapped[Sha256]
    hash: Mapped[Sha256]
    key_id: Mapped[Sha256]
    signature: Mapped[str] = mapped_column(String(128))
    created_at: Mapped[datetime]


class ArmingStop(Base):
    """A finding of a verification. Until it is corrected, no job of the account opens private data.

    `scope` is the account's id, or `*` for all accounts. Findings have their own table, because nothing should be
    appended to a broken log.
    """

    __tablename__ = "arming_stops"

    scope: Mapped[Id] = mapped_column(primary_key=True)
    code: Mapped[ShortText]
    sequence: Mapped[int | None] = mapped_column(BigInteger)
    found_at: Mapped[datetime]


class Verification(Base):
    """The newest verification of each kind, for operators. Only signed checkpoints and receipts are proof."""

    __tablename__ = "verifications"

    kind: Mapped[VerificationKind] = mapped_column(values_of(VerificationKind, "kind"), primary_key=True)
    entries: Mapped[Nano]
    findings: Mapped[int]
    verified_at: Mapped[datetime]
