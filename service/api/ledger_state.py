"""What is known of the ledger's soundness, for admins: what is stopped and why, what was verified, what was signed."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session

from service.audit.arming import verifications
from service.audit.checkpoints import newest_checkpoint
from service.ledger import EVERYWHERE
from service.ledger.stops import arming_stops


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True)


class StopFacts(_Facts):
    """Why no data is opened for an account, or for any."""

    account_id: str | None = Field(description="Null: nothing is opened for any account.")
    code: str = Field(description="Of the first finding, from a closed list.")
    sequence: int | None = Field(description="The first bad entry, where one is concerned.")
    found_at: datetime


class VerificationFacts(_Facts):
    """The newest verification of one kind."""

    kind: Literal["full", "recent"] = Field(description="Recent: only entries since the newest checkpoint were read.")
    verified_at: datetime
    entries: int = Field(description="How many were read.")
    findings: int


class CheckpointFacts(_Facts):
    """The newest signed statement of the heads of all logs."""

    sequence: int
    created_at: datetime
    key_id: str = Field(description="Fingerprint of the key that signed it: SHA-256 of the public key.")


class LedgerRecord(_Facts):
    """What is known about the ledger's soundness."""

    trainings: Literal["open", "stopped"]
    stops: list[StopFacts]
    verifications: list[VerificationFacts]
    checkpoint: CheckpointFacts | None


def read_ledger(session: Session) -> LedgerRecord:
    """Read the state of the ledger's verification."""
    stops = [
        StopFacts(
            account_id=None if row.scope == EVERYWHERE else row.scope,
            code=row.code,
            sequence=row.sequence,
            found_at=row.found_at,
        )
        for row in arming_stops(session)
    ]
    verified = [
        VerificationFacts(kind=row.kind.value, verified_at=row.verified_at, entries=row.entries, findings=row.findings)
        for row in verifications(session)
    ]
    newest = newest_checkpoint(session)
    return LedgerRecord(
        trainings="stopped" if stops else "open",
        stops=stops,
        verifications=verified,
        checkpoint=None
        if newest is None
        else CheckpointFacts(sequence=newest.sequence, created_at=newest.created_at, key_id=newest.key_id),
    )
