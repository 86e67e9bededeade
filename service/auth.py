"""API keys: hashed, scoped, revocable; those of admins belong to people (`service.admins`)."""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.access_tables import ApiKey
from service.db.base import new_id
from service.errors import Forbidden, InvalidInput, NotFound, Unauthorized
from service.names import require_name

SECRET_BYTES = 32
_TOKEN = re.compile(r"obs_([a-z2-7]{20})_([0-9a-f]{64})")
_NO_HASH = hashlib.sha256(b"no such key").hexdigest()


class Scope(enum.StrEnum):
    """What a key may do. `admin` includes every other scope."""

    ADMIN = "admin"
    DATA = "data"
    TRAIN = "train"
    READ = "read"


@dataclass(frozen=True)
class Principal:
    """Who is asking: a key's id, its scopes, and the person behind it where it is an admin's."""

    id: str
    scopes: frozenset[Scope]
    admin_id: str | None = None

    def require(self, scope: Scope) -> None:
        """Let the caller pass, or not.

        Raises:
            Forbidden: the key has neither this scope nor `admin`.
        """
        if not self.scopes & {scope, Scope.ADMIN}:
            has = ", ".join(sorted(self.scopes)) or "none"
            raise Forbidden(f"This needs a key with the scope {scope.value!r}; this key has {has}.", needed=scope.value)


def create_key(
    session: Session,
    *,
    name: str,
    scopes: Iterable[str],
    now: datetime,
    created_by: str | None = None,
    admin_id: str | None = None,
) -> tuple[ApiKey, str]:
    """Create a key.

    Args:
        session: in a writing transaction.
        name: for people.
        scopes: at least one.
        now: aware.
        created_by: id of the key whose holder asks for it and sees its token; None on the service's own machine.
        admin_id: the person who asks, whose key it will be if it has the scope admin.

    Returns:
        The key, and its token, which is shown this once: only its SHA-256 is kept.

    Raises:
        InvalidInput: no scope or an unknown one, a bad name, or a key with the scope admin that would be nobody's.
    """
    require_name(name, "A key's name")
    try:
        chosen = sorted({Scope(scope) for scope in scopes})
    except ValueError as error:
        raise InvalidInput(f"{error}: the scopes are {', '.join(Scope)}.") from None
    if not chosen:
        raise InvalidInput(f"A key needs at least one scope of {', '.join(Scope)}.")
    if Scope.ADMIN in chosen and admin_id is None:
        raise InvalidInput("A key with the scope admin belongs to a person: admit one, see `obscura admins --help`.")
    key_id, token, digest = make_token()
    owner = admin_id if Scope.ADMIN in chosen else None
    key = remember_key(
        session, key_id, digest, name=name, scopes=chosen, admin_id=owner, created_by=created_by, now=now
    )
    return key, token


def make_token() -> tuple[str, str, str]:
    """Return the id of a new key, its token with 256 random bits, and the SHA-256 by which the token is known."""
    key_id = new_id("key")
    token = f"obs_{key_id.removeprefix('key_')}_{secrets.token_hex(SECRET_BYTES)}"
    return key_id, token, _hash(token)


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
) -> ApiKey:
    """Let a token be used from now on, of which only its SHA-256 is known here."""
    key = ApiKey(
        id=key_id,
        name=name,
        hash=digest,
        scopes=[scope.value for scope in scopes],
        admin_id=admin_id,
        created_by=created_by,
        created_at=now,
    )
    session.add(key)
    session.flush()
    return key


def authenticate(session: Session, token: str) -> Principal:
    """Find the caller behind a token. An unknown id costs the same comparison as a known one.

    Raises:
        Unauthorized: the token is not one of ours, or was revoked.
    """
    form = _TOKEN.fullmatch(token)
    key = session.get(ApiKey, f"key_{form[1]}") if form else None
    matches = hmac.compare_digest(_hash(token), key.hash if key else _NO_HASH)
    if key is None or not matches or key.revoked_at is not None:
        raise Unauthorized("This API key is not known here, or was revoked.")
    return principal_of(key)


def principal_of(key: ApiKey) -> Principal:
    """Return the caller behind a key; whether it is valid was checked."""
    return Principal(id=key.id, scopes=frozenset(Scope(scope) for scope in key.scopes), admin_id=key.admin_id)


def is_valid(session: Session, key_id: str) -> bool:
    """Tell whether a key exists and was not revoked: what a connection that stays open asks again and again."""
    known = select(ApiKey.id).where(ApiKey.id == key_id, ApiKey.revoked_at.is_(None))
    return session.scalar(known) is not None


def revoke_key(session: Session, *, key_id: str, now: datetime) -> ApiKey:
    """Revoke a key, for good. Revoking twice keeps the first time.

    Raises:
        NotFound: no such key.
    """
    key = session.get(ApiKey, key_id)
    if key is None:
        raise NotFound("There is no such key.", key_id=key_id)
    key.revoked_at = key.revoked_at or now
    session.flush()
    return key


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
