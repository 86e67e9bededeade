"""Admins are people: who is one, and how two of them decide about a third. Takes a session, never commits.

The operator's machine names the first. That one names the second alone; from then on, whoever one admin wants to admit
or remove, or whose key one wants revoked, needs the approval of another, so that nobody alone can become two, or the
only one who can act. A new admin makes the token themself and hands on its *introduction* only: an id and a SHA-256,
from which nobody can act in their name.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from obscura.private_files import new_private_file, write_through
from obscura.wire.ids import introduce
from obscura.wire.words import AdminAction, AdminRequestState, Admission
from service.auth import Scope, is_usable, remember_key, revoke
from service.db.access_tables import Admin, AdminRequest, ApiKey
from service.db.base import new_id
from service.db.session import find
from service.errors import Conflict, Forbidden, InvalidInput, NotFound, require_name
from service.ledger.limits import require_admitted_before
from service.ledger.rows import short_reason

REQUEST_LIFETIME = timedelta(days=7)
ADMINS_MIN = 2  # as many as it takes to decide anything
ADMINS_MAX = 1000
FIRST_NAME = "first admin"
_INTRODUCTION = re.compile(r"(key_[a-z2-7]{20}):([0-9a-f]{64})")


def admit_on_machine(session: Session, *, name: str, now: datetime) -> tuple[Admin, str]:
    """Make an admin with a key, as the operator of the machine: outside of what admins can decide.

    Returns:
        The admin, and the key's token, which is shown this once.

    Raises:
        InvalidInput: a bad name.
        Conflict: the name is taken.
    """
    admin = _add(session, name, Admission.MACHINE, now)
    token, introduction = introduce()
    _give_key(session, admin, introduction, now)
    return admin, token


def bootstrap_admin(session: Session, *, path: Path, now: datetime) -> bool:
    """Make the first admin of a new installation and write the key's token to a file only its owner can read.

    The file is on disk before the caller commits, so no key exists whose token nobody has.

    Args:
        session: in a writing transaction.
        path: of the file; replaced if it holds the token of a key that was never committed.
        now: aware.

    Returns:
        True when one was made; False when somebody holds a valid admin key already.
    """
    held = select(ApiKey.id).where(is_usable(now), ApiKey.admin_id.is_not(None))
    if session.scalar(held.limit(1)) is not None:
        return False
    known = session.scalar(select(func.count()).select_from(Admin)) or 0
    name = FIRST_NAME if known == 0 else f"{FIRST_NAME} {known + 1}"
    _admin, token = admit_on_machine(session, name=name, now=now)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with new_private_file(fresh) as file:
        write_through(file, f"{token}\n".encode("ascii"))
    fresh.replace(path)
    return True


def ask_admission(
    session: Session, *, name: str, introduction: str, reason: str, asked_by: str | None, now: datetime
) -> Admin | AdminRequest:
    """Ask for a person to be admitted. The second of an installation is admitted at once.

    Args:
        session: in a writing transaction.
        name: of the person; unique for ever.
        introduction: of the token that the person made, `key_...:SHA-256`.
        reason: kept with the request.
        asked_by: id of the admin who asks.
        now: aware.

    Raises:
        InvalidInput: a bad name, introduction or reason.
        Conflict: the name or the key is taken, there are too many, or a request for that name waits.
        Forbidden: whoever asks is no admin.
    """
    asking = _acting(session, asked_by)
    key_id, key_hash = _read(introduction)
    require_name(name, "An admin's name")
    reason = short_reason(reason)
    _require_free(session, name, key_id)
    if session.scalar(select(func.count()).select_from(Admin)) == 1:
        admin = _add(session, name, Admission.ALONE, now, asked_by=asking.id)
        _give_key(session, admin, introduction, now)
        return admin
    return _ask(session, AdminAction.ADMIT, name, asking, reason, now, admin_id=None, key_id=key_id, key_hash=key_hash)


def ask_removal(session: Session, *, admin_id: str, reason: str, asked_by: str | None, now: datetime) -> AdminRequest:
    """Ask for an admin, or oneself, to be removed. Another one must approve; the one who is to go may be that one.

    Raises:
        InvalidInput: there is no reason.
        NotFound: no such admin.
        Conflict: the admin was removed already, or too few would be left.
        Forbidden: whoever asks is no admin.
    """
    asking, admin = _acting(session, asked_by), find(session, Admin, admin_id)
    _require_removable(session, admin)
    return _ask(session, AdminAction.REMOVE, admin.name, asking, short_reason(reason), now, admin_id=admin.id)


def ask_revocation(session: Session, *, key_id: str, reason: str, asked_by: str | None, now: datetime) -> AdminRequest:
    """Ask for another admin's key to be revoked, with all that it made. The one whose key it is may approve.

    Raises:
        InvalidInput: there is no reason.
        NotFound: no such key.
        Conflict: it was revoked already, or whoever asks may revoke it alone.
        Forbidden: whoever asks is no admin.
    """
    asking, key = _acting(session, asked_by), session.get(ApiKey, key_id)
    if key is None:
        raise NotFound("There is no such key.", key_id=key_id)
    if key.revoked_at is not None:
        raise Conflict("This key was revoked already.", key_id=key.id)
    if key.admin_id is None or key.admin_id == asking.id:
        raise Conflict("You can revoke this key yourself, at once: `obscura keys revoke`.", key_id=key.id)
    owner = find(session, Admin, key.admin_id)
    facts = {"admin_id": owner.id, "key_id": key.id}
    return _ask(session, AdminAction.REVOKE, owner.name, asking, short_reason(reason), now, **facts)


def approve(session: Session, *, request_id: str, decided_by: str | None, now: datetime) -> AdminRequest:
    """Do what another admin has asked for. Approving twice changes nothing.

    Raises:
        NotFound: no such request.
        Forbidden: the same person asked for it, or whoever approves is no admin, or was none when it was asked for.
        Conflict: it was decided already, has expired, who asked was removed, or it can no longer be done.
    """
    request, deciding = _lock_request(session, request_id), _acting(session, decided_by)
    if request.state is AdminRequestState.APPROVED and request.decided_by == deciding.id:
        return request
    if request.state is not AdminRequestState.PENDING:
        raise Conflict(f"This request was {request.state.value} already.", request_id=request.id)
    if now - request.asked_at >= REQUEST_LIFETIME:
        raise Conflict(f"This request is older than {REQUEST_LIFETIME.days} days. Make a new one.")
    if request.asked_by == deciding.id:
        raise Forbidden("It takes two people: you asked for this, so another admin must approve it.")
    require_admitted_before(deciding, request.asked_at)
    if find(session, Admin, request.asked_by).removed_at is not None:
        raise Conflict("The admin who asked for this was removed since.")
    if request.action is AdminAction.ADMIT:
        _require_free(session, request.name, str(request.key_id), besides=request.id)
        admin = _add(session, request.name, Admission.APPROVED, now, asked_by=request.asked_by, approved_by=deciding.id)
        _give_key(session, admin, f"{request.key_id}:{request.key_hash}", now)
        request.admin_id = admin.id
    elif request.action is AdminAction.REMOVE:
        request.keys_revoked = _remove(session, find(session, Admin, str(request.admin_id)), now)
    else:
        request.keys_revoked = revoke(session, ApiKey.id == request.key_id, now=now)
    return _decide(session, request, AdminRequestState.APPROVED, deciding.id, now)


def decline(session: Session, *, request_id: str, decided_by: str | None, now: datetime) -> AdminRequest:
    """Decline a request, or withdraw one's own. Declining twice changes nothing.

    Raises:
        NotFound: no such request.
        Forbidden: whoever declines is no admin.
        Conflict: it was approved already.
    """
    request, deciding = _lock_request(session, request_id), _acting(session, decided_by)
    if request.state is AdminRequestState.APPROVED:
        raise Conflict("This request was approved already.", request_id=request.id)
    if request.state is AdminRequestState.DECLINED:
        return request
    return _decide(session, request, AdminRequestState.DECLINED, deciding.id, now)


def admins(session: Session) -> Sequence[Admin]:
    """Return everybody who is or was an admin, in the order of their admission."""
    return session.scalars(select(Admin).order_by(Admin.admitted_at, Admin.id).limit(ADMINS_MAX)).all()


def makers(session: Session, keys: Sequence[ApiKey]) -> dict[str, Admin]:
    """Return the person who made each of some keys, by the key's id; one made on the machine has none."""
    asked_with = {key.id: key.created_by or key.id for key in keys}
    people = select(ApiKey.id, Admin).join(Admin, Admin.id == ApiKey.admin_id)
    found = {row.id: row.Admin for row in session.execute(people.where(ApiKey.id.in_(asked_with.values())))}
    return {key_id: found[asking] for key_id, asking in asked_with.items() if asking in found}


def has_expired(request: AdminRequest, now: datetime) -> bool:
    """Tell whether a request waited too long to be approved."""
    return request.state is AdminRequestState.PENDING and now - request.asked_at >= REQUEST_LIFETIME


def _acting(session: Session, admin_id: str | None) -> Admin:
    admin = None if admin_id is None else session.get(Admin, admin_id)
    if admin is None or admin.removed_at is not None:
        raise Forbidden("Only an admin may ask for this or decide it.")
    return admin


def _read(introduction: str) -> tuple[str, str]:
    form = _INTRODUCTION.fullmatch(introduction.strip())
    if form is None:
        raise InvalidInput(
            "An introduction is key_...:SHA-256. The new admin gets one with `obscura admins introduce`, which also "
            "writes down the token; the token stays with that person."
        )
    return form[1], form[2]


def _require_free(session: Session, name: str, key_id: str, besides: str | None = None) -> None:
    waiting = select(AdminRequest.id).where(
        AdminRequest.state == AdminRequestState.PENDING,
        AdminRequest.id != (besides or ""),
        AdminRequest.key_id == key_id,
    )
    _require_new_name(session, name)
    if session.get(ApiKey, key_id) is not None or session.scalar(waiting.limit(1)) is not None:
        raise Conflict("A key of this id exists, or waits already. Make a new token with `obscura admins introduce`.")


def _require_new_name(session: Session, name: str) -> None:
    if session.scalar(select(Admin.id).where(Admin.name == name)) is not None:
        raise Conflict(f"There is, or was, an admin named *{name}*. Names are never used again.")


def _require_removable(session: Session, admin: Admin) -> None:
    if admin.removed_at is not None:
        raise Conflict(f"*{admin.name}* was removed already.", admin_id=admin.id)
    active = session.scalars(select(Admin.id).where(Admin.removed_at.is_(None)).with_for_update()).all()
    if len(active) <= ADMINS_MIN:
        raise Conflict(
            f"There are {len(active)} admins, and fewer than {ADMINS_MIN} could decide nothing. Admit somebody else "
            "first; a key in wrong hands is revoked by its owner at once, or by two admins."
        )


def _add(session: Session, name: str, admission: Admission, now: datetime, **people: str) -> Admin:
    require_name(name, "An admin's name")
    _require_new_name(session, name)
    if (session.scalar(select(func.count()).select_from(Admin)) or 0) >= ADMINS_MAX:
        raise Conflict(f"There have been {ADMINS_MAX} admins, which is as many as are kept.")
    admin = Admin(id=new_id("adm"), name=name, admission=admission, admitted_at=now, **people)
    try:
        with session.begin_nested():
            session.add(admin)
    except IntegrityError:  # of the same name, or as the second: the database lets one of them in
        raise Conflict("Another admin was admitted at the same moment. Look who, and ask again.") from None
    return admin


def _give_key(session: Session, admin: Admin, introduction: str, now: datetime) -> None:
    key_id, digest = _read(introduction)
    remember_key(session, key_id, digest, name=admin.name, scopes=[Scope.ADMIN], admin_id=admin.id, now=now)


def _remove(session: Session, admin: Admin, now: datetime) -> int:
    """Remove a person with all their keys and all that these made, and return how many were revoked."""
    _require_removable(session, admin)
    admin.removed_at = now
    return revoke(session, ApiKey.admin_id == admin.id, now=now)


def _ask(
    session: Session, action: AdminAction, name: str, asking: Admin, reason: str, now: datetime, **facts: str | None
) -> AdminRequest:
    same = select(AdminRequest.id).where(
        AdminRequest.state == AdminRequestState.PENDING,
        AdminRequest.action == action,
        AdminRequest.name == name,
        AdminRequest.asked_at > now - REQUEST_LIFETIME,
    )
    if action is AdminAction.REVOKE:
        same = same.where(AdminRequest.key_id == facts["key_id"])
    waiting = session.scalar(same)
    if waiting is not None:
        raise Conflict(f"Request {waiting} about *{name}* waits already. Decline it before asking anew.")
    request = AdminRequest(
        id=new_id("adr"),
        action=action,
        name=name,
        reason=reason,
        state=AdminRequestState.PENDING,
        asked_by=asking.id,
        asked_at=now,
        **facts,
    )
    session.add(request)
    session.flush()
    return request


def _lock_request(session: Session, request_id: str) -> AdminRequest:
    chosen = select(AdminRequest).where(AdminRequest.id == request_id).with_for_update()
    request = session.scalar(chosen.execution_options(populate_existing=True))
    if request is None:
        raise NotFound("There is no such request about an admin.", request_id=request_id)
    return request


def _decide(
    session: Session, request: AdminRequest, state: AdminRequestState, decided_by: str, now: datetime
) -> AdminRequest:
    request.state, request.decided_by, request.decided_at = state, decided_by, now
    session.flush()
    return request
