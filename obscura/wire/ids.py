"""Ids, and tokens of keys. The service stores only the SHA-256 of a token."""

from __future__ import annotations

import base64
import hashlib
import secrets

ID_RANDOM_CHARACTERS = 20
_SECRET_BYTES = 32


def id_from(prefix: str, digits: bytes) -> str:
    """Return `<prefix>_` and 20 lowercase base32 characters: the first 100 bits of `digits` (13 bytes or more)."""
    return f"{prefix}_{base64.b32encode(digits).decode('ascii').lower()[:ID_RANDOM_CHARACTERS]}"


def make_token() -> tuple[str, str, str]:
    """Return the id of a new key, its token with 256 random bits, and the token's SHA-256."""
    key_id = id_from("key", secrets.token_bytes(13))
    token = f"obs_{key_id.removeprefix('key_')}_{secrets.token_hex(_SECRET_BYTES)}"
    return key_id, token, digest_token(token)


def introduce() -> tuple[str, str]:
    """Return a new token and its introduction `key_id:sha256`. The service first sees the token when it is used."""
    key_id, token, digest = make_token()
    return token, f"{key_id}:{digest}"


def digest_token(token: str) -> str:
    """Return the SHA-256 (hex) that identifies a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
