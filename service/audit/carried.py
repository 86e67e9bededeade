"""What was carried forward: a note of each time, in the storage, and whether a database knows of it.

What showed the spending was moved aside then, for it was accounted for. Another database, such as that of the same
backup once more, has not accounted for it, and only the note says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from sqlalchemy import select
from sqlalchemy.orm import Session

from obscura.wire.budgets import EPSILON_LEAST
from obscura.wire.words import EntryKind
from service.db.ledger_tables import AccountRow, EntryRow
from service.storage.interface import Storage

ASIDE = "aside"
_SUFFIX = ".carried.json"


@dataclass(frozen=True)
class Note:
    """What was carried forward at one time.

    Attributes:
        stamp: names the time; the reasons of the entries that lower limits hold it.
        taken: nano-units by account.
        keys: of the storage, which are still to be moved aside.
    """

    stamp: str
    taken: Mapping[str, int] = field(default_factory=dict)
    keys: Sequence[str] = ()


def write_note(storage: Storage, note: Note) -> None:
    """Keep a note. Call it before what it says is committed: one too many is found, and one that is missing is not."""
    storage.write(_key(note), json.dumps(asdict(note), indent=1, sort_keys=True).encode("ascii"))


def remove_note(storage: Storage, note: Note) -> None:
    """Remove a note of what never came about."""
    storage.remove(_key(note))


def read_notes(storage: Storage) -> list[Note]:
    """Return the notes, oldest first."""
    names = [name for name in storage.list(ASIDE) if name.endswith(_SUFFIX)]
    return [Note(**json.loads(storage.read(ASIDE, name))) for name in sorted(names)]


def forgotten(session: Session, note: Note) -> Iterator[tuple[str, int]]:
    """Yield accounts of a note that a database has not taken that off, with the nano-units.

    One that is frozen at the lowest limit has nothing that could be taken.
    """
    for account_id, nano in sorted(note.taken.items()):
        account = session.get(AccountRow, account_id)
        if account is not None and account.frozen and account.epsilon <= EPSILON_LEAST:
            continue
        lowered = select(EntryRow.details).where(EntryRow.account_id == account_id)
        entries = session.scalars(lowered.where(EntryRow.kind.in_((EntryKind.LIMIT, EntryKind.FREEZE))))
        if not any(note.stamp in str(details.get("reason", "")) for details in entries):
            yield account_id, nano


def _key(note: Note) -> str:
    return f"{ASIDE}/{note.stamp}{_SUFFIX}"
