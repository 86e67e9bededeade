"""Admins are people: who is one, and what two of them decide about a third.

The operator's machine names the first, who names the second alone. From then on admissions, removals and revocations of
another admin's keys take two people, so that nobody can become two, or the only one who can act. A new admin makes the
token and hands on its *introduction*: an id and a SHA-256, from which nobody can act in their name.

An owner is an admin of one project. An admin of the installation names a project's first owner alone; the two count as
one person in decisions (`decisions.voice_of`), and the owner's keys are revoked with the key that named them.
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
from service.db.access_tables import Admin, ApiKey, Decision, Person
from service.db.base import new_id
from service.db.project_tables import Project
from service.errors import Conflict, InvalidInput, require_name, short_reason
from service.identity.access import Scope, find, visible
from service.identity.auth import add_key, is_usable, made_until, revoke
from service.identity.decisions import acting_key, ask
from service.identity.recording import Act, record

ADMINS_MIN = 2  # as many as it takes to decide anything
ADMINS_MAX = 1000
FIRST_NAME = "first admin"
_INTRODUCTION = re.compile(r"(key_[a-z2-7]{20}):([0-9a-f]{64})")


def admit_on_machine(session: Session, *, name: str, now: datetime) -> tuple[Admin, str]:
    """Create an admin with a key, as the operator of the machine, and return the key's token.

    Raises:
        InvalidInput: a bad name.
        Conflict: the name is taken.
    """
    admin = _add(session, name, Admission.MACHINE, now)
    token, introduction = introduce()
    _give_key(session, admin, introduction, now)
    return admin, token


def bootstrap_admin(session: Session, *, path: Path, now: datetime) -> bool:
    """Create the first admin and write the token to a file that only its owner can read. False if one can act already.

    The file is on disk before the caller commits, so no key exists whose token nobody has.

    Args:
        path: of the file; replaced if its token's key was never committed.
    """
    of_installation = ApiKey.admin_id.is_not(None), ApiKey.project_id.is_(None)
    # Keys of people do not count: on the day on which their provider is gone, somebody must get in.
    held = select(ApiKey.id).where(is_usable(now), *of_installation, ApiKey.person_id.is_(None))
    if session.scalar(held.limit(1)) is not None:
        return False
    known = session.scalar(select(func.count()).select_from(Admin)) or 0
    name = FIRST_NAME if known == 0 else f"{FIRST_NAME} {known + 1}"
    _admin, token = admit_on_machine(session, name=name, now=now)
    replace_file(path, f"{token}\n".encode("ascii"))
    return True


def ask_admission(
    session: Session,
    *,
    name: str,
    introduction: str,
    reason: str,
    asked_with: str,
    now: datetime,
    project_id: str | None = None,
) -> Admin | Decision:
    """Request that a person becomes an admin. The second of an installation is admitted at once, and so is the first
    owner of a project, whom an admin of the installation names.

    Args:
        name: of the person; never used again.
        introduction: of the token that the person made, `key_...:SHA-256`.
        asked_with: id of an admin's key.
        project_id: for an owner; None for the project of the key that asks, or the installation.

    Raises:
        InvalidInput: a bad name, introduction or reason.
        NotFound: no such project.
        Conflict: the name or the key is taken, there are too many admins, or a request for that name is pending.
        Forbidden: the key is no admin's.
    """
    asking = acting_key(session, asked_with)
    key_id, key_hash = _read(introduction)
    name = require_name(name, "An admin's name")
    reason = short_reason(reason)
    project_id = project_id or asking.project_id
    if project_id is not None:
        find(session, Project, project_id)
    _require_free(session, name, key_id)
    if _may_name_alone(session, asking, project_id, now):
        admin = _add(session, name, Admission.ALONE, now, project_id=project_id, asked_by=str(asking.admin_id))
        _give_key(session, admin, introduction, now, created_by=None if project_id is None else asking.id)
        return admin
    terms = {"name": name, "key_id": key_id, "key_hash": key_hash, "project_id": project_id}
    return ask(session, DecisionAction.ADMIT, name, asking=asking, reason=reason, now=now, **terms)


def _may_name_alone(session: Session, asking: ApiKey, project_id: str | None, now: datetime) -> bool:
    if project_id is None:
        admins_ever = select(func.count()).select_from(Admin).where(Admin.project_id.is_(None))
        return session.scalar(admins_ever) == 1
    owners = select(Admin.id).where(Admin.project_id == project_id, Admin.removed_at.is_(None))
    acting = select(ApiKey.id).where(is_usable(now), ApiKey.admin_id.in_(owners))
    return asking.project_id is None and session.scalar(acting.limit(1)) is None


def ask_removal(session: Session, *, admin_id: str, reason: str, asked_with: str, now: datetime) -> Decision:
    """Request that an admin is removed. Another one must approve, who may be the one to be removed.

    Raises:
        InvalidInput: there is no reason.
        NotFound: no such admin.
        Conflict: the admin was removed already, or too few would be left.
        Forbidden: the key is no admin's.
    """
    asking, admin = acting_key(session, asked_with), find(session, Admin, admin_id)
    _require_removable(session, admin)
    terms = {"name": admin.name, "admin_id": admin.id, "project_id": admin.project_id}
    return ask(session, DecisionAction.REMOVE, admin.name, asking=asking, reason=reason, now=now, **terms)


def ask_revocation(session: Session, *, key_id: str, reason: str, asked_with: str, now: datetime) -> Decision:
    """Request that another admin's key is revoked, with all that it made. Its owner may approve.

    Raises:
        InvalidInput: there is no reason.
        NotFound: no such key.
        Conflict: it was revoked already, or the requester may revoke it alone.
        Forbidden: the key that asks is no admin's.
    """
    asking, key = acting_key(session, asked_with), find(session, ApiKey, key_id)
    if key.revoked_at is not None:
        raise Conflict("This key was revoked already.", key_id=key.id)
    if key.admin_id is None or key.admin_id == asking.admin_id:
        raise Conflict("You can revoke this key yourself, at once: `obscura keys revoke`.", key_id=key.id)
    owner = session.get_one(Admin, key.admin_id)  # of a key that was found, in a project where they may be no owner
    terms = {"name": owner.name, "admin_id": owner.id, "key_id": key.id, "project_id": key.project_id}
    return ask(session, DecisionAction.REVOKE, owner.name, asking=asking, reason=reason, now=now, **terms)


def _admit(session: Session, decision: Decision, approving: ApiKey, now: datetime) -> None:
    name, key_id = str(decision.name), str(decision.key_id)
    _require_free(session, name, key_id, besides=decision.id)
    people = {"asked_by": decision.asked_by, "approved_by": str(approving.admin_id)}
    admin = _add(session, name, Admission.APPROVED, now, project_id=decision.project_id, **people)
    _give_key(session, admin, f"{key_id}:{decision.key_hash}", now)
    decision.admin_id = admin.id


def _remove(session: Session, decision: Decision, _approving: ApiKey, now: datetime) -> None:
    admin = find(session, Admin, str(decision.admin_id))
    _require_removable(session, admin)
    alone = Admin.asked_by == admin.id, Admin.admission == Admission.ALONE, Admin.project_id.is_not(None)
    going = [admin, *session.scalars(select(Admin).where(*alone, Admin.removed_at.is_(None)))]
    for person in going:
        person.removed_at = now
        record(session, Act.ADMIN_REMOVED, person.id, project_id=person.project_id)
    decision.keys_revoked = revoke(session, ApiKey.admin_id.in_([person.id for person in going]), now=now)


def _revoke(session: Session, decision: Decision, _approving: ApiKey, now: datetime) -> None:
    decision.keys_revoked = revoke(session, ApiKey.id == decision.key_id, now=now)


EFFECTS = {DecisionAction.ADMIT: _admit, DecisionAction.REMOVE: _remove, DecisionAction.REVOKE: _revoke}


def admit_person(session: Session, person: Person, project_id: str | None, *, now: datetime) -> Admin:
    """Return a person as an admin by a group of the sign-in provider; a removed one is admitted again, from now on."""
    this = Admin.person_id == person.id, Admin.project_id.is_not_distinct_from(project_id)
    admin = session.scalar(select(Admin).where(*this))
    if admin is None:
        taken = session.scalar(select(Admin.id).where(Admin.name == person.name)) is not None
        # Two people may have one name, and one person several projects; but names are never used again.
        name = f"{person.name[:80]} ({new_id('per')[-8:]})" if taken else person.name
        return _add(session, name, Admission.PROVIDER, now, project_id=project_id, person_id=person.id)
    if admin.removed_at is not None:
        admin.removed_at, admin.admitted_at = None, now
        record(session, Act.ADMIN_ADMITTED, admin.id, project_id=project_id)
    return admin


def dismiss_person(session: Session, person: Person, *, still: Collection[str | None], now: datetime) -> None:
    """Remove a person's admins whose group is gone. Their keys were revoked.

    Args:
        still: the projects that they own, and None for the installation.
    """
    for admin in session.scalars(select(Admin).where(Admin.person_id == person.id, Admin.removed_at.is_(None))):
        if admin.project_id not in still:
            admin.removed_at = now
            record(session, Act.ADMIN_REMOVED, admin.id, project_id=admin.project_id)


def admins(session: Session) -> Sequence[Admin]:
    """Return the present and former admins that the caller sees, in the order of their admission."""
    return session.scalars(visible(session, Admin).order_by(Admin.admitted_at, Admin.id).limit(ADMINS_MAX)).all()


def names(session: Session, people: Sequence[Admin]) -> dict[str, str]:
    """Return the names of admins and of those who admitted them, by id."""
    of = {person.id for person in people} | {id for person in people for id in (person.asked_by, person.approved_by)}
    return {row.id: row.name for row in session.execute(select(Admin.id, Admin.name).where(Admin.id.in_(of - {None})))}


def makers(session: Session, keys: Sequence[ApiKey]) -> dict[str, Admin]:
    """Return the admin who made each key, by the key's id; a key made on the machine has none."""
    asked_with = {key.id: key.created_by or key.id for key in keys}
    people = select(ApiKey.id, Admin).join(Admin, Admin.id == ApiKey.admin_id)
    found = {row.id: row.Admin for row in session.execute(people.where(ApiKey.id.in_(asked_with.values())))}
    return {key_id: found[asking] for key_id, asking in asked_with.items() if asking in found}


def _read(introduction: str) -> tuple[str, str]:
    form = _INTRODUCTION.fullmatch(introduction.strip())
    if form is None:
        raise InvalidInput(
            "An introduction is key_...:SHA-256. The new admin gets one with `obscura admins introduce`, which also "
            "writes down the token; the token stays with that person."
        )
    return form[1], form[2]


def _require_free(session: Session, name: str, key_id: str, besides: str | None = None) -> None:
    waiting = select(Decision.id).where(
        Decision.state == DecisionState.PENDING, Decision.id != (besides or ""), Decision.key_id == key_id
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
    if admin.person_id is not None:
        raise Conflict(f"*{admin.name}* decides here by a group: take that away at the sign-in provider.")
    if admin.project_id is not None:
        return  # what owners decide, admins of the installation can
    deciding = Admin.removed_at.is_(None), Admin.project_id.is_(None), Admin.person_id.is_(None)
    active = session.scalars(select(Admin.id).where(*deciding).with_for_update()).all()
    if len(active) <= ADMINS_MIN:
        raise Conflict(
            f"There are {len(active)} admins, and fewer than {ADMINS_MIN} could decide nothing. Admit somebody else "
            "first; a key in wrong hands is revoked by its owner at once, or by two admins."
        )


def _add(
    session: Session, name: str, admission: Admission, now: datetime, project_id: str | None = None, **people: str
) -> Admin:
    name = require_name(name, "An admin's name")
    _require_new_name(session, name)
    if (session.scalar(select(func.count()).select_from(Admin)) or 0) >= ADMINS_MAX:
        raise Conflict(f"There have been {ADMINS_MAX} admins, which is as many as are kept.")
    admin = Admin(id=new_id("adm"), name=name, admission=admission, admitted_at=now, project_id=project_id, **people)
    try:
        with session.begin_nested():
            session.add(admin)
    except IntegrityError:  # of the same name, or as the second: the database lets one of them in
        raise Conflict("Another admin was admitted at the same moment. Look who, and ask again.") from None
    record(session, Act.ADMIN_ADMITTED, admin.id, project_id=project_id)
    return admin


def _give_key(session: Session, admin: Admin, introduction: str, now: datetime, created_by: str | None = None) -> None:
    key_id, digest = _read(introduction)
    key = ApiKey(
        id=key_id, hash=digest, name=admin.name, scopes=[Scope.ADMIN], admin_id=admin.id, created_by=created_by
    )
    key.project_id, key.expires_at = admin.project_id, made_until(session, None, created_by, now)
    add_key(session, key, now)
