"""Admins, and their requests to admit or remove an admin and to revoke an admin's keys.

The operator's machine creates the first admin, who admits the second alone. Later admissions, removals and revocations
of another admin's keys take two people. So no admin can act as two people, or become the only admin. New admins
create their own token and pass on its *introduction*: an id and a SHA-256, with which nobody can sign in.

An owner is an admin of one project. An admin of the installation can name a project's first owner alone. These two
count as one person in decisions (`decisions.voice_of`). Revoking the admin's key also revokes the owner's keys.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from obscura.private_files import replace_file
from obscura.wire.ids import introduce
from obscura.wire.words import Admission, DecisionAction, DecisionState
from service.db.access_tables import Admin, ApiKey, Decision, Invitation, Person, Project
from service.db.base import new_id
from service.errors import Conflict, InvalidInput, require_name, short_reason
from service.identity.access import Scope, find, visible
from service.identity.auth import add_key, is_usable, revoke
from service.identity.decisions import acting_key, ask
from service.identity.recording import Act, record

ADMINS_MIN = 2  # a decision needs two
ADMINS_MAX = 1000
FIRST_NAME = "first admin"
_INTRODUCTION = re.compile(r"(key_[a-z2-7]{20}):([0-9a-f]{64})")


def admit_on_machine(session: Session, *, name: str, now: datetime) -> tuple[Admin, str]:
    """Create an admin with a key, as the operator of the machine, and return the key's token."""
    token, introduction = introduce()
    return _add(session, name, Admission.MACHINE, now, introduction=introduction), token


def bootstrap_admin(session: Session, *, path: Path, now: datetime) -> bool:
    """Create the first admin and write the token to a private file. Return False if there is already a usable admin.

    The file is on disk before the caller commits, so every committed key has a known token.
    """
    # Keys of people do not count, because an admin must have access when the sign-in provider is down.
    held = select(ApiKey.id).where(
        is_usable(now), ApiKey.admin_id.is_not(None), ApiKey.project_id.is_(None), ApiKey.person_id.is_(None)
    )
    if session.scalar(held.limit(1)) is not None:
        return False
    known = session.scalar(select(func.count()).select_from(Admin)) or 0
    name = FIRST_NAME if known == 0 else f"{FIRST_NAME} {known + 1}"
    _admin, token = admit_on_machine(session, name=name, now=now)
    replace_file(path, f"{token}\n".encode("ascii"))
    return True


def request_admission(
    session: Session,
    *,
    name: str,
    introduction: str,
    reason: str,
    requested_with: str,
    now: datetime,
    project_id: str | None = None,
) -> Admin | Decision:
    """Request the admission of a person as an admin, with the introduction of their token.

    Return the request; or the new admin, if one person may admit them alone. That applies to the second admin of an
    installation, and to the first owner of a project, named by an admin of the installation. `project_id` is the
    project of a new owner. None means the requesting key's project, or the installation if it has none.
    """
    asking = acting_key(session, requested_with)
    key_id, key_hash = parse_introduction(introduction)
    name = require_name(name, "An admin's name")
    reason = short_reason(reason)
    project_id = project_id or asking.project_id
    if project_id is not None:
        find(session, Project, project_id)
    require_free(session, name, key_id)
    if project_id is None:
        admins_ever = select(func.count()).select_from(Admin).where(Admin.project_id.is_(None))
        alone = session.scalar(admins_ever) == 1
    else:
        owners = select(Admin.id).where(Admin.project_id == project_id, Admin.removed_at.is_(None))
        acting = select(ApiKey.id).where(is_usable(now), ApiKey.admin_id.in_(owners))
        alone = asking.project_id is None and session.scalar(acting.limit(1)) is None
    if alone:
        return _add(
            session,
            name,
            Admission.ALONE,
            now,
            introduction=introduction,
            created_by=None if project_id is None else asking.id,
            project_id=project_id,
            requested_by=asking.admin_id,
        )
    terms = {"name": name, "key_id": key_id, "key_hash": key_hash, "project_id": project_id}
    return ask(session, DecisionAction.ADMIT, name, asking=asking, reason=reason, now=now, **terms)


def request_removal(session: Session, *, admin_id: str, reason: str, requested_with: str, now: datetime) -> Decision:
    """Request the removal of an admin. Another admin must approve; this may be the admin to be removed."""
    asking, admin = acting_key(session, requested_with), find(session, Admin, admin_id)
    _require_removable(session, admin)
    terms = {"name": admin.name, "admin_id": admin.id, "project_id": admin.project_id}
    return ask(session, DecisionAction.REMOVE, admin.name, asking=asking, reason=reason, now=now, **terms)


def request_revocation(session: Session, *, key_id: str, reason: str, requested_with: str, now: datetime) -> Decision:
    """Request the revocation of another admin's key and of all keys that it created. The key's owner may approve."""
    asking, key = acting_key(session, requested_with), find(session, ApiKey, key_id)
    if key.revoked_at is not None:
        raise Conflict("This key was revoked already.", key_id=key.id)
    if key.admin_id is None or key.admin_id == asking.admin_id:
        raise Conflict("You can revoke this key yourself, at once: `obscura keys revoke`.", key_id=key.id)
    owner = session.get_one(Admin, key.admin_id)  # the key is visible, so its owner's name may be shown
    terms = {"name": owner.name, "admin_id": owner.id, "key_id": key.id, "project_id": key.project_id}
    return ask(session, DecisionAction.REVOKE, owner.name, asking=asking, reason=reason, now=now, **terms)


def _admit(session: Session, decision: Decision, approving: ApiKey, now: datetime) -> None:
    admin = _add(
        session,
        str(decision.name),
        Admission.APPROVED,
        now,
        introduction=f"{decision.key_id}:{decision.key_hash}",
        request_id=decision.id,
        project_id=decision.project_id,
        requested_by=decision.requested_by,
        approved_by=approving.admin_id,
    )
    decision.admin_id = admin.id


def _remove(session: Session, decision: Decision, _approving: ApiKey, now: datetime) -> None:
    admin = find(session, Admin, str(decision.admin_id))
    _require_removable(session, admin)
    alone = Admin.requested_by == admin.id, Admin.admission == Admission.ALONE, Admin.project_id.is_not(None)
    going = [admin, *session.scalars(select(Admin).where(*alone, Admin.removed_at.is_(None)))]
    for person in going:
        person.removed_at = now
        record(session, Act.ADMIN_REMOVED, person.id, project_id=person.project_id)
    decision.keys_revoked = revoke(session, ApiKey.admin_id.in_([person.id for person in going]), now=now)


def _revoke(session: Session, decision: Decision, _approving: ApiKey, now: datetime) -> None:
    decision.keys_revoked = revoke(session, ApiKey.id == decision.key_id, now=now)


EFFECTS = {DecisionAction.ADMIT: _admit, DecisionAction.REMOVE: _remove, DecisionAction.REVOKE: _revoke}


def admit_person(session: Session, person: Person, project_id: str | None, *, now: datetime) -> Admin:
    """Admit a person as an admin because of a group at the sign-in provider, even if they were removed before."""
    this = Admin.person_id == person.id, Admin.project_id.is_not_distinct_from(project_id)
    admin = session.scalar(select(Admin).where(*this))
    if admin is None:
        taken = session.scalar(select(Admin.id).where(Admin.name == person.name)) is not None
        # Names of admins are unique, but people share names, and one person may own several projects.
        name = f"{person.name[:80]} ({new_id('per')[-8:]})" if taken else person.name
        return _add(session, name, Admission.PROVIDER, now, project_id=project_id, person_id=person.id)
    if admin.removed_at is not None:
        admin.removed_at, admin.admitted_at = None, now
        record(session, Act.ADMIN_ADMITTED, admin.id, project_id=project_id)
    return admin


def dismiss_person(session: Session, person: Person, *, except_in: Collection[str | None], now: datetime) -> None:
    """Mark a person as removed, except in projects in `except_in` (None: the installation). Revoke their keys first."""
    for admin in session.scalars(select(Admin).where(Admin.person_id == person.id, Admin.removed_at.is_(None))):
        if admin.project_id not in except_in:
            admin.removed_at = now
            record(session, Act.ADMIN_REMOVED, admin.id, project_id=admin.project_id)


def admins(session: Session) -> Sequence[Admin]:
    """Return the present and former admins that the caller may see, in order of admission."""
    return session.scalars(visible(session, Admin).order_by(Admin.admitted_at, Admin.id).limit(ADMINS_MAX)).all()


def makers(session: Session, keys: Sequence[ApiKey | Invitation]) -> dict[str, Admin]:
    """Return the admin who created each key or invitation, by its id. Keys created on the machine are omitted."""
    creators = {key.id: key.created_by or key.id for key in keys}
    people = select(ApiKey.id, Admin).join(Admin, Admin.id == ApiKey.admin_id)
    found = {row.id: row.Admin for row in session.execute(people.where(ApiKey.id.in_(creators.values())))}
    return {key_id: found[creator] for key_id, creator in creators.items() if creator in found}


def parse_introduction(introduction: str) -> tuple[str, str]:
    """Return the key id and the SHA-256 in an introduction; raise InvalidInput if it is malformed."""
    form = _INTRODUCTION.fullmatch(introduction.strip())
    if form is None:
        raise InvalidInput(
            "An introduction has the form key_...:SHA-256. The new admin creates it with `obscura admins introduce`, "
            "and keeps the token that this command writes to a file."
        )
    return form[1], form[2]


def require_free(session: Session, name: str, key_id: str | None, besides: str | None = None) -> None:
    """Raise Conflict if the name or key of a future admin is taken. `besides` is the request that names the key."""
    if session.scalar(select(Admin.id).where(Admin.name == name)) is not None:
        raise Conflict(f"There is, or was, an admin named '{name}'. Names are never reused: choose another name.")
    if key_id is None:
        return
    pending = Decision.state == DecisionState.PENDING, Decision.id != (besides or ""), Decision.key_id == key_id
    if session.get(ApiKey, key_id) is not None or session.scalar(select(Decision.id).where(*pending).limit(1)):
        raise Conflict(
            "A key with this id exists or is part of a pending request. Make a new token with `obscura admins "
            "introduce`."
        )


def _require_removable(session: Session, admin: Admin) -> None:
    if admin.removed_at is not None:
        raise Conflict(f"'{admin.name}' was removed already.", admin_id=admin.id)
    if admin.person_id is not None:
        raise Conflict(f"'{admin.name}' is an admin by a group at the sign-in provider. Remove them from that group.")
    if admin.project_id is not None:
        return  # if there is no owner, admins of the installation decide
    deciding = Admin.removed_at.is_(None), Admin.project_id.is_(None), Admin.person_id.is_(None)
    active = session.scalars(select(Admin.id).where(*deciding).with_for_update()).all()
    if len(active) <= ADMINS_MIN:
        raise Conflict(
            f"This would leave fewer than {ADMINS_MIN} admins, too few for decisions. First admit another admin. If "
            "a key was stolen, its owner alone, or two admins together, can revoke it at once."
        )


def _add(
    session: Session,
    name: str,
    admission: Admission,
    now: datetime,
    *,
    introduction: str | None = None,
    created_by: str | None = None,
    request_id: str | None = None,
    **columns: str | None,
) -> Admin:
    name = require_name(name, "An admin's name")
    key_id, digest = (None, None) if introduction is None else parse_introduction(introduction)
    require_free(session, name, key_id, besides=request_id)
    if (session.scalar(select(func.count()).select_from(Admin)) or 0) >= ADMINS_MAX:
        raise Conflict(f"There have been {ADMINS_MAX} admins, which is the limit.")
    admin = Admin(id=new_id("adm"), name=name, admission=admission, admitted_at=now, **columns)
    try:
        with session.begin_nested():
            session.add(admin)
    except IntegrityError:  # a concurrent admission with this name, or also as the second admin
        raise Conflict("Another admin was admitted at the same moment. Check the list, and request again.") from None
    record(session, Act.ADMIN_ADMITTED, admin.id, project_id=admin.project_id)
    if key_id is not None:
        key = ApiKey(id=key_id, hash=digest, name=name, scopes=[Scope.ADMIN], admin_id=admin.id, created_by=created_by)
        key.project_id = admin.project_id
        add_key(session, key, now)
    return admin
