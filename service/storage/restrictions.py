"""Restrictions: what people have decided to take away, in files beside the database.

By them a database that was restored from a backup of before is told of keys that were revoked, and of limits that were
lowered and accounts that were frozen or closed. They hold ids, moments and what everybody sees of an account; of a key
neither the token nor its hash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime

from service.errors import NotFound
from service.storage.interface import Storage

RESTRICTIONS = "restrictions"
_SUFFIX = ".json"
_ENDS = "ends.jsonl"


@dataclass(frozen=True)
class Restriction:
    """What may be spent of an account, and whether it takes new data.

    `sequence` and `hash` are those of the newest entry of its log that changed limit or freeze, or else of its first.
    A database with that entry knows what was decided by then, so what it says of both is newer than this or the same.
    """

    sequence: int
    hash: str
    epsilon: float
    frozen: bool
    closed: bool


def write_restriction(storage: Storage, account_id: str, restriction: Restriction) -> None:
    """Note what an account is restricted to, in place of what was noted before; durable when this returns."""
    content = json.dumps(asdict(restriction), sort_keys=True).encode("ascii")
    storage.write(f"{RESTRICTIONS}/{account_id}{_SUFFIX}", content)


def read_restrictions(storage: Storage, begins: str = "acc_") -> dict[str, Restriction | None]:
    """Return what was noted of accounts whose ids begin so, by id; None where that cannot be read."""
    files = storage.read_all(RESTRICTIONS, begins).items()
    return {name.removesuffix(_SUFFIX): _read(content) for name, content in files if name.endswith(_SUFFIX)}


def _read(content: bytes | None) -> Restriction | None:
    with suppress(ValueError, TypeError, KeyError):
        said = json.loads(content or b"")
        flags = {"frozen": bool(said["frozen"]), "closed": bool(said["closed"])}
        return Restriction(int(said["sequence"]), str(said["hash"]), float(said["epsilon"]), **flags)
    return None


def write_ends(storage: Storage, ends: Mapping[str, datetime]) -> None:
    """Note from when on keys open nothing and admins decide nothing, by their ids; durable when this returns."""
    line = json.dumps({name: moment.isoformat() for name, moment in sorted(ends.items())}).encode("ascii")
    # A newline on both sides: a line that a crash tore apart cannot spoil the next one.
    storage.append(f"{RESTRICTIONS}/{_ENDS}", b"\n" + line + b"\n")


def read_ends(storage: Storage) -> dict[str, datetime]:
    """Return the earliest end that was noted of each key and admin, by id. A line that a crash tore is passed over."""
    found: dict[str, datetime] = {}
    try:
        text = storage.read(RESTRICTIONS, _ENDS)
    except NotFound:
        return found
    for line in text.split(b"\n"):
        with suppress(ValueError, TypeError, AttributeError):
            for name, said in json.loads(line).items():
                moment = datetime.fromisoformat(said)
                found[name] = min(moment, found.get(name, moment))
    return found
