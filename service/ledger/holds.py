"""Two-phase spending: a hold goes HELD -> RETURNED or HELD -> ARMED -> CAPTURED.

Invariant numbers (I1-I14) are those of docs/states.md. Nothing here commits: what a step promises holds once the
caller's transaction has committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from obscura.wire.words import EntryKind, HoldState
from privacy.accounting.filter import Filter
from service.db.base import new_id
from service.errors import AccountFrozen, Conflict, HoldExhausted, short_reason
from service.ledger.accounts import insufficient, require_unfrozen
from service.ledger.chain import Entry
from service.ledger.records import Account, Hold
from service.ledger.rows import (
    append,
    dated,
    entry_of_hold,
    lock_account,
    lock_hold,
    lock_hold_and_entry,
    require_attempt,
    stale,
    whole,
    wrong_state,
)
from service.ledger.statements import hold_of_job, hold_row, move_hold
from service.ledger.stops import require_armable


class RateChanged(Conflict):
    """The account's limit was raised after a price was found: at the new rate it may be another one."""


def lock_to_hold(session: Session, account_id: str, priced_by: Filter) -> Account:
    """Lock an account to hold what was priced before it was locked.

    Finding a price may take seconds, and nobody should wait for them: so the account is locked afterwards, and a price
    of another rate is refused. The proof on raises in docs/accounting.md rests on that.

    Args:
        priced_by: the account's filter when the price was found.

    Raises:
        RateChanged: a raise has changed the rate since; end the transaction, or roll back to before the lock, and price
            anew.
        AccountFrozen: the account takes no new holds.
    """
    account = lock_account(session, account_id)
    require_armable(session, account_id)  # else the job would wait, with its price held, and nothing would say why
    require_unfrozen(account)
    if (account.rate, account.base) != (priced_by.rate, priced_by.base):
        raise RateChanged(
            f"The limit of account *{account.name}* was raised while this was being priced, which changes prices. "
            "Nothing was held. Ask again.",
            rate=account.rate,
            rate_of_the_price=priced_by.rate,
        )
    return account


def hold(
    session: Session,
    *,
    account_id: str,
    job_id: str,
    amount_nano: int,
    priced_by: Filter,
    now: datetime,
    details: Mapping[str, Any] | None = None,
) -> Hold:
    """Reserve budget for a job; the filter admits it only if spent + held + amount <= capacity.

    Args:
        job_id: at most one hold for each job.
        amount_nano: the plan's price, a whole number > 0.
        priced_by: the account's filter when the price was found.
        details: public JSON facts from which the price can be recomputed.

    Raises:
        RateChanged: the price is of a rate that the account no longer has.
        InsufficientBudget: too little is left; carries all numbers.
        AccountFrozen: the account takes no new holds.
        ArmingStopped: a check of the ledger found a fault and nobody has mended it.
        Conflict: the job has a hold already.
    """
    amount_nano = whole(amount_nano, "amount_nano")
    account = lock_to_hold(session, account_id, priced_by)
    if amount_nano > account.left_nano:
        raise insufficient(account, amount_nano)
    if hold_of_job(session, job_id) is not None:
        raise Conflict("This job has a hold already.", job_id=job_id)
    opened_at = dated(session, account, EntryKind.HOLD, now)
    reserved = Hold(
        id=new_id("hold"),
        account_id=account.id,
        job_id=job_id,
        state=HoldState.HELD,
        amount_nano=amount_nano,
        charged_nano=0,
        captured_nano=0,
        attempt=0,
        armed_attempt=0,
        last_sequence=account.head_sequence + 1,
        created_at=opened_at,
        updated_at=opened_at,
    )
    append(
        session, account, EntryKind.HOLD, reserved, amount_nano=amount_nano, held=amount_nano, details=details, now=now
    )
    return reserved


def fence(session: Session, *, hold_id: str, attempt: int, now: datetime) -> None:  # noqa: ARG001 - as for every step
    """Let only this attempt (and no earlier one) write to the hold from now on.

    Raises:
        StaleAttempt: a later attempt has taken over, or the hold has ended.
    """
    _account, reserved = lock_hold(session, hold_id)  # both, in the usual order: a step may follow in this transaction
    if attempt < reserved.attempt:
        raise stale(reserved, attempt)
    _require_open(reserved, attempt)
    move_hold(session, reserved, {"attempt": attempt})


def arm(session: Session, *, hold_id: str, attempt: int, now: datetime) -> Hold:
    """Open the private data to an attempt. Must be committed before the first private read (I4).

    Arming twice with the same attempt changes nothing; a later attempt that resumes arms again.

    Raises:
        StaleAttempt: the attempt has been superseded, or the hold has ended.
        AccountFrozen: the account was frozen before this hold was first armed.
        ArmingStopped: a check of the ledger found a fault and nobody has mended it.
    """
    account, reserved, last = lock_hold_and_entry(session, hold_id)
    require_attempt(reserved, attempt)
    _require_open(reserved, attempt)
    require_armable(session, account.id)
    if reserved.armed_attempt == attempt:
        return reserved
    if account.frozen and reserved.state is HoldState.HELD:
        raise AccountFrozen(f"Account *{account.name}* was frozen; a job that has not read its data may not start.")
    append(
        session,
        account,
        EntryKind.ARM,
        reserved,
        moves={"state": HoldState.ARMED, "armed_attempt": attempt},
        details={
            "attempt": attempt,
            "charged_nano": reserved.charged_nano,
            "hold_nano": reserved.amount_nano,
            **_tally(_released_by(last)),
        },
        now=now,
    )
    return reserved


def charge(
    session: Session,
    *,
    hold_id: str,
    attempt: int,
    amount_nano: int,
    stage: str,
    now: datetime,
    event: Mapping[str, Any] | None = None,
    paid_as_whole: int | None = None,
) -> int:
    """Journal a charge ahead of the release it pays for. Replayed steps are charged again (I5).

    A stage that is priced as a whole is charged all of its price with its first release. The others cost nothing more,
    but are counted, and refused beyond what the price pays for.

    Args:
        session: in a writing transaction, to be committed before the release is made.
        attempt: the one that armed the hold.
        amount_nano: a whole number > 0; of a stage priced as a whole, the price of the stage.
        stage: of the plan; public.
        event: what is paid for, as `Event.to_json` writes it, from which the price can be recomputed; public.
        paid_as_whole: how many releases of the stage `amount_nano` pays for together; None where it pays for the event.

    Returns:
        The hold's charged amount so far, in nano-units.

    Raises:
        HoldExhausted: the charge would exceed the hold, or the releases those that were priced; nothing was charged
            and nothing may be released.
        StaleAttempt: the attempt has been superseded, or the hold has ended.
        Conflict: the hold is not armed by this attempt.
    """
    amount_nano = whole(amount_nano, "amount_nano")
    account, reserved, last = lock_hold_and_entry(session, hold_id)
    require_attempt(reserved, attempt)
    _require_open(reserved, attempt)
    if reserved.armed_attempt != attempt:
        raise wrong_state(reserved, "charged")
    counts = _released_by(last)
    if paid_as_whole is not None:
        assert event is not None
        amount_nano = 0 if counts.get(stage) else amount_nano
        counts[stage] = counts.get(stage, 0) + event["count"]
    charged_nano = reserved.charged_nano + amount_nano
    left_nano = reserved.amount_nano - reserved.charged_nano
    if amount_nano > left_nano:
        raise HoldExhausted(
            f"This charge needs {amount_nano} nano-units; the hold has {left_nano} of {reserved.amount_nano} left.",
            requested_nano=amount_nano,
            left_nano=left_nano,
            hold_nano=reserved.amount_nano,
        )
    if paid_as_whole is not None and counts[stage] > paid_as_whole:
        raise HoldExhausted(
            f"The price of stage {stage} pays for {paid_as_whole} releases, repeated ones included; these would make "
            f"{counts[stage]}.",
            requested_nano=amount_nano,
            left_nano=left_nano,
            hold_nano=reserved.amount_nano,
        )
    append(
        session,
        account,
        EntryKind.CHARGE,
        reserved,
        moves={"charged_nano": charged_nano},
        amount_nano=amount_nano,
        details={
            "attempt": attempt,
            "stage": stage,
            "charged_nano": charged_nano,
            "hold_nano": reserved.amount_nano,
            **({} if event is None else {"event": dict(event)}),
            **_tally(counts),
        },
        now=now,
    )
    return charged_nano


def capture(
    session: Session,
    *,
    hold_id: str,
    attempt: int,
    artifact_sha256: str | None,
    reason: str,
    now: datetime,
    release: Mapping[str, str] | None = None,
) -> Hold:
    """Spend what was charged and return the rest of the hold, in one transaction. Replaying it changes nothing.

    Args:
        attempt: the current one.
        artifact_sha256: hash of the artifact that becomes readable (I7); None when nothing is published.
        reason: public, short.
        release: id and digest of the row that shows the artifact (`commitments.row_digest`), where one is published.

    Raises:
        StaleAttempt: the attempt has been superseded.
        Conflict: the hold is not armed, was captured for something else, or an artifact was never paid for.
        InvalidInput: there is no reason, or it is too long.
    """
    reason = short_reason(reason)  # before anything is written
    account, reserved = lock_hold(session, hold_id)
    require_attempt(reserved, attempt)
    if reserved.state is HoldState.CAPTURED:
        ended = entry_of_hold(session, hold_id, EntryKind.CAPTURE)
        if ended.details["artifact_sha256"] == artifact_sha256:
            return reserved
    if reserved.state is not HoldState.ARMED:
        raise wrong_state(reserved, "captured")
    if artifact_sha256 is not None and reserved.charged_nano == 0:
        raise Conflict("Nothing was charged for this artifact, so it cannot be private: it is not published.")
    captured_nano, returned_nano = reserved.charged_nano, reserved.amount_nano - reserved.charged_nano
    append(
        session,
        account,
        EntryKind.CAPTURE,
        reserved,
        moves={"state": HoldState.CAPTURED, "captured_nano": captured_nano},
        amount_nano=captured_nano,
        spent=captured_nano,
        held=-reserved.amount_nano,
        details={
            "attempt": attempt,
            "artifact_sha256": artifact_sha256,
            "reason": reason,
            "returned_nano": returned_nano,
            **({} if release is None else {"release": dict(release)}),
        },
        now=now,
    )
    return reserved


def return_hold(session: Session, *, hold_id: str, reason: str, now: datetime) -> Hold:
    """Return a hold that never opened its private data. Replaying it changes nothing.

    Raises:
        Conflict: the hold was armed; it can only be captured.
        InvalidInput: there is no reason, or it is too long.
    """
    reason = short_reason(reason)  # before anything is written
    account, reserved = lock_hold(session, hold_id)
    if reserved.state is HoldState.RETURNED:
        return reserved
    if reserved.state is not HoldState.HELD:
        raise wrong_state(reserved, "returned")
    amount_nano = reserved.amount_nano
    append(
        session,
        account,
        EntryKind.RETURN,
        reserved,
        moves={"state": HoldState.RETURNED},
        amount_nano=amount_nano,
        held=-amount_nano,
        details={"reason": reason},
        now=now,
    )
    return reserved


def settle(session: Session, *, hold_id: str, attempt: int, reason: str, now: datetime) -> Hold:
    """Close the hold of a job that publishes nothing: returned when it was never armed, else captured as charged.

    Raises:
        StaleAttempt: the attempt has been superseded. A job that was never claimed has attempt 0.
        InvalidInput: there is no reason, or it is too long.
    """
    _account, reserved = lock_hold(session, hold_id)
    if attempt != reserved.attempt:
        raise stale(reserved, attempt)
    if reserved.state in (HoldState.HELD, HoldState.RETURNED):
        return return_hold(session, hold_id=hold_id, reason=reason, now=now)
    return capture(session, hold_id=hold_id, attempt=attempt, artifact_sha256=None, reason=reason, now=now)


def released(session: Session, hold_id: str) -> dict[str, int]:
    """Return how many releases of a hold are in the log, by stage, of those stages that are priced as a whole."""
    row = hold_row(session, hold_id)
    return {} if row is None else _released_by(row[1])


def _released_by(last: Entry | None) -> dict[str, int]:
    """Return what the newest entry about a hold counts."""
    return {} if last is None else dict(last.details.get("released", {}))


def _tally(counts: Mapping[str, int]) -> dict[str, Any]:
    return {"released": dict(counts)} if counts else {}


def _require_open(reserved: Hold, attempt: int) -> None:
    if reserved.state not in (HoldState.HELD, HoldState.ARMED):
        raise stale(reserved, attempt)
