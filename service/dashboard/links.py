"""One-time links that sign in: `obscura up` prints one."""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass, field

from obscura.wire.ids import digest_token

LINK_SECONDS = 600


@dataclass
class SignInLinks:
    """One-time sign-in links. Only their SHA-256 is kept, in memory."""

    _open: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def make(self, *, now_seconds: float) -> str:
        """Return the secret of a new link, valid for LINK_SECONDS."""
        secret = secrets.token_hex(32)
        with self._lock:
            self._open[digest_token(secret)] = now_seconds + LINK_SECONDS
        return secret

    def is_open(self, secret: str, *, now_seconds: float) -> bool:
        """Return whether a link can be used."""
        with self._lock:
            return self._open.get(digest_token(secret), now_seconds) > now_seconds

    def use(self, secret: str, *, now_seconds: float) -> bool:
        """Use a link; return False if it is used, expired or unknown."""
        with self._lock:
            return self._open.pop(digest_token(secret), now_seconds) > now_seconds
