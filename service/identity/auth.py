"""Authentication: API keys, and browser sessions, which are opened with a key, a one-time link or a sign-in provider.

Keys are hashed, scoped and revocable; admins' keys belong to people (`admins`). Revoking a key also revokes all keys
created with it, directly or indirectly, because a thief may have created some.

A session's cookie is random, and its SHA-256 identifies a row with key and expiry. Every request checks the row and the
key, so signing out or revoking the key invalidates all copies of the cookie at once.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Select, bindparam, delete, exists, func, not_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from obscura.wire.ids import digest_token, make_token
from obscura.wire.words import Admission
from service.background import Background
from service.db.access_tables import Admin, ApiKey, Invitation, Person, SignIn, Webhook
from service.db.base import UtcDateTime
from service.db.session import SessionFactory, transaction
from service.errors import Conflict, Forbidden, InvalidInput, Unauthorized, require_name
from service.identity import projects
from service.identity.access import ROLES, Principal, Scope, find
from service.identity.recording import Act, record
from service.times import to_the_hour

_TOKEN = re.compile(r"obs_([a-z2-7]{20})_([0-9a-f]{64})")
_UNKNOWN = "This API key is unknown or was revoked."
_NO_HASH = hashlib.sha256(b"no such key").hexdigest()
SESSION_CONFIRMED = timedelta(minutes=1)  # validity of browser sessions after each confirmation by the provider
SESSION_SECONDS = 8 * 3600
VIEW_NAME = "view of a project"  # of keys with which admins of the installation view a project
SESSIONS_PER_KEY_MAX = 20  # older sessions are closed


def create_key(
    session: Session,
    *,
    name: str,
    scopes: Iterable[str] = (),
    role: str | None = None,
    now: datetime,
    by: Principal | None = None,
    expires_at: datetime | None = None,
    project_id: str | None = None,
) -> tuple[ApiKey, str]:
    """Create a key and return it with its token. Only the token's SHA-256 is stored.

    Args:
        scopes: at least one, unless a role is given.
        by: the caller, whose scopes and expiry limit the new key, and whose admin owns it if it has the scope admin.
        expires_at: None for the expiry of the creating key.
        project_id: None for the project of the creating key, or the only project. If an admin of the installation
            creates a key with the scope admin and no role, None is the installation.
    """
    name = require_name(name, "A key's name")
    try:
        named = {Scope(scope) for scope in scopes}
        chosen = sorted(named if role is None else ROLES[role])
    except (ValueError, KeyError) as error:
        raise InvalidInput(
            f"Unknown scope or role: {error}. The scopes are {', '.join(Scope)}, the roles {', '.join(ROLES)}."
        ) from None
    if not chosen or (named and role is not None):
        raise InvalidInput(f"A key has either a role ({', '.join(ROLES)}) or scopes ({', '.join(Scope)}).")
    if by is not None:
        for scope in chosen:
            by.require(Scope(scope))
    if Scope.ADMIN in chosen and (by is None or by.admin_id is None):
        raise InvalidInput("A key with the scope admin must belong to an admin: see `obscura admins --help`.")
    of_installation = Scope.ADMIN in chosen and role is None and (by is None or by.project_id is None)
    if not of_installation or project_id is not None:
        project_id = projects.choose(session, project_id)
    key_id, token, digest = make_token()
    key = ApiKey(
        id=key_id,
        hash=digest,
        name=name,
        scopes=[scope.value for scope in chosen],
        created_by=by and by.id,
        admin_id=by.admin_id if by is not None and Scope.ADMIN in chosen else None,
        project_id=project_id,
        expires_at=expires_at,
    )
    return add_key(session, key, now), token


def add_key(session: Session, key: ApiKey, now: datetime) -> ApiKey:
    """Add a key. It belongs to the person of its creating key, and expires no later than the creating key."""
    requested = key.expires_at
    if requested is not None and requested <= now:
        raise InvalidInput(f"A key cannot expire at {_moment(requested)}, which is in the past.")
    if key.created_by is not None:  # locked, so that a concurrent revocation includes the new key
        asking = session.get_one(ApiKey, key.created_by, with_for_update={"read": True}, populate_existing=True)
        end = asking.expires_at
        if asking.revoked_at is not None:
            raise Unauthorized(_UNKNOWN)
        if requested is not None and end is not None and requested > end:
            raise InvalidInput(f"Your key expires at {_moment(end)}. A key that it creates cannot expire later.")
        key.person_id, key.expires_at = asking.person_id, requested or end
    key.created_at = now
    session.add(key)
    session.flush()
    record(session, Act.KEY_MADE, key.id, project_id=key.project_id)
    return key


def rotate_key(
    session: Session,
    *,
    key_id: str,
    overlap_seconds: int,
    by: Principal,
    now: datetime,
    expires_at: datetime | None,
) -> tuple[ApiKey, str]:
    """Create a key with the name, scopes and project of an old key. The old key then expires in `overlap_seconds`.

    The caller `by` receives the new token. `expires_at` is the expiry of the new key, as in `create_key`.
    """
    old = find(session, ApiKey, key_id, lock=True)
    if old.admin_id is not None and old.admin_id != by.admin_id:
        raise Forbidden("Only the admin who owns this key can rotate it.", key_id=key_id)
    if old.person_id is not None and old.created_by is None:
        raise Conflict(
            "This key represents a role that a person has through groups: it has no token to rotate.", key_id=key_id
        )
    if old.revoked_at is not None or (old.expires_at is not None and old.expires_at <= now):
        raise Conflict("This key was revoked or has expired. Create another one.", key_id=key_id)
    facts: dict[str, Any] = {"name": old.name, "scopes": old.scopes, "project_id": old.project_id}
    made = create_key(session, **facts, now=now, by=by, expires_at=expires_at)
    end = now + timedelta(seconds=overlap_seconds)
    old.expires_at = end if old.expires_at is None else min(old.expires_at, end)
    # Webhooks and unused invitations of the old key continue with the new key.
    session.execute(update(Webhook).where(Webhook.made_by == old.id).values(made_by=made[0].id))
    unused = Invitation.created_by == old.id, Invitation.used_at.is_(None)
    session.execute(update(Invitation).where(*unused).values(created_by=made[0].id))
    session.flush()
    record(session, Act.KEY_ROTATED, old.id, project_id=old.project_id)
    return made


def authenticate(session: Session, token: str, *, now: datetime) -> Principal:
    """Return the caller of a token. Unknown ids take as long as known ids, so timing does not reveal which ids exist.

    Raises:
        Unauthorized: the token is unknown, revoked or expired, or the provider has not confirmed its person recently.
    """
    claimed = claimed_id(token)
    key = session.get(ApiKey, claimed) if claimed else None
    matches = hmac.compare_digest(digest_token(token), key.hash if key else _NO_HASH)
    if key is None or not matches or key.revoked_at is not None:
        raise Unauthorized(_UNKNOWN)
    if key.expires_at is not None and key.expires_at <= now:
        raise Unauthorized(f"This API key expired at {_moment(key.expires_at)}. An admin can create another one.")
    require_confirmed(session, key.person_id, now)
    return principal_of(key)


def claimed_id(token: str) -> str:
    """Return the key id in a token; empty if the text is not a token."""
    form = _TOKEN.fullmatch(token)
    return f"key_{form[1]}" if form else ""


def principal_of(key: ApiKey) -> Principal:
    return Principal(key.id, frozenset(map(Scope, key.scopes)), key.admin_id, key.project_id, key.person_id)


def require_confirmed(session: Session, person_id: str | None, now: datetime, *, in_browser: bool = False) -> None:
    """Raise Unauthorized unless there is no person, or the provider confirmed them recently.

    After a confirmation, sessions (`in_browser`) stay valid for a shorter time than keys.
    """
    if person_id is None:
        return
    person = session.get_one(Person, person_id, populate_existing=True)
    if person.lapsed_at is not None:
        raise Unauthorized(
            f"Since {_moment(person.lapsed_at)}, the sign-in provider no longer vouches for {person.name}. Sign in "
            "through the provider again: until you do, your keys and sessions do not work."
        )
    until = person.confirmed_at + SESSION_CONFIRMED if in_browser else person.keys_until
    if until <= now:
        what = "a session" if in_browser else "a key"
        raise Unauthorized(
            f"The sign-in provider does not answer. It last vouched for {person.name} at "
            f"{_moment(person.confirmed_at)}, and {what} stays valid without a confirmation until {_moment(until)}. "
            "Your keys and sessions work again as soon as the provider answers."
        )


def is_usable(now: datetime | BindParameter[datetime]) -> ColumnElement[bool]:
    """Return the SQL condition that a key is neither revoked nor expired, and its person, if any, is confirmed."""
    confirmed = exists().where(Person.id == ApiKey.person_id, Person.lapsed_at.is_(None), Person.keys_until > now)
    return (
        ApiKey.revoked_at.is_(None)
        & (ApiKey.expires_at.is_(None) | (ApiKey.expires_at > now))
        & (ApiKey.person_id.is_(None) | confirmed.correlate(ApiKey))
    )


# The first query of every page. Built once, because building it costs more than running it.
_SESSION = (
    select(
        ApiKey,
        SignIn.expires_at,
        SignIn.return_key_id,
        is_usable(bindparam("now", type_=UtcDateTime())).label("usable"),
        func.coalesce(Person.name, Admin.name, ApiKey.name).label("shown_name"),
    )
    .join(ApiKey, ApiKey.id == SignIn.key_id)
    .outerjoin(Admin, Admin.id == ApiKey.admin_id)
    .outerjoin(Person, Person.id == ApiKey.person_id)
    .where(SignIn.token_sha256 == bindparam("token_sha256"))
)


def find_usable(session: Session, key_id: str, *, now: datetime) -> ApiKey | None:
    return session.scalar(select(ApiKey).where(ApiKey.id == key_id, is_usable(now)))


def revoke_key(
    session: Session, *, key_id: str, admin_id: str | None, now: datetime, include_created: bool = True
) -> tuple[ApiKey, int]:
    """Revoke a key that one admin may revoke alone; return it, and the number of other revoked keys. Idempotent.

    One admin may revoke their own keys, keys of owners whom they named alone, and keys without an admin. Revoking
    another admin's keys takes two people (`admins.request_revocation`): otherwise one admin could lock out all others.

    `admin_id` is the requesting admin. `include_created`: also revoke all keys that this key created, directly or
    indirectly.
    """
    key = find(session, ApiKey, key_id)
    session.refresh(key)
    this = ApiKey.id == key_id
    alone = Admin.requested_by == admin_id, Admin.admission == Admission.ALONE, Admin.project_id.is_not(None)
    ours = ApiKey.admin_id.is_not_distinct_from(admin_id) | ApiKey.admin_id.in_(select(Admin.id).where(*alone))
    theirs = ApiKey.admin_id.is_not(None) & not_(ours)
    going = ApiKey.id.in_(with_created(this)) if include_created else this
    if session.scalar(select(ApiKey.id).where(going, theirs, ApiKey.revoked_at.is_(None)).limit(1)) is not None:
        raise Forbidden(
            "Only the admin who owns this key, or two other admins, can revoke it. Request the revocation with "
            "`obscura admins revoke`; another admin must approve it.",
            key_id=key_id,
        )
    was_valid = key.revoked_at is None
    revoked = revoke(session, this, now=now, include_created=include_created)
    session.refresh(key)
    return key, revoked - was_valid


def revoke(session: Session, chosen: ColumnElement[bool], *, now: datetime, include_created: bool = True) -> int:
    """Revoke keys and all keys that they created; return how many. The caller must check the permission.

    A transaction that creates a key locks the creating key. So this function waits for the transaction to end, and
    revokes the new key in the next round.
    """
    going = ApiKey.id.in_(with_created(chosen)) if include_created else chosen
    of = ApiKey.id, ApiKey.project_id
    valid = select(*of).where(going, ApiKey.revoked_at.is_(None)).order_by(ApiKey.id).with_for_update()
    revoked = 0
    while keys := session.execute(valid).all():
        session.execute(update(ApiKey), [{"id": key_id, "revoked_at": now} for key_id, _ in keys])
        for key_id, project_id in keys:
            record(session, Act.KEY_REVOKED, key_id, project_id=project_id)
        revoked += len(keys)
    return revoked


def with_created(chosen: ColumnElement[bool]) -> Select[tuple[str]]:
    """Return the query for ids of keys and of all keys that they created, directly or indirectly, revoked or not."""
    made = select(ApiKey.id).where(chosen).cte("made", recursive=True)
    return select(made.union(select(ApiKey.id).join(made, ApiKey.created_by == made.c.id)).c.id)


def view_project(session: Session, by: Principal, project_id: str, *, now: datetime) -> ApiKey:
    """Return the key with which an admin of the installation views a project as its owner.

    It is a key that the admin could also create in another way, and the project's owners see it. Its token is
    discarded. It does not expire before the admin's key, because that would end the keys and webhooks created with it.
    """
    by.require_installation()
    facts: dict[str, Any] = {"project_id": project_id, "name": VIEW_NAME}
    own = select(ApiKey).filter_by(created_by=by.id, admin_id=by.admin_id, **facts)
    key = session.scalar(own.where(is_usable(now)).limit(1))
    if key is None:
        key, _token = create_key(session, scopes=[Scope.ADMIN], now=now, by=by, **facts)
    record(session, Act.PROJECT_VIEWED, key.id, project_id=project_id)
    return key


def open_session(session: Session, key_id: str, *, now: datetime, return_key_id: str | None = None) -> str:
    """Open a session for a key and return its cookie, which is not stored. Removes expired sessions.

    `return_key_id` is the key of the admin who views a project in this session.
    """
    session.execute(delete(SignIn).where(SignIn.expires_at <= now))
    open_ones = select(SignIn).where(SignIn.key_id == key_id).order_by(SignIn.created_at.desc(), SignIn.token_sha256)
    for oldest in session.scalars(open_ones.offset(SESSIONS_PER_KEY_MAX - 1)).all():
        session.delete(oldest)
    cookie = secrets.token_hex(32)
    expires_at = now + timedelta(seconds=SESSION_SECONDS)
    row = SignIn(token_sha256=digest_token(cookie), key_id=key_id, created_at=now, expires_at=expires_at)
    row.return_key_id = return_key_id
    session.add(row)
    session.flush()
    record(session, Act.SIGNED_IN, key_id, project_id=session.get_one(ApiKey, key_id).project_id)
    return cookie


@dataclass(frozen=True)
class SignedIn:
    """The caller of a session, the token for its forms, and the name of the person, admin or key.

    `return_key_id` is the key of the admin of the installation who views the caller's project.
    """

    principal: Principal
    form_token: str
    name: str
    return_key_id: str | None


def find_session(session: Session, cookie: str, *, now: datetime) -> SignedIn | None:
    """Return the caller whom a session cookie identifies, or None if its session or key is invalid.

    Raise Unauthorized for a person whom the sign-in provider has not confirmed within the last minute.
    """
    found = session.execute(_SESSION, {"token_sha256": digest_token(cookie), "now": now}).one_or_none()
    if found is None or found.expires_at <= now:
        return None
    if found.ApiKey.revoked_at is None:
        require_confirmed(session, found.ApiKey.person_id, now, in_browser=True)
    if not found.usable:
        return None
    return SignedIn(principal_of(found.ApiKey), form_token(cookie), found.shown_name, found.return_key_id)


def close_session(session: Session, cookie: str) -> None:
    """End a session. Idempotent."""
    ended = delete(SignIn).where(SignIn.token_sha256 == digest_token(cookie)).returning(SignIn.key_id)
    for key_id in session.scalars(ended).all():
        record(session, Act.SIGNED_OUT, key_id, project_id=session.get_one(ApiKey, key_id).project_id)


def form_token(cookie: str) -> str:
    return hmac.new(cookie.encode(errors="surrogatepass"), b"form", hashlib.sha256).hexdigest()


class KeyUses(Background):
    """Writes the hour of each key's last use, in a thread. If a write is lost, the key's next use repeats it."""

    restart_seconds = 60.0

    def __init__(self, factory: SessionFactory) -> None:
        super().__init__("obscura-key-uses")
        self._factory = factory
        self._lock = threading.Lock()
        self._hours: dict[str, datetime] = {}
        self._unwritten: dict[str, datetime] = {}

    def note(self, key_id: str, now: datetime) -> None:
        """Note that a key was used. Does not block."""
        hour = to_the_hour(now)
        with self._lock:
            if self._hours.get(key_id) == hour:
                return
            self._hours[key_id] = self._unwritten[key_id] = hour
        self._noted.set()

    def write(self) -> None:
        """Write the uses noted so far; keep them if that fails. Never replaces a later hour."""
        with self._lock:
            hours, self._unwritten = self._unwritten, {}
        try:
            if hours:
                with transaction(self._factory) as session:
                    for key_id, hour in sorted(hours.items()):  # in a fixed order, to avoid deadlocks between processes
                        earlier = ApiKey.last_used_at.is_(None) | (ApiKey.last_used_at < hour)
                        session.execute(update(ApiKey).where(ApiKey.id == key_id, earlier).values(last_used_at=hour))
        except SQLAlchemyError:
            with self._lock:
                self._unwritten = hours | self._unwritten
            raise

    def _work(self) -> None:
        for _ in self._notes():
            self.write()


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
