"""Accept a restored database's losses: admins record spending and uploads that only the storage proves.

The spending becomes an entry in the account's log. Uploads are fingerprinted again, so that no image gets a second
budget. After the last account, withdrawals are applied again and the installation is unlocked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from obscura.wire.budgets import EPSILON_MOST
from obscura.wire.words import UNFINISHED, Adjacency, DatasetState, DecisionAction, DecisionState, Unit, Visibility
from service import inspection, jobs, ledger
from service.audit import data_folder, findings
from service.datasets import fingerprints, reading, vault, withdrawal
from service.db.access_tables import Admin, ApiKey, Decision, SignIn
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.db.session import SessionFactory, transaction
from service.errors import Conflict, Forbidden, InvalidInput, NotFound, ObscuraError, short_reason
from service.identity import auth, decisions
from service.ingest import array_files
from service.logs import get_logger
from service.settings import Settings
from service.storage import journals

LOST = "lost"  # failure code of a dataset that a restored database lacked
# Terms for an unknown account without a receipt.
_TERMS: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "unit": Unit.RECORD, "adjacency": Adjacency.ADD_REMOVE}


@dataclass(frozen=True)
class Outcome:
    """The result of accepting an account's losses."""

    request_id: str | None  # of the request that another admin must approve; None if the losses are recorded
    recorded_nano: int  # recorded as spent
    keys_revoked: int
    locked: bool
    remaining: tuple[str, ...]  # accounts whose losses are not accepted yet


def accept(
    settings: Settings,
    factory: SessionFactory,
    account_id: str,
    token: str,
    *,
    reason: str,
    now: datetime,
    given: Sequence[Path] = (),
    epsilon: float | None = None,
    without_images: bool = False,
) -> Outcome:
    """Record an account's spending and uploads that storage proves and the database lacks. No service needs to run.

    If two admins have usable keys, the first call makes a request. The same call with another admin's key approves it.

    Args:
        account_id: the account's id or name; a missing account has only an id.
        token: an API key of an admin of the installation.
        reason: recorded in the log.
        given: receipts from users, which may prove more spending.
        epsilon: record at least this epsilon as spent.
        without_images: accept that images and subjects of some uploads cannot be recognised any more.
    """
    if epsilon is not None and not epsilon >= 0:
        raise InvalidInput(f"The smallest epsilon to record is {epsilon:g}. It must be 0 or more.")
    reason = short_reason(reason)
    with transaction(factory, read_only=True) as session:
        account_id = session.scalar(select(ledger.Account.id).where(ledger.Account.name == account_id)) or account_id
    loss = _loss_of(settings, factory, account_id, given)
    with transaction(factory) as session:
        key = decisions.acting_key(session, auth.authenticate(session, token, now=now).id)
        admin = session.get_one(Admin, key.admin_id)
        if admin.project_id is not None:
            raise Forbidden("Only an admin of the installation may accept what a restored database lacks.")
        waiting = Decision.action == DecisionAction.ACCEPT, Decision.state == DecisionState.PENDING
        pending = session.scalar(select(Decision).where(*waiting, Decision.name == account_id))
        if pending is not None and decisions.state_at(pending, now) == decisions.EXPIRED:
            pending = None
        able = select(Admin).join(ApiKey, ApiKey.admin_id == Admin.id)
        able = able.where(Admin.removed_at.is_(None), Admin.project_id.is_(None), auth.is_usable(now))
        voices = {decisions.voice_of(session, each) for each in session.scalars(able)}
        if pending is None and voices - {decisions.voice_of(session, admin)}:
            about = {"name": account_id, "project_id": None}
            action = DecisionAction.ACCEPT
            asked = decisions.ask(session, action, account_id, asking=key, reason=reason, now=now, **about)
            return Outcome(asked.id, 0, 0, True, ())
        key_id, request_id = key.id, None if pending is None else pending.id
        if pending is not None and pending.requested_by == key.admin_id:
            raise Conflict(
                f"Request {pending.id} waits: another admin must run this command with a key of their own.",
                request_id=pending.id,
            )
        if not loss.known:
            # The account is missing: open it again under its id, closed to new data, and freeze it.
            unknown = "unknown since a restore"
            terms = _TERMS | {term: loss.terms[term] for term in _TERMS if term in loss.terms}
            terms |= {"name": f"restored {account_id.removeprefix('acc_')[:8]}", "owner": unknown}
            ledger.open_account(session, account_id=account_id, now=now, accept_large_delta=True, **terms)
            ledger.limits.set_frozen(session, account_id=account_id, frozen=True, reason=unknown, now=now)
    _fingerprint_uploads(settings, factory, loss, now=now, without_images=without_images)
    recorded_nano = keys_revoked = 0

    def effect(session: Session, decision: Decision | None, approving: ApiKey, at: datetime) -> None:
        nonlocal recorded_nano, keys_revoked
        facts: dict[str, Any] = {"reason": reason, "by": approving.id, "by_admin": approving.admin_id}
        if decision is not None:
            facts |= {"request_id": decision.id}
            facts |= {name: getattr(decision, name) for name in ("reason", "requested_with", "requested_by")}
        recorded_nano = _record(session, loss, facts, epsilon, at)
        # Revocations since the backup are lost, so revoke all keys except admins' keys, and end every session.
        session.execute(delete(SignIn))
        has_token = or_(ApiKey.person_id.is_(None), ApiKey.created_by.is_not(None))
        keys_revoked = auth.revoke(session, ApiKey.admin_id.is_(None) & has_token, now=at, include_created=False)

    with transaction(factory) as session:
        if request_id is None:
            effect(session, None, session.get_one(ApiKey, key_id), now)
        else:
            decisions.decide(session, request_id, key_id, now, {DecisionAction.ACCEPT: effect}, approved=True)
    remaining = tuple(inspection.find_losses(settings, factory))
    locked = bool(remaining) or not _unlock(settings, factory, now=now)
    return Outcome(None, recorded_nano, keys_revoked, locked, remaining)


def _loss_of(settings: Settings, factory: SessionFactory, account_id: str, given: Sequence[Path]) -> data_folder.Loss:
    with transaction(factory, read_only=True) as session:
        if ledger.stops.lock_of(session) is None:
            raise Conflict("The installation is not locked: there is nothing to accept.")
    report = inspection.inspect_ledger(settings, factory)
    others = sorted({each.code.value for each in report.findings if each.stops} - ledger.stops.LOCKING)
    if others:
        raise Conflict(f"The ledger has other faults: {', '.join(others)}. Correct them first; nothing was changed.")
    losses = inspection.find_losses(settings, factory, given)
    if account_id not in losses:
        names = ", ".join(losses) or "no account"
        raise NotFound(
            f"Nothing of account {account_id} is missing. Accounts with missing spending or uploads: {names}."
        )
    return losses[account_id]


def _fingerprint_uploads(
    settings: Settings, factory: SessionFactory, loss: data_folder.Loss, *, now: datetime, without_images: bool
) -> None:
    """Fingerprint the uploads that the database lacks. They take effect once the account's losses are recorded."""
    stored = vault.Vault.of(settings)
    uploads, unreadable = journals.read_uploaded(stored.storage), list(loss.unattributed)
    with transaction(factory, read_only=True) as session:
        project_id = ledger.get_account(session, loss.account_id).project_id

    def keep(dataset_id: str, shape: tuple[int, ...] = (1, 1)) -> int:
        """Insert a failed dataset for an upload that the database lacks; return its upload number."""
        upload = uploads.get(dataset_id)
        with transaction(factory) as session:
            dataset = session.get(Dataset, dataset_id)
            if dataset is None:
                dataset = Dataset(id=dataset_id, name="restored", visibility=Visibility.PRIVATE, classes=["unknown"])
                dataset.height, dataset.width, dataset.channels = (*shape, 1)[:3]
                dataset.records_declared, dataset.created_at, dataset.upload_attempt = 1, now, 1
                dataset.project_id = project_id
                session.add(dataset)
            dataset.account_id, dataset.state, dataset.failure_code = loss.account_id, DatasetState.FAILED, LOST
            dataset.upload_lease_until = None
            if upload is not None and upload.recognised:
                dataset.subjects_recognised, dataset.subjects_declared = True, dataset.subjects_declared or 1
                ledger.keep_subjects_key_check(session, loss.account_id, upload.check or "")
            return dataset.upload_attempt

    for dataset_id in loss.datasets:
        for name in reversed(stored.contents_of(dataset_id)):
            key = reading.secret_of_fingerprints(settings)
            try:
                with stored.open_array(name, array_files.IMAGES_NAME) as images:
                    shape, prints = images.shape[1:], fingerprints.fingerprint(images.batches(), key)
                if uploads[dataset_id].recognised:
                    with stored.open_array(name, array_files.SUBJECTS_NAME) as subjects:
                        prints |= fingerprints.subject_fingerprints(subjects.read(), project_id, key)
            except (NotFound, OSError):
                continue
            fingerprints.record(factory, dataset_id, keep(dataset_id, shape), prints)
            break
        else:
            unreadable.append(dataset_id)
    if unreadable and not without_images:
        raise Conflict(
            f"{len(unreadable)} uploads cannot be fingerprinted again, because their keys or their content are gone or "
            f"no journal names their account: {', '.join(unreadable)}. Their images could get a second budget. Restore "
            "the keys, or accept this risk with --without-images. The installation stays locked.",
            datasets=unreadable,
        )
    for dataset_id in unreadable:
        keep(dataset_id)


def _record(
    session: Session, loss: data_folder.Loss, facts: dict[str, Any], epsilon: float | None, now: datetime
) -> int:
    """Append the ACCEPT entry, mark the uploads as received, and discard trainings that would repeat earlier noise."""
    account = ledger.lock_account(session, loss.account_id)
    if loss.known and account.head_sequence != loss.head_sequence:
        raise Conflict("The account's log has changed meanwhile. Nothing was recorded; run the command again.")
    least = ledger.filter_of(account).nano_of(min(epsilon, EPSILON_MOST)) if epsilon else 0
    nano = max(loss.missing_nano, least)
    proofs: dict[str, Any] = {name: getattr(loss, name) for name in ("journals", "checkpoint", "releases")}
    proofs["witnesses"] = [list(each) for each in loss.witnesses]
    ledger.limits.record_missing(session, account, amount_nano=nano, details=proofs | facts, now=now)
    uploads = Dataset.id.in_([*loss.datasets, *loss.unattributed])
    session.execute(update(Dataset).where(uploads, Dataset.ready_at.is_(None)).values(ready_at=now))
    findings.end_restored(session, loss.account_id)
    concerned = Job.id.in_(sorted(loss.journals)), Job.state.in_(UNFINISHED), Job.hold_id.is_not(None)
    for job_id in session.scalars(select(Job.id).where(*concerned).order_by(Job.id)).all():
        jobs.request_cancel(session, job_id=job_id, now=now, discard=True)
    return nano


def _unlock(settings: Settings, factory: SessionFactory, *, now: datetime) -> bool:
    """Apply withdrawals again, verify everything, and remove the lock if there is no finding."""
    withdrawal.recall(settings, factory, now=now)
    report = inspection.inspect_ledger(settings, factory, thorough=True)
    inspection.follow_up(factory, report, now=now)
    if report.stops:
        return False
    with transaction(factory) as session:
        findings.clear_stops(session)
        if ledger.stops.lock_of(session) is not None:
            return False
    try:
        inspection.sign_heads(settings, factory, report, now=now)
    except ObscuraError as error:
        get_logger(__name__).error("ledger_not_signed", reason=error.message)
    return True
