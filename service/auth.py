"""API keys: hashed, scoped, revocable; and the first admin key of a new installation."""

from __future__ import annotations

import enum
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.access_tables import ApiKey
from service.db.base import new_id
from service.errors import Forbidden, InvalidInput, NotFound, Unauthorized

SECRET_BYTES = 32
NAME_CHARACTERS_MAX = 200
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
    """Who is asking: a key's id and its scopes."""

    id: str
    scopes: frozenset[Scope]

    def require(self, scope: Scope) -> None:
        """Let the caller pass, or not.

        Raises:
            Forbidden: the key has neither this scope nor `admin`.
        """
        if not self.scopes & {scope, Scope.ADMIN}:
            has = ", ".join(sorted(self.scopes)) or "none"
            raise Forbidden(f"This needs a key with the scope {scope.value!r}; this key has {has}.", needed=scope.value)


def create_key(
    session: Session, *, name: str, scopes: Iterable[str], now: datetime, created_by: str | None = None
) -> tuple[ApiKey, str]:
    """Create a key.

    Args:
        session: in a writing transaction.
        name: for people.
        scopes: at least one.
        now: aware.
        created_by: id of the key whose holder asks for it and sees its token; None on the service's own machine.

    Returns:
        The key, and its token, which is shown this once: only its SHA-256 is kept.

    Raises:
        InvalidInput: no scope or an unknown one, or a bad name.
    """
    if not name.strip() or len(name) > NAME_CHARACTERS_MAX or not name.isprintable():
        raise InvalidInput(f"A key's name needs 1 to {NAME_CHARACTERS_MAX} printable characters.")
    try:
        chosen = sorted({Scope(scope) for scope in scopes})
    except ValueError as error:
        raise InvalidInput(f"{error}: the scopes are {', '.join(Scope)}.") from None
    if not chosen:
        raise InvalidInput(f"A key needs at least one scope of {', '.join(Scope)}.")
    key_id = new_id("key")
    token = f"obs_{key_id.removeprefix('key_')}_{secrets.token_hex(SECRET_BYTES)}"
    key = ApiKey(
        id=key_id,
        name=name,
        hash=_hash(token),
        scopes=[scope.value for scope in chosen],
        created_by=created_by,
        created_at=now,
    )
    session.add(key)
    session.flush()
    return key, token


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
    return Principal(id=key.id, scopes=frozenset(Scope(scope) for scope in key.scopes))


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


def bootstrap_admin(session: Session, *, path: Path, now: datetime) -> bool:
    """Make the first admin key of a new installation and write its token to a file only its owner can read.

    The file is on disk before the caller commits, so no key exists whose token nobody has.

    Args:
        session: in a writing transaction.
        path: of the file; replaced if it holds the token of a key that was never committed.
        now: aware.

    Returns:
        True when a key was made; False when an admin key exists already.
    """
    active = session.scalars(select(ApiKey).where(ApiKey.revoked_at.is_(None)))
    if any(Scope.ADMIN in key.scopes for key in active):
        return False
    _key, token = create_key(session, name="first admin", scopes=[Scope.ADMIN], now=now)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(token + "\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    return True


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
