"""Who is looking: a session cookie made from an API key, or anybody on this machine where the operator allows it.

The cookie names the key and an expiry, signed with a secret that only this installation has. The key is looked up on
every request, so revoking it ends its sessions at once. Forms carry a token bound to the cookie, beside SameSite.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy.orm import Session

from service.auth import Principal, Scope
from service.db.tables import ApiKey

COOKIE = "obscura_session"
SESSION_SECONDS = 8 * 3600
_SECRET_BYTES = 32
_READING_SCOPES = frozenset({Scope.ADMIN, Scope.READ})


def session_secret(data_dir: Path) -> bytes:
    """Return the installation's cookie secret, made on first use and readable by its owner alone.

    Deleting the file ends every session.
    """
    path = data_dir / "dashboard.secret"
    try:
        return bytes.fromhex(path.read_text("ascii"))
    except FileNotFoundError:
        pass
    data_dir.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(_SECRET_BYTES))
    try:
        os.link(fresh, path)  # fails when another process was faster: its secret counts
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
    return bytes.fromhex(path.read_text("ascii"))


def issue_cookie(secret: bytes, key_id: str, *, now_seconds: float) -> str:
    """Return the cookie of a new session of a key."""
    body = f"{key_id}.{int(now_seconds) + SESSION_SECONDS}.{secrets.token_hex(8)}"
    return f"{body}.{_sign(secret, 'session', body)}"


def read_cookie(secret: bytes, cookie: str, *, now_seconds: float) -> str | None:
    """Return the key's id of a genuine cookie that has not expired."""
    body, _, signature = cookie.rpartition(".")
    if not hmac.compare_digest(signature.encode(), _sign(secret, "session", body).encode()):
        return None
    key_id, expires, _ = body.split(".")
    return key_id if now_seconds < int(expires) else None


def form_token(secret: bytes, cookie: str) -> str:
    """Return the token that forms of this session must carry."""
    return _sign(secret, "form", cookie)


def principal_of(session: Session, key_id: str) -> Principal | None:
    """Return the caller behind a key that is still valid and may read."""
    key = session.get(ApiKey, key_id)
    if key is None or key.revoked_at is not None:
        return None
    principal = Principal(id=key.id, scopes=frozenset(Scope(scope) for scope in key.scopes))
    return principal if may_read(principal) else None


def may_read(principal: Principal) -> bool:
    """Tell whether a key may look at the dashboard."""
    return bool(principal.scopes & _READING_SCOPES)


def _sign(secret: bytes, purpose: str, text: str) -> str:
    return hmac.new(secret, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()


@dataclass
class SignInThrottle:
    """Slow down guessing: a few failures an address, and a bound on all together, within a sliding window.

    Keys have 256 random bits, so this keeps the log and the processor quiet more than it keeps guessers out.
    """

    failures_max: int = 10
    failures_in_all_max: int = 200
    window_seconds: float = 300.0
    _failures: deque[tuple[str, float]] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait_seconds(self, address: str, *, now_seconds: float) -> float:
        """Return how long this address has to wait; 0 when it may try."""
        with self._lock:
            while self._failures and self._failures[0][1] <= now_seconds - self.window_seconds:
                self._failures.popleft()
            all_times = [time for _, time in self._failures]
            own_times = [time for failed, time in self._failures if failed == address]
        for times, most in ((all_times, self.failures_in_all_max), (own_times, self.failures_max)):
            if len(times) >= most:
                return times[-most] + self.window_seconds - now_seconds
        return 0.0

    def record_failure(self, address: str, *, now_seconds: float) -> None:
        """Count a wrong key."""
        with self._lock:
            self._failures.append((address, now_seconds))
            while len(self._failures) > self.failures_in_all_max:
                self._failures.popleft()
