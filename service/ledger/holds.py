"""Two-phase spending. A hold reserves budget for a job; it goes HELD -> RETURNED or HELD -> ARMED -> CAPTURED.

docs/contribute/architecture.md numbers the invariants (I1-I14). Functions here do not commit: a step is durable once
the caller commits. They raise StaleAttempt if a newer attempt has taken over, or the hold has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from obscura.wire.words import EntryKind, HoldState
from privacy.accounting.filter import Filter
from service import errors
from service.db.base import Base, new_id
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Sweep
from service.db.ledger_tables import Account, Hold
from service.ledger.accounts import insufficient, require_unfrozen
from service.ledger.chain import ORDER_COLUMNS, columns_of, order_digests, parts_of_order
from service.ledger.rows import append, entry_of_hold, entry_time, lock_account, lock_hold
from service.ledger.stops import require_armable

NANO_MAX = 2**63 - 1


class RateChanged(errors.Conflict):
    """The account's limit was raised after a price was computed. A raise changes prices."""


def lock_to_hold(session: Session, account_id: str, priced_by: Filter) -> Account:
    """Lock an account, so that a price that was computed with the filter `priced_by` can be held.

    Pricing may take seconds, and other writers should not wait for it. So the account is locked afterwards, and a price
    computed at an old rate is rejected. The proof on raises in docs/explanation/accounting.md depends on this check.

    Raises:
        RateChanged: a raise has changed the rate since. End the transaction, or roll back to before the lock, and
            compute the price again.
        AccountFrozen: the account takes no new holds.
        ArmingStopped: a check of the ledger found a fault, so the job would wait while its price is held.
    """
    account = lock_account(session, account_id)
    require_armable(session, account_id)
    require_unfrozen(account)
    if (account.rate, account.base) != (priced_by.rate, priced_by.base):
        raise RateChanged(
            f"The limit of account '{account.name}' was raised while the cost of this job was computed, so the cost "
            "changed. Nothing was reserved. Retry.",
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
    details: Mapping[str, Any],
    now: datetime,
) -> Hold:
    """Reserve budget for a job if spent + held + amount <= capacity.

    Args:
        amount_nano: the plan's price, a whole number > 0.
        priced_by: the account's filter when the price was computed.
        details: public JSON facts from which the price can be recomputed.

    Raises:
        InsufficientBudget: too little budget is left; the error has all numbers.
        Conflict: the job has a hold already.
        RateChanged, AccountFrozen, ArmingStopped: as `lock_to_hold`.
    """
    _require_amount(amount_nano)
    account = lock_to_hold(session, account_id, priced_by)
    if amount_nano > account.left_nano:
        raise insufficient(account, amount_nano)
    if session.scalar(select(Hold.id).where(Hold.job_id == job_id)) is not None:
        raise errors.Conflict("This job has a hold already.", job_id=job_id)
    new = Hold(
        id=new_id("hold"),
        account_id=account.id,
        job_id=job_id,
        state=HoldState.HELD,
        amount_nano=amount_nano,
        charged_nano=0,
        captured_nano=0,
        attempt=0,
        armed_attempt=0,
        created_at=entry_time(session, account, EntryKind.HOLD, now),
    )
    append(session, account, EntryKind.HOLD, new, amount_nano=amount_nano, held=amount_nano, details=details, now=now)
    return new


def fence(session: Session, *, hold_id: str, attempt: int, now: datetime) -> None:  # noqa: ARG001 - as for every step
    """Allow only this attempt to write to a hold. Raise StaleAttempt if a later attempt may, or the hold has ended."""
    hold = lock_hold(session, hold_id)  # also locks the account: another step may follow in this transaction
    if attempt < hold.attempt or hold.state not in (HoldState.HELD, HoldState.ARMED):
        raise stale_attempt(hold, attempt)
    hold.attempt = attempt
    session.flush()


def arm(session: Session, *, hold_id: str, attempt: int, now: datetime) -> Hold:
    """Allow an attempt to open the private data. Commit before the first private read (I4).

    Idempotent for one attempt. A later attempt that resumes the job must arm again.

    Raises:
        AccountFrozen: the account was frozen before this hold was first armed.
        ArmingStopped: a check of the ledger found a fault that is not yet corrected.
    """
    hold = _lock_for(session, hold_id, attempt)
    require_armable(session, hold.account_id)
    if hold.armed_attempt == attempt:
        return hold
    if hold.account.frozen and hold.state is HoldState.HELD:
        raise errors.AccountFrozen(
            f"Account '{hold.account.name}' was frozen, so a job that has not yet read private data cannot start."
        )
    counts = released(hold)
    details: dict[str, Any] = {"attempt": attempt, "charged_nano": hold.charged_nano, "hold_nano": hold.amount_nano}
    details |= {"released": counts} if counts else {}
    moves = {"state": HoldState.ARMED, "armed_attempt": attempt}
    append(session, hold.account, EntryKind.ARM, hold, moves=moves, details=details, now=now)
    return hold


def charge(
    session: Session,
    *,
    hold_id: str,
    attempt: int,
    amount_nano: int,
    stage: str,
    event: Mapping[str, Any],
    now: datetime,
    paid_as_whole: int | None = None,
) -> int:
    """Record a charge before the release that it pays for. Replayed steps are charged again (I5).

    A stage priced as a whole is charged in full with its first release. Further releases of the stage cost nothing, but
    they are counted, and rejected above the number that the price covers.

    Commit before the release is computed.

    Args:
        amount_nano: a whole number > 0; for a stage priced as a whole, the price of the stage.
        stage: a stage of the plan; public.
        event: the paid event in the form of `Event.to_json`, from which the price can be recomputed; public.
        paid_as_whole: the number of releases of the stage that `amount_nano` pays for together; None if it pays for
            this event alone.

    Returns:
        The hold's charged amount so far, in nano-units.

    Raises:
        HoldExhausted: the charge would exceed the hold, or the releases would exceed the number that the price covers.
            Nothing was charged and nothing may be released.
        Conflict: the hold is not armed by this attempt.
    """
    _require_amount(amount_nano)
    hold = _lock_for(session, hold_id, attempt)
    if hold.armed_attempt != attempt:
        raise _wrong_state(hold, "charged")
    counts = released(hold)
    if paid_as_whole is not None:
        amount_nano = 0 if counts.get(stage) else amount_nano
        counts[stage] = counts.get(stage, 0) + event["count"]
    left_nano = hold.amount_nano - hold.charged_nano
    numbers = {"requested_nano": amount_nano, "left_nano": left_nano, "hold_nano": hold.amount_nano}
    if amount_nano > left_nano:
        raise errors.HoldExhausted(
            f"This charge needs {amount_nano} nano-units; the hold has {left_nano} of {hold.amount_nano} left.",
            **numbers,
        )
    if paid_as_whole is not None and counts[stage] > paid_as_whole:
        raise errors.HoldExhausted(
            f"The cost of stage {stage} covers {paid_as_whole} releases, including repeats; with this charge there "
            f"would be {counts[stage]}.",
            **numbers,
        )
    moves = {"charged_nano": hold.charged_nano + amount_nano}
    details: dict[str, Any] = {"attempt": attempt, "stage": stage, "event": dict(event)}
    details |= {**moves, "hold_nano": hold.amount_nano}
    details |= {"released": counts} if counts else {}
    append(
        session, hold.account, EntryKind.CHARGE, hold, moves=moves, amount_nano=amount_nano, details=details, now=now
    )
    return hold.charged_nano


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
    """Spend the charged amount and return the rest of the hold. Idempotent.

    Args:
        artifact_sha256: hash of the artifact that becomes readable (I7); None when nothing is published.
        reason: public.
        release: id and digest (`chain.row_digest`) of the release's row, if an artifact is published.

    Raises:
        Conflict: the hold is not armed, was captured for another artifact, or has no charge to pay for the artifact.
    """
    reason = errors.short_reason(reason)
    hold = _lock_for(session, hold_id, attempt, ended=True)
    if hold.state is HoldState.CAPTURED:
        end = entry_of_hold(session, hold_id, EntryKind.CAPTURE)
        if end.details["artifact_sha256"] == artifact_sha256:
            return hold
    if hold.state is not HoldState.ARMED:
        raise _wrong_state(hold, "captured")
    if artifact_sha256 is not None and hold.charged_nano == 0:
        raise errors.Conflict(
            "This artifact was not published: its hold has no charge, so no privacy cost was recorded for it."
        )
    captured_nano = hold.charged_nano
    details: dict[str, Any] = {"attempt": attempt, "artifact_sha256": artifact_sha256, "reason": reason}
    details |= {"returned_nano": hold.amount_nano - captured_nano}
    details |= {} if release is None else {"release": dict(release)}
    append(
        session,
        hold.account,
        EntryKind.CAPTURE,
        hold,
        moves={"state": HoldState.CAPTURED, "captured_nano": captured_nano},
        amount_nano=captured_nano,
        spent=captured_nano,
        held=-hold.amount_nano,
        details=details,
        now=now,
    )
    return hold


def return_hold(session: Session, *, hold_id: str, reason: str, now: datetime) -> Hold:
    """Return a hold that was never armed to the account. Idempotent. Raise Conflict if it was armed."""
    reason = errors.short_reason(reason)
    hold = lock_hold(session, hold_id)
    if hold.state is HoldState.RETURNED:
        return hold
    if hold.state is not HoldState.HELD:
        raise _wrong_state(hold, "returned")
    append(
        session,
        hold.account,
        EntryKind.RETURN,
        hold,
        moves={"state": HoldState.RETURNED},
        amount_nano=hold.amount_nano,
        held=-hold.amount_nano,
        details={"reason": reason},
        now=now,
    )
    return hold


def settle(session: Session, *, hold_id: str, attempt: int, reason: str, now: datetime) -> Hold:
    """Close the hold of a job that publishes nothing: return it if it was never armed, otherwise capture the charges.

    A job that was never claimed has attempt 0.
    """
    hold = lock_hold(session, hold_id)
    if attempt != hold.attempt:
        raise stale_attempt(hold, attempt)
    if hold.state in (HoldState.HELD, HoldState.RETURNED):
        return return_hold(session, hold_id=hold_id, reason=reason, now=now)
    return capture(session, hold_id=hold_id, attempt=attempt, artifact_sha256=None, reason=reason, now=now)


def order_of(session: Session, job: Job, secret: str) -> dict[str, str]:
    """Return the digests that the HOLD entry of a training commits to, by part. The job need not be stored yet."""
    tables: dict[str, type[Base]] = {"datasets": Dataset, "sweeps": Sweep}
    order = {name: getattr(job, name) for name in ORDER_COLUMNS}
    parts = {}
    for part, (table, row_id) in parts_of_order(order).items():
        row = session.get(tables[table], row_id)
        if row is not None:
            parts[part] = (table, columns_of(row))
    return order_digests(order, secret, parts)


def require_unchanged(session: Session, job: Job, secret: str) -> None:
    """Raise LedgerCorruption if a training has changed since its price was held. Call it before arming."""
    if job.hold_id is None:
        raise errors.LedgerCorruption("Ledger: a training has no hold.", job_id=job.id)
    entry = entry_of_hold(session, job.hold_id, EntryKind.HOLD)
    held, expected = entry.details["order"], order_of(session, job, secret)
    changed = sorted(part for part in held.keys() | expected.keys() if held.get(part) != expected.get(part))
    if (entry.job_id, entry.account_id) != (job.id, job.account_id):
        changed.append("payer")
    if changed:
        raise errors.LedgerCorruption(
            f"Ledger: a training was changed after its price was held: {', '.join(changed)}. No data was opened.",
            job_id=job.id,
            changed=changed,
        )


def released(hold: Hold) -> dict[str, int]:
    """Return the number of logged releases of a hold, by stage, for stages priced as a whole."""
    assert hold.last_entry is not None  # `check_hold` has seen it
    return dict(hold.last_entry.details.get("released", {}))


def stale_attempt(row: Hold | Job, attempt: int) -> errors.StaleAttempt:
    """Return the error for an attempt that may no longer write."""
    return errors.StaleAttempt(
        f"Attempt {attempt} may no longer write: attempt {row.attempt} is {row.state.value}.",
        attempt=attempt,
        current_attempt=row.attempt,
    )


def _lock_for(session: Session, hold_id: str, attempt: int, *, ended: bool = False) -> Hold:
    """Lock a hold for its current attempt. Reject a hold that has ended unless `ended` is set."""
    hold = lock_hold(session, hold_id)
    if attempt < 1 or attempt != hold.attempt:  # I6: attempts count from 1; no attempt 0 may write
        raise stale_attempt(hold, attempt)
    if not ended and hold.state not in (HoldState.HELD, HoldState.ARMED):
        raise stale_attempt(hold, attempt)
    return hold


def _require_amount(amount_nano: int) -> None:
    if isinstance(amount_nano, bool) or not isinstance(amount_nano, int) or not 0 < amount_nano <= NANO_MAX:
        raise errors.InvalidInput("amount_nano must be a whole number of nano-units above 0.")


def _wrong_state(hold: Hold, action: str) -> errors.Conflict:
    return errors.Conflict(f"A hold that is {hold.state.value} cannot be {action}.", hold_id=hold.id)
