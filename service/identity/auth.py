"""API keys: hashed, scoped, revocable; those of admins belong to people (`service.identity.admins`).

What a key made goes with it, and what those keys made, and so on: whoever has stolen one may have made others.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import threading
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Row, Select, exists, not_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from obscura.wire.ids import digest_token, make_token
from obscura.wire.words import Admission
from service.background import Background
from service.db.access_tables import Admin, ApiKey, Person
from service.db.session import SessionFactory, transaction
from service.db.webhook_tables import Webhook
from service.errors import Conflict, Forbidden, InvalidInput, NotFound, Unauthorized, require_name
from service.identity import projects
from service.identity.access import ROLES, Principal, Role, Scope, find, require_visible
from service.identity.recording import Act, record
from service.logs import get_logger
from service.times import to_the_hour

_TOKEN = re.compile(r"obs_([a-z2-7]{20})_([0-9a-f]{64})")
_UNKNOWN = "This API key is not known here, or was revoked."
_NO_HASH = hashlib.sha256(b"no such key").hexdigest()
SESSION_CONFIRMED = timedelta(minutes=1)  # how long a session in a browser goes on without the provider's word
RETRY_SECONDS = 60.0


def create_key(
    session: Session,
    *,
    name: str,
    scopes: Iterable[str] = (),
    role: str | None = None,
    now: datetime,
    created_by: str | None = None,
    admin_id: str | None = None,
    expires_at: datetime | None = None,
    project_id: str | None = None,
) -> tuple[ApiKey, str]:
    """Create a key. One that is made by a key with an end ends with it, or before.

    Args:
        scopes: at least one, or else a role.
        role: in a project, in place of the scopes that it stands for.
        created_by: id of the key whose holder asks for it and sees its token; None on the service's own machine.
        admin_id: the person who asks, whose key it will be if it has the scope admin.
        expires_at: from when on it opens nothing; None for as late as the key that asks, or never.
        project_id: whose rows it opens; None for the project of the key that asks, or the only one there is. A key
            with the scope admin that an admin of the installation asks for without a project or a role is such an
            admin's, too.

    Returns:
        The key, and its token, which is shown this once: only its SHA-256 is kept.

    Raises:
        InvalidInput: no scope or an unknown one, a bad name, a role beside scopes, a key with the scope admin
            that would be nobody's, one of which it is not said to which of several projects it belongs, or an end that
            is over or is later than that of the key that asks.
        NotFound: there is no such project.
        Forbidden: it could do more than the key that asks.
        Unauthorized: the key that asks was revoked meanwhile.
    """
    name = require_name(name, "A key's name")
    try:
        named = {Scope(scope) for scope in scopes}
        chosen = sorted(named if role is None else ROLES[Role(role)])
    except ValueError as error:
        raise InvalidInput(f"{error}: the scopes are {', '.join(Scope)}, the roles {', '.join(Role)}.") from None
    if not chosen or (named and role is not None):
        raise InvalidInput(
            f"A key has a role ({', '.join(Role)}) or else scopes ({', '.join(Scope)}): give one of these."
        )
    asking = None if created_by is None else session.get_one(ApiKey, created_by)
    if asking is not None:
        for scope in chosen:
            principal_of(asking).require(Scope(scope))
    if Scope.ADMIN in chosen and admin_id is None:
        raise InvalidInput("A key with the scope admin belongs to a person: admit one, see `obscura admins --help`.")
    of_installation = Scope.ADMIN in chosen and role is None and (asking is None or asking.project_id is None)
    if not of_installation or project_id is not None:
        project_id = projects.choose(session, project_id)
    key_id, token, digest = make_token()
    key = remember_key(
        session,
        key_id,
        digest,
        name=name,
        scopes=chosen,
        admin_id=admin_id if Scope.ADMIN in chosen else None,
        created_by=created_by,
        project_id=project_id,
        expires_at=made_until(session, expires_at, created_by, now),
        now=now,
    )
    return key, token


def made_until(session: Session, wished: datetime | None, created_by: str | None, now: datetime) -> datetime | None:
    """Return when a new key ends. Keeps the key that asks from being revoked until this one is there to go with it.

    Raises:
        InvalidInput: the end that is wished for is over, or is later than that of the key that asks.
        Unauthorized: the key that asks was revoked meanwhile.
    """
    end = None
    if created_by is not None:
        asking = session.get_one(ApiKey, created_by, with_for_update={"read": True}, populate_existing=True)
        if asking.revoked_at is not None:
            raise Unauthorized(_UNKNOWN)
        end = asking.expires_at
    if wished is not None and wished <= now:
        raise InvalidInput(f"A key cannot end at {_moment(wished)}, which is over.")
    if wished is not None and end is not None and wished > end:
        raise InvalidInput(f"The key that you use ends at {_moment(end)}, and so does what it makes, at the latest.")
    return wished or end


def remember_key(
    session: Session,
    key_id: str,
    digest: str,
    *,
    name: str,
    scopes: Iterable[Scope],
    admin_id: str | None,
    now: datetime,
    created_by: str | None = None,
    expires_at: datetime | None = None,
    project_id: str | None = None,
    person_id: str | None = None,
) -> ApiKey:
    """Let a token be used from now on, of which only its SHA-256 is known here; of the person whose key has made it."""
    if created_by is not None:
        person_id = session.get_one(ApiKey, created_by).person_id
    key = ApiKey(
        id=key_id,
        name=name,
        hash=digest,
        scopes=[scope.value for scope in scopes],
        admin_id=admin_id,
        created_by=created_by,
        created_at=now,
        expires_at=expires_at,
        project_id=project_id,
        person_id=person_id,
    )
    session.add(key)
    session.flush()
    record(session, Act.KEY_MADE, key.id, project_id=project_id)
    return key


def rotate_key(
    session: Session,
    *,
    key_id: str,
    overlap_seconds: int,
    created_by: str,
    admin_id: str | None,
    now: datetime,
    expires_at: datetime | None = None,
) -> tuple[ApiKey, str]:
    """Make a key that takes another one's place, which goes on opening what it opens for a while.

    Args:
        key_id: of the one that is to go; the new one has its name, scopes and project.
        overlap_seconds: for how long it still opens something, at most; 0 ends it at once.
        created_by: id of the key whose holder asks for it and sees the new token.
        admin_id: the person who asks.
        expires_at: when the new one ends, as in `create_key`.

    Returns:
        The new key, and its token, which is shown this once.

    Raises:
        NotFound: no such key.
        Forbidden: it is another admin's.
        Conflict: it was revoked, or has expired: whoever has it has no use for another one; or it stands for a role.
        InvalidInput: the new one would end too late, or in the past.
    """
    old = find(session, ApiKey, key_id, lock=True)
    if old.admin_id is not None and old.admin_id != admin_id:
        raise Forbidden("An admin's keys are rotated by that person.", key_id=key_id)
    if old.person_id is not None and old.created_by is None:
        raise Conflict("This key stands for a person's role, by their groups. Nobody has its token.", key_id=key_id)
    if old.revoked_at is not None or (old.expires_at is not None and old.expires_at <= now):
        raise Conflict("This key was revoked or has expired. Create another one.", key_id=key_id)
    made = create_key(
        session,
        name=old.name,
        scopes=old.scopes,
        now=now,
        created_by=created_by,
        admin_id=admin_id,
        expires_at=expires_at,
        project_id=old.project_id,
    )
    end = now + timedelta(seconds=overlap_seconds)
    old.expires_at = end if old.expires_at is None else min(old.expires_at, end)
    session.execute(update(Webhook).where(Webhook.made_by == old.id).values(made_by=made[0].id))  # which would end, too
    session.flush()
    record(session, Act.KEY_ROTATED, old.id, project_id=old.project_id)
    return made


def authenticate(session: Session, token: str, *, now: datetime) -> Principal:
    """Find the caller behind a token. An unknown id costs the same comparison as a known one.

    Raises:
        Unauthorized: the token is not one of ours, was revoked, or has expired, which is said to its holder alone; or
            it is of a person whom the sign-in provider has not confirmed for too long.
    """
    claimed = claimed_id(token)
    key = session.get(ApiKey, claimed) if claimed else None
    matches = hmac.compare_digest(digest_token(token), key.hash if key else _NO_HASH)
    if key is None or not matches or key.revoked_at is not None:
        raise Unauthorized(_UNKNOWN)
    if key.expires_at is not None and key.expires_at <= now:
        raise Unauthorized(f"This API key expired at {_moment(key.expires_at)}. An admin can make another one.")
    require_confirmed(session, key.person_id, now)
    return principal_of(key)


def claimed_id(token: str) -> str:
    """Return the id of the key that a text says to be the token of; empty where it has not the form of a token."""
    form = _TOKEN.fullmatch(token)
    return f"key_{form[1]}" if form else ""


def principal_of(key: ApiKey | Row[*tuple[Any, ...]]) -> Principal:
    """Return the caller behind a key, or a row of its columns; whether it is valid was checked."""
    scopes = frozenset(Scope(scope) for scope in key.scopes)
    of = {"admin_id": key.admin_id, "project_id": key.project_id, "person_id": key.person_id}
    return Principal(id=key.id, scopes=scopes, **of)


def is_confirmed(now: datetime | BindParameter[datetime]) -> ColumnElement[bool]:
    """The condition that a key is of no person, or of one whose keys go on."""
    goes_on = exists().where(Person.id == ApiKey.person_id, Person.lapsed_at.is_(None), Person.keys_until > now)
    return ApiKey.person_id.is_(None) | goes_on.correlate(ApiKey)


def require_confirmed(session: Session, person_id: str | None, now: datetime, *, in_browser: bool = False) -> None:
    """Let whoever is no person of a provider pass, and somebody for whom it vouched a short while ago.

    Args:
        in_browser: whether a session asks, which goes on for a shorter time than a key does.

    Raises:
        Unauthorized: it no longer does, or has not answered for too long; the message says which.
    """
    if person_id is None:
        return
    person = session.get_one(Person, person_id, populate_existing=True)
    if person.lapsed_at is not None:
        raise Unauthorized(
            f"The sign-in provider no longer vouches for {person.name}, since {_moment(person.lapsed_at)}. Sign in "
            "with it again: until then nothing of yours opens anything."
        )
    until = person.confirmed_at + SESSION_CONFIRMED if in_browser else person.keys_until
    if until <= now:
        what = "a session" if in_browser else "a key"
        raise Unauthorized(
            f"The sign-in provider does not answer. It last vouched for {person.name} at "
            f"{_moment(person.confirmed_at)}, and {what} goes on without its word until {_moment(until)}. What is "
            "yours opens again as soon as it answers."
        )


def is_usable(now: datetime | BindParameter[datetime]) -> ColumnElement[bool]:
    """The condition that a key was not revoked, has not expired, and is of nobody who is no longer confirmed."""
    in_time = ApiKey.expires_at.is_(None) | (ApiKey.expires_at > now)
    return ApiKey.revoked_at.is_(None) & in_time & is_confirmed(now)


def find_usable(session: Session, key_id: str, *, now: datetime) -> ApiKey | None:
    """Return a key that opens something now: what a session, or a connection that stays open, asks again and again."""
    return session.scalar(select(ApiKey).where(ApiKey.id == key_id, is_usable(now)))


def require_usable(session: Session, key_id: str, *, now: datetime) -> None:
    """Let what was begun with a key be done, if the key opens something still.

    Raises:
        Unauthorized: it was revoked, or has expired.
    """
    if find_usable(session, key_id, now=now) is None:
        raise Unauthorized("The key that this was begun with was revoked or has expired. Nothing was changed.")


def revoke_key(
    session: Session, *, key_id: str, admin_id: str | None, now: datetime, with_made: bool = True
) -> tuple[ApiKey, int]:
    """Revoke a key, for good, as one admin alone may: their own, those of owners whom they have named alone, and those
    that are no admin's.

    Another admin's keys take two people (`admins.ask_revocation`): whoever could revoke them alone could make themself
    the only one who decides. Revoking twice keeps the first time.

    Args:
        admin_id: the person who asks.
        with_made: also revoke all that it made, directly or not.

    Returns:
        The key, and how many others were revoked with it.

    Raises:
        NotFound: no such key.
        Forbidden: it is another admin's, or has made a key that is.
    """
    require_visible(session, ApiKey, key_id)
    key = session.get(ApiKey, key_id, populate_existing=True)
    if key is None:
        raise NotFound("There is no such key.", key_id=key_id)
    this = ApiKey.id == key_id
    alone = Admin.asked_by == admin_id, Admin.admission == Admission.ALONE, Admin.project_id.is_not(None)
    ours = ApiKey.admin_id.is_not_distinct_from(admin_id) | ApiKey.admin_id.in_(select(Admin.id).where(*alone))
    theirs = ApiKey.admin_id.is_not(None) & not_(ours)
    going = ApiKey.id.in_(with_all_made(this)) if with_made else this
    if session.scalar(select(ApiKey.id).where(going, theirs, ApiKey.revoked_at.is_(None)).limit(1)) is not None:
        raise Forbidden(
            "An admin's keys are revoked by that person, or by two others: ask with `obscura admins revoke`, and "
            "another admin approves.",
            key_id=key_id,
        )
    was_valid = key.revoked_at is None
    revoked = revoke(session, this, now=now, with_made=with_made)
    session.refresh(key)
    return key, revoked - was_valid


def revoke(session: Session, chosen: ColumnElement[bool], *, now: datetime, with_made: bool = True) -> int:
    """Revoke keys, and all that they made, and return how many. Who may do that was checked.

    A key that is being made keeps its maker locked, so it is waited for; the next round then sees and revokes it.
    """
    going = ApiKey.id.in_(with_all_made(chosen)) if with_made else chosen
    of = ApiKey.id, ApiKey.project_id
    valid = select(*of).where(going, ApiKey.revoked_at.is_(None)).order_by(ApiKey.id).with_for_update()
    revoked = 0
    while keys := session.execute(valid).all():
        session.execute(update(ApiKey), [{"id": key_id, "revoked_at": now} for key_id, _ in keys])
        for key_id, project_id in keys:
            record(session, Act.KEY_REVOKED, key_id, project_id=project_id)
        revoked += len(keys)
    return revoked


def with_all_made(chosen: ColumnElement[bool]) -> Select[tuple[str]]:
    """Return the query for the ids of some keys, of the keys that these made, and so on; revoked ones as well."""
    made = select(ApiKey.id).where(chosen).cte("made", recursive=True)
    return select(made.union(select(ApiKey.id).join(made, ApiKey.created_by == made.c.id)).c.id)


class KeyUses(Background):
    """Notes in memory which keys are used, and writes that from a thread of its own: no request waits for it.

    There is one entry for each key that was valid when it was used. A note that is lost with the process is made
    again by the next use.
    """

    def __init__(self, factory: SessionFactory) -> None:
        super().__init__("obscura-key-uses")
        self._factory = factory
        self._lock = threading.Lock()
        self._hours: dict[str, datetime] = {}
        self._unwritten: dict[str, datetime] = {}

    def note(self, key_id: str, now: datetime) -> None:
        """Note that a key was used; returns at once."""
        hour = to_the_hour(now)
        with self._lock:
            if self._hours.get(key_id) == hour:
                return
            self._hours[key_id] = self._unwritten[key_id] = hour
        self._noted.set()

    def write(self) -> bool:
        """Write what was noted since the last time; what another process has written later stays. False: try again."""
        with self._lock:
            hours, self._unwritten = self._unwritten, {}
        try:
            if hours:
                with transaction(self._factory) as session:
                    for key_id, hour in sorted(hours.items()):  # in one order, so that no two processes lock each other
                        earlier = ApiKey.last_used_at.is_(None) | (ApiKey.last_used_at < hour)
                        session.execute(update(ApiKey).where(ApiKey.id == key_id, earlier).values(last_used_at=hour))
        except SQLAlchemyError as error:
            get_logger(__name__).warning("key_uses_not_written", count=len(hours), error=type(error).__name__)
            with self._lock:
                self._unwritten = hours | self._unwritten
            return False
        return True

    def _work(self) -> None:
        while True:
            self._noted.wait()
            self._noted.clear()
            if self._stopping.is_set():
                return
            if not self.write() and not self._stopping.wait(RETRY_SECONDS):
                self._noted.set()


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
