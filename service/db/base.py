"""Naming convention, column types and ids of all tables."""

from __future__ import annotations

import enum
import hashlib
import json
import re
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Enum, Index, MetaData, String, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from obscura.wire.ids import ID_RANDOM_CHARACTERS, id_from

# Constraint names: the same in both databases and in the migrations.
NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """A timezone-aware UTC datetime, stored without an offset on SQLite. A naive value raises ValueError."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a naive datetime cannot be stored: give one with a time zone")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - base
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class CanonicalJson(TypeDecorator[dict[str, Any]]):
    """JSON, stored in the canonical form for hashing (`service.ledger.chain`)."""

    impl = JSON
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[dict[str, Any] | None], Any]:
        if dialect.name == "sqlite":
            return lambda value: None if value is None else canonical_text(value)
        from psycopg.types.json import Json

        return lambda value: None if value is None else Json(value, dumps=canonical_text)


# Sorted keys, no spaces, ASCII, no NaN. Built once, because json.dumps builds an encoder for every call.
canonical_text: Callable[[object], str] = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
).encode


class Base(DeclarativeBase):
    """Base of the mapped tables. JSON is stored as text, so that numbers do not change when they are read back."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy's own protocol
        datetime: UtcDateTime(),
        dict[str, Any]: JSON(),
        list[str]: JSON(),
        list[Any]: JSON(),
    }


Id = Annotated[str, mapped_column(String(32))]
ShortText = Annotated[str, mapped_column(String(64))]
Name = Annotated[str, mapped_column(String(200))]
Sha256 = Annotated[str, mapped_column(String(64))]
Nano = Annotated[int, mapped_column(BigInteger)]


class Entity(Base):
    __abstract__ = True

    id: Mapped[Id] = mapped_column(primary_key=True, sort_order=-1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r})"


def values_of(choices: type[enum.StrEnum], name: str) -> Enum:
    """Return the column type that stores an enum by value as text, with a CHECK constraint of this name."""
    return Enum(
        choices,
        name=name,
        native_enum=False,
        create_constraint=True,
        length=32,
        values_callable=lambda members: [member.value for member in members],
    )


def partial_index(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    """Return an index of rows that satisfy a condition. SQLite uses it only for queries that repeat the condition."""
    return Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))


def new_id(prefix: str) -> str:
    """Return `<prefix>_` and 20 random lowercase base32 characters (100 bits)."""
    return id_from(prefix, secrets.token_bytes(13))


def release_id_of(job_id: str) -> str:
    """Derive a release's id from its training's id, so that an attempt after a crash finds the earlier artifact."""
    return id_from("rel", hashlib.sha256(f"obscura/release/{job_id}".encode()).digest())


def is_id(text: str, prefix: str) -> bool:
    return re.fullmatch(rf"{prefix}_[a-z2-7]{{{ID_RANDOM_CHARACTERS}}}", text) is not None
