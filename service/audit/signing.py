"""The ledger's signing key (Ed25519), and signed statements that a third party can check without the database.

A signed statement is `{"statement": {...}, "public_key": hex, "signature": hex}`. The signature covers the canonical
JSON of the statement, which names its own format and the SHA-256 of the public key (the key's fingerprint).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from obscura.private_files import make_file_once, replace_file
from service.errors import ObscuraError
from service.ledger.chain import canonical_json
from service.storage.interface import Storage

PUBLIC_SUFFIX = ".pub.pem"
DOCUMENT_BYTES_MAX = 64 * 2**20  # a checkpoint of 400,000 accounts
RECEIPTS = "receipts"  # the folder with the newest receipt of every account and the newest checkpoint


class SigningKeyUnusable(ObscuraError):
    """The signing key is unreadable, not an Ed25519 key, or readable by other users."""


class SignatureRefused(ObscuraError):
    """A statement is malformed, or not signed by a trusted key."""


@dataclass(frozen=True)
class SigningKey:
    """A private key with its fingerprint. The representation does not contain the key."""

    private: Ed25519PrivateKey = field(repr=False)

    @property
    def public(self) -> bytes:
        return self.private.public_key().public_bytes_raw()

    @property
    def key_id(self) -> str:
        """The fingerprint: SHA-256 of the public key, as hex."""
        return hashlib.sha256(self.public).hexdigest()

    def sign(self, statement: Mapping[str, Any]) -> dict[str, Any]:
        """Add the fingerprint to a statement as `key_id`, and return the signed statement."""
        signed = {**statement, "key_id": self.key_id}
        signature = self.private.sign(canonical_json(signed))
        return {"statement": signed, "public_key": self.public.hex(), "signature": signature.hex()}

    def public_pem(self) -> str:
        form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        return self.private.public_key().public_bytes(*form).decode("ascii")


def make_signing_key(path: Path) -> SigningKey:
    """Return the signing key. Create it, and the file of its public key, if they are missing.

    Concurrent callers get the same key. Raise SigningKeyUnusable if the file is not usable.
    """
    if not path.exists():
        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        make_file_once(path, Ed25519PrivateKey.generate().private_bytes(*form))
    key = open_signing_key(path)
    public_path = path.with_suffix(PUBLIC_SUFFIX)
    if not public_path.exists():
        replace_file(public_path, key.public_pem().encode("ascii"))
    return key


def open_signing_key(path: Path) -> SigningKey:
    """Read the signing key, or raise SigningKeyUnusable. No verification would trust a new key, so create none."""
    if not path.exists():
        raise SigningKeyUnusable(f"There is no signing key at {path}: a service creates it when it starts.")
    try:
        mode = path.stat().st_mode & 0o777
        private = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        reason = type(error).__name__
        raise SigningKeyUnusable(f"The ledger's signing key at {path} cannot be read: {reason}.") from None
    if mode & 0o077:
        raise SigningKeyUnusable(f"The ledger's signing key at {path} can be read by others: set its mode to 0600.")
    if not isinstance(private, Ed25519PrivateKey):
        raise SigningKeyUnusable(f"The ledger's signing key at {path} is not an Ed25519 key.")
    return SigningKey(private)


def trusted_keys(path: Path) -> dict[str, bytes]:
    """Return the trusted public keys by fingerprint: every `*.pub.pem` beside the signing key.

    Keep the public key of a retired signing key there under another name, so that its signatures can still be checked.
    Raise SigningKeyUnusable if one of the files is not a public Ed25519 key.
    """
    keys: dict[str, bytes] = {}
    for file in sorted(path.parent.glob(f"*{PUBLIC_SUFFIX}")):
        try:
            public = serialization.load_pem_public_key(file.read_bytes())
        except (OSError, ValueError) as error:
            raise SigningKeyUnusable(f"The public key at {file} cannot be read: {type(error).__name__}.") from None
        if not isinstance(public, Ed25519PublicKey):
            raise SigningKeyUnusable(f"The public key at {file} is not an Ed25519 key.")
        raw = public.public_bytes_raw()
        keys[hashlib.sha256(raw).hexdigest()] = raw
    return keys


def check_signed(document: object, *, format: str, version: int, trusted: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the statement of a signed document; raise SignatureRefused if it is malformed or signed by another key."""
    if not isinstance(document, dict) or set(document) != {"statement", "public_key", "signature"}:
        raise SignatureRefused("The document is not a signed statement.")
    statement = document["statement"]
    if not isinstance(statement, dict) or (statement.get("format"), statement.get("version")) != (format, version):
        raise SignatureRefused(f"It is not a statement of the format {format!r}, version {version}.")
    key_id = statement.get("key_id")
    public = trusted.get(key_id) if isinstance(key_id, str) else None
    if public is None:
        raise SignatureRefused("The document is signed by a key that this service does not trust.")
    if document["public_key"] != public.hex():
        raise SignatureRefused("The document's public key does not match the fingerprint in its statement.")
    try:
        signature = bytes.fromhex(document["signature"])
        if signature.hex() != document["signature"]:  # reject other spellings of the same hex
            raise ValueError
        Ed25519PublicKey.from_public_bytes(public).verify(signature, canonical_json(statement))
    except (InvalidSignature, ValueError, TypeError):
        raise SignatureRefused("The document's signature does not match its statement.") from None
    return statement


def read_document(path: Path) -> Any:
    """Parse the file of a signed document, without verifying it; raise SignatureRefused if it is not JSON."""
    try:
        with path.open("rb") as file:
            content = file.read(DOCUMENT_BYTES_MAX + 1)
    except OSError as error:
        raise SignatureRefused(f"It cannot be read: {type(error).__name__}.") from None
    return document_in(content)


def document_in(content: bytes | None) -> Any:
    """Parse a signed document, without verifying it; raise SignatureRefused if it is None, too long, or not JSON."""
    if content is None:
        raise SignatureRefused("It cannot be read.")
    if len(content) > DOCUMENT_BYTES_MAX:
        raise SignatureRefused(f"It is longer than {DOCUMENT_BYTES_MAX} bytes.")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise SignatureRefused(f"It cannot be read: {type(error).__name__}.") from None


def bytes_of(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=1, sort_keys=True).encode("ascii")


def keep_newer(storage: Storage, name: str, document: Mapping[str, Any], age_of: Callable[[Any], Any]) -> bool:
    """Store a signed document beside the receipts if it is newer than the stored one. Return True if it was written.

    `age_of` returns a value that is larger for newer documents. An unreadable file may be evidence, so it is not
    overwritten: verification reports it.
    """
    if storage.holds(f"{RECEIPTS}/{name}"):
        try:
            if age_of(read_document(storage.open(RECEIPTS, name))) >= age_of(document):
                return False
        except (ObscuraError, KeyError, TypeError, ValueError):
            return False
    storage.write(f"{RECEIPTS}/{name}", bytes_of(document))
    return True
