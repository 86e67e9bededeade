"""Invitations: links that give a person a role once. Only the SHA-256 of a link's secret is stored.

An invited member receives a key of the role. This key counts as created by the inviter's key, so revoking the inviter's
key also revokes it. An invited admin or owner receives nothing: their browser makes a token, and the invitation keeps
its introduction and the person's name, for a request of admission (`admins.request_admission`).

With a sign-in provider there are no invitations, because the provider's groups determine the roles.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from obscura.wire.ids import digest_token, make_token
from obscura.wire.words import DecisionState
from service.db.access_tables import ApiKey, Decision, Invitation
from service.db.base import new_id
from service.errors import Conflict, InvalidInput, NotFound, require_name
from service.identity import projects
from service.identity.access import PEOPLE_DECIDE, ROLES, Principal, Scope, find, visible
from service.identity.admins import parse_introduction, require_free
from service.identity.auth import add_key, is_usable
from service.identity.recording import Act, record

LIFETIME = timedelta(days=7)  # of a link, and of an invited admin's introduction after it was sent
OPEN_MAX = 200  # unused links per project
ADMIN = "admin"  # of the installation; other roles are those of a project
DECIDING = (ADMIN, "owner")


def invite(
    session: Session, by: Principal, *, role: str, project_id: str | None, now: datetime
) -> tuple[Invitation, str]:
    """Create an invitation, with at most the permissions of the inviting admin; return it with the link's secret.

    `role` is a role in the project `project_id` (None: the caller's or the only project), or `admin`.
    """
    if session.info.get(PEOPLE_DECIDE):
        raise Conflict("People sign in through the provider, whose groups determine their roles. Add them to a group.")
    if role == ADMIN:
        by.require_installation()
        if project_id is not None:
            raise InvalidInput("An admin of the installation has no project. Invite an owner of the project instead.")
    else:
        for scope in ROLES[role]:
            by.require(Scope(scope))
        project_id = projects.choose(session, project_id)
    unused = Invitation.used_at.is_(None), Invitation.revoked_at.is_(None), Invitation.expires_at > now
    same = Invitation.project_id.is_not_distinct_from(project_id)
    if (session.scalar(select(func.count(Invitation.id)).where(same, *unused)) or 0) >= OPEN_MAX:
        raise Conflict(f"There are {OPEN_MAX} unused invitations, which is the limit. Revoke one first.")
    secret = secrets.token_urlsafe(32)
    facts = {"role": role, "project_id": project_id, "created_by": by.id, "created_at": now}
    invitation = Invitation(id=new_id("inv"), secret_sha256=digest_token(secret), expires_at=now + LIFETIME, **facts)
    session.add(invitation)
    session.flush()
    record(session, Act.INVITED, invitation.id, project_id=project_id)
    return invitation, secret


def find_open(session: Session, secret: str, *, now: datetime, lock: bool = False) -> tuple[Invitation, ApiKey]:
    """Return the invitation of a link, with the inviter's key; if `lock`, lock the invitation.

    Raises:
        NotFound: the link is unknown, used, revoked or expired, or the inviter's key is not valid.
    """
    this = select(Invitation, ApiKey).join(ApiKey, ApiKey.id == Invitation.created_by)
    this = this.where(Invitation.secret_sha256 == digest_token(secret), is_usable(now))
    found = session.execute(this.with_for_update(of=Invitation) if lock else this).one_or_none()
    if found is None or session.info.get(PEOPLE_DECIDE) or state_of(found.Invitation, now) != "open":
        raise NotFound(
            "This invitation was used or revoked, or has expired. Ask the person who invited you for a new link."
        )
    return found.Invitation, found.ApiKey


def accept(
    session: Session, secret: str, *, name: str, introduction: str, valid: timedelta, now: datetime
) -> tuple[Invitation, str]:
    """Use an invitation. Return it with the token of the new key, which expires no later than the inviter's key.

    A future admin or owner sends the introduction of their own token, and the returned token is empty.
    """
    invitation, inviting = find_open(session, secret, now=now, lock=True)
    invitation.name, invitation.used_at, token = require_name(name, "Your name"), now, ""
    if invitation.role in DECIDING:
        invitation.key_id, invitation.key_hash = parse_introduction(introduction)
        require_free(session, invitation.name, invitation.key_id)
    else:
        invitation.key_id, token, digest = make_token()
        end = now + valid if inviting.expires_at is None else min(now + valid, inviting.expires_at)
        facts = {"scopes": list(ROLES[invitation.role]), "project_id": invitation.project_id, "expires_at": end}
        key = ApiKey(id=invitation.key_id, hash=digest, name=invitation.name, created_by=inviting.id, **facts)
        add_key(session, key, now)
    session.flush()
    record(session, Act.JOINED, invitation.id, project_id=invitation.project_id)
    return invitation, token


def revoke(session: Session, invitation_id: str, *, now: datetime) -> Invitation:
    """Revoke a link, or the unanswered introduction of a future admin. Idempotent. The key of a member remains."""
    invitation = find(session, Invitation, invitation_id, lock=True)
    if invitation.used_at is not None and invitation.role not in DECIDING:
        raise Conflict("This invitation was accepted. Revoke the person's key instead.", key_id=invitation.key_id)
    if invitation.revoked_at is None:
        invitation.revoked_at = now
        session.flush()
        record(session, Act.UNINVITED, invitation.id, project_id=invitation.project_id)
    return invitation


def state_of(invitation: Invitation, now: datetime) -> str:
    """Return the state of an invitation: open, accepted, revoked or expired."""
    if invitation.revoked_at is not None:
        return "revoked"
    if invitation.used_at is not None:
        return "accepted"
    return "open" if invitation.expires_at > now else "expired"


def awaiting_admission(session: Session, now: datetime) -> Sequence[Invitation]:
    """Return accepted invitations of future admins and owners whose admission was not requested yet, oldest first."""
    known = select(ApiKey.id).where(ApiKey.id == Invitation.key_id)
    asked = select(Decision.id).where(Decision.key_id == Invitation.key_id, Decision.state == DecisionState.PENDING)
    waiting = visible(session, Invitation).where(
        Invitation.key_hash.is_not(None),
        Invitation.revoked_at.is_(None),
        Invitation.used_at > now - LIFETIME,
        ~known.exists(),
        ~asked.exists(),
    )
    return session.scalars(waiting.order_by(Invitation.used_at, Invitation.id).limit(OPEN_MAX)).all()
