"""What a sound ledger needs of its database: triggers that refuse changes and, on SQLite, a file without damage."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import text
from sqlalchemy.orm import Session

from service.audit.findings import Finding, FindingCode

_TABLES = ("accounts", "entries", "holds", "checkpoints", "jobs", "releases", "limit_requests")
_APPEND_ONLY = ("entries", "checkpoints")
_TRIGGERS = {
    "sqlite": ("no_update", "no_delete", "no_replace"),
    "postgresql": ("no_update_delete", "no_truncate"),
}
_STANDING = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
    "postgresql": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgenabled IN ('O', 'A') "
    "AND tgrelid IN ('entries'::regclass, 'checkpoints'::regclass)",
}
_DAMAGES_MAX = 10


def find_missing_triggers(session: Session) -> Iterator[Finding]:
    """Yield what no longer keeps entries and checkpoints from being changed: a trigger was dropped or disabled."""
    dialect = session.get_bind().dialect.name
    standing = set(session.scalars(text(_STANDING[dialect])))
    for table in _APPEND_ONLY:
        for name in _TRIGGERS[dialect]:
            if f"{table}_{name}" not in standing:
                message = f"The trigger {table}_{name} is gone or disabled: {table} can be changed."
                yield Finding(FindingCode.TRIGGER_MISSING, message)


def find_damage(session: Session) -> Iterator[Finding]:
    """Yield what SQLite finds wrong with the ledger's tables: rows and indexes that differ, broken pages."""
    if session.get_bind().dialect.name != "sqlite":
        return
    for table in _TABLES:
        for (said,) in session.execute(text(f"PRAGMA integrity_check('{table}')")).all()[:_DAMAGES_MAX]:
            if said != "ok":
                yield Finding(FindingCode.DATABASE_DAMAGED, f"The database file is damaged in {table}: {said}.")
