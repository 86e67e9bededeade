"""Run the migrations on SQLite or PostgreSQL, in one transaction, in one process at a time."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import Connection, text

from alembic import context
from service.db.base import Base, UtcDateTime
from service.db.session import make_engine
from service.settings import Settings

MIGRATION_LOCK = 0x0B5C0A  # an arbitrary constant


def render_item(kind: str, item: Any, _context: Any) -> str | Literal[False]:
    """Render our column types as plain SQL types, so that code changes do not change a migration."""
    return "sa.DateTime(timezone=True)" if kind == "type" and isinstance(item, UtcDateTime) else False


def migrate(connection: Connection) -> None:
    """Apply the migrations in one transaction. A failure does not change the schema."""
    sqlite = connection.dialect.name == "sqlite"
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        compare_server_default=True,
        render_as_batch=sqlite,
        render_item=render_item,
        transactional_ddl=True,
    )
    with context.begin_transaction():
        if not sqlite:  # on SQLite, BEGIN IMMEDIATE is the lock
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
        context.run_migrations()


if context.is_offline_mode():
    raise SystemExit("--sql is not supported: run the migration on an empty database instead")
# The `alembic` command gives no address.
engine = make_engine(context.config.attributes.get("url") or Settings().database_url, pool_size=1)
try:
    with engine.connect() as connection:
        migrate(connection)
finally:
    engine.dispose()
