#!/usr/bin/env python3
"""Check the receipt of a release offline: `verify_receipt.py RECEIPT --key FINGERPRINT|PEM_FILE [--artifact PATH]`.

It needs only the standard library and `cryptography`, and no code of the service. Pin the key: get the fingerprint
(SHA-256 of the public key) from the operator once, separately from the receipt.

PATH is the folder that `obscura releases weights` wrote, one file in it, or the release's whole folder.

Exit codes: 0 the receipt is genuine (and the files are of its artifact), 1 it is not genuine, 2 it could not be
checked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

STATEMENT = {"format", "version", "release_id", "artifact_sha256", "account", "entry", "entry_hash", "key_id"}
ACCOUNT = {"id", "epsilon", "delta", "unit", "adjacency", "rate", "base", "capacity_nano", "spent_nano"}
ENTRY = {"version", "account_id", "sequence", "kind", "hold_id", "job_id", "amount_nano", "capacity_nano"}
ENTRY |= {"spent_nano", "reserved_nano", "details", "previous_hash", "created_at"}
MANIFEST = "artifact.json"  # the SHA-256 of each file of the artifact; that of the manifest is in the receipt


class Refused(Exception):
    """The receipt is not genuine. The message has the reason."""


def canonical(value: object) -> bytes:
    """Serialize a JSON value canonically: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def require(condition: bool, why: str) -> None:
    if not condition:
        raise Refused(why)


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Reject duplicate names, because another reader could use a value that was not checked."""
    require(len(dict(pairs)) == len(pairs), "a name occurs twice in a JSON object")
    return dict(pairs)


def pinned_fingerprint(text: str) -> str:
    """Return a fingerprint, or compute it for the public key in a PEM file."""
    if len(text) == 64 and set(text.lower()) <= set("0123456789abcdef"):
        return text.lower()
    key = load_pem_public_key(Path(text).read_bytes())
    return hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()


def check(receipt: Any, fingerprint: str) -> dict[str, Any]:
    """Return the statement of a genuine receipt; raise Refused for any other."""
    require(isinstance(receipt, dict) and set(receipt) == {"statement", "public_key", "signature"}, "not a receipt")
    statement = receipt["statement"]
    require(isinstance(statement, dict) and set(statement) == STATEMENT, "its statement has missing or unknown fields")
    require((statement["format"], statement["version"]) == ("obscura receipt", 1), "its format is unknown")
    public = bytes.fromhex(receipt["public_key"])
    require(public.hex() == receipt["public_key"], "its public key is not plain lower-case hex")
    require(hashlib.sha256(public).hexdigest() == statement["key_id"] == fingerprint, "a different key has signed it")
    signature = bytes.fromhex(receipt["signature"])
    require(signature.hex() == receipt["signature"], "its signature is not plain lower-case hex")
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, canonical(statement))
    except InvalidSignature:
        raise Refused("its signature does not match: something in it was changed") from None
    entry, account = statement["entry"], statement["account"]
    require(set(entry) == ENTRY and set(account) == ACCOUNT, "its entry or account has missing or unknown fields")
    require(
        hashlib.sha256(canonical(entry)).hexdigest() == statement["entry_hash"],
        "its entry does not match the stated hash",
    )
    require(
        entry["kind"] == "capture" and entry["account_id"] == account["id"], "its entry is not the account's payment"
    )
    require(entry["details"]["artifact_sha256"] == statement["artifact_sha256"], "its entry has a different artifact")
    require(entry["details"]["release"]["id"] == statement["release_id"], "its entry pays for a different release")
    for name in ("capacity_nano", "spent_nano"):
        require(entry[name] == account[name], "its account and its entry have different balances")
    return statement


def digests_of(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in and below a folder, by relative path."""
    manifest = {}
    for directory, names, files in os.walk(folder):
        for name in [*names, *files]:
            path = Path(directory, name)
            require(not path.is_symlink(), "the folder contains links")
            if name in files:
                require(path.is_file(), "the folder contains something that is not a file")
                manifest[path.relative_to(folder).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return manifest


def check_artifact(path: Path, expected: str) -> list[str]:
    """Return the files at `path` that the receipt does not cover. Raise Refused unless the others are the artifact's.

    Without a manifest, the folder must be the whole artifact.
    """
    require(path.exists(), f"there is no file or folder {path}")
    folder = path if path.is_dir() else path.parent
    found = digests_of(folder)
    if path == folder and MANIFEST not in found:
        complete = hashlib.sha256(canonical(found)).hexdigest() == expected
        require(complete, "the folder is not the artifact of this receipt")
        return []
    require(MANIFEST in found, f"{MANIFEST} is missing beside the file: obscura releases weights writes it")
    require(found.pop(MANIFEST) == expected, f"{MANIFEST} is not the manifest of this receipt's artifact")
    listed = json.loads((folder / MANIFEST).read_bytes())
    found = found if path == folder else {path.name: found[path.name]}
    changed = [name for name, digest in found.items() if listed.get(name, digest) != digest]
    require(not changed, f"these files are not those of the artifact: {', '.join(changed)}")
    require(bool(found.keys() & listed.keys()), f"{path} holds no file of the artifact")
    return sorted(found.keys() - listed.keys())


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the receipt of a release offline.")
    parser.add_argument("receipt", type=Path, help="the receipt as it was served")
    parser.add_argument("--key", required=True, help="fingerprint of the public key, or a PEM file with the key")
    parser.add_argument("--artifact", type=Path, help="folder or file of the release, to be compared with the receipt")
    options = parser.parse_args()
    try:
        fingerprint, content = pinned_fingerprint(options.key), options.receipt.read_bytes()
    except (OSError, ValueError) as error:
        sys.stderr.write(f"cannot be checked: {type(error).__name__}: {error}\n")
        return 2
    try:
        statement = check(json.loads(content, object_pairs_hook=without_duplicates), fingerprint)
        artifact, more = options.artifact, list[str]()
        if artifact is not None:
            more = check_artifact(artifact, statement["artifact_sha256"])
    except (Refused, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        sys.stderr.write(f"NOT GENUINE: {error}\n")
        return 1
    account, entry = statement["account"], statement["entry"]
    sys.stdout.write(
        f"genuine: entry {entry['sequence']} of account {account['id']} paid {entry['amount_nano']} nano-units for "
        f"release {statement['release_id']}; {account['spent_nano']} of {account['capacity_nano']} were spent by then, "
        f"under epsilon {account['epsilon']}, delta {account['delta']}, unit {account['unit']}\n"
    )
    if more:
        sys.stdout.write(f"not covered by the receipt: {', '.join(more)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
