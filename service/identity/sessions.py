"""Browser sessions, opened with an API key, a one-time link or the sign-in provider.

The cookie is random, and its SHA-256 identifies a row with key and expiry. Every request checks the row and the key, so
signing out or revoking the key invalidates all copies of the cookie at once.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import bindparam, delete, func, select
from sqlalchemy.orm import Session

from obscura.wire.ids import digest_token
from service.db.access_tables import Admin, ApiKey, Person, SignIn
from service.db.base import UtcDateTime
from service.identity.access import Principal
from service.identity.auth import is_usable, principal_of, require_confirmed
from service.identity.recording import Act, record

SESSION_SECONDS = 8 * 3600
SESSIONS_PER_KEY_MAX = 20  # older sessions are closed
_TOKEN_BYTES = 32
# The first query of every page. Built once, because building it costs more than running it.
_SESSION = (
    select(
        ApiKey,
        SignIn.expires_at,
        is_usable(bindparam("now", type_=UtcDateTime())).label("usable"),
        func.coalesce(Person.name, Admin.name, ApiKey.name).label("shown_name"),
    )
    .join(ApiKey, ApiKey.id == SignIn.key_id)
    .outerjoin(Admin, Admin.id == ApiKey.admin_id)
    .outerjoin(Person, Person.id == ApiKey.person_id)
    .where(SignIn.token_sha256 == bindparam("token_sha256"))
)


def open_session(session: Session, key_id: str, *, now: datetime) -> str:
    """Open a session for a key and return its cookie, which is not stored. Removes expired sessions."""
    session.execute(delete(SignIn).where(SignIn.expires_at <= now))
    open_ones = select(SignIn).where(SignIn.key_id == key_id).order_by(SignIn.created_at.desc(), SignIn.token_sha256)
    for oldest in session.scalars(open_ones.offset(SESSIONS_PER_KEY_MAX - 1)).all():
        session.delete(oldest)
    cookie = secrets.token_hex(_TOKEN_BYTES)
    expires_at = now + timedelta(seconds=SESSION_SECONDS)
    session.add(SignIn(token_sha256=digest_token(cookie), key_id=key_id, created_at=now, expires_at=expires_at))
    session.flush()
    record(session, Act.SIGNED_IN, key_id, project_id=session.get_one(ApiKey, key_id).project_id)
    return cookie


@dataclass(frozen=True)
class SignedIn:
    """The caller of a session, the token for its forms, and the name of the person, admin or key."""

    principal: Principal
    form_token: str
    name: str


def find_session(session: Session, cookie: str, *, now: datetime) -> SignedIn | None:
    """Return the caller of a cookie, or None if its session or key is invalid.

    Raise Unauthorized for a person whom the sign-in provider has not confirmed within the last minute.
    """
    found = session.execute(_SESSION, {"token_sha256": digest_token(cookie), "now": now}).one_or_none()
    if found is None or found.expires_at <= now:
        return None
    if found.ApiKey.revoked_at is None:
        require_confirmed(session, found.ApiKey.person_id, now, in_browser=True)
    return SignedIn(principal_of(found.ApiKey), form_token(cookie), found.shown_name) if found.usable else None


def close_session(session: Session, cookie: str) -> None:
    """End a session. Idempotent."""
    ended = delete(SignIn).where(SignIn.token_sha256 == digest_token(cookie)).returning(SignIn.key_id)
    for key_id in session.scalars(ended).all():
        record(session, Act.SIGNED_OUT, key_id, project_id=session.get_one(ApiKey, key_id).project_id)


def form_token(cookie: str) -> str:
    """Return the CSRF token for a session's forms."""
    return hmac.new(cookie.encode(errors="surrogatepass"), b"form", hashlib.sha256).hexdigest()
