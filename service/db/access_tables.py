"""Tables of identity and requests: people, admins, decisions, API keys, sessions, idempotency keys, the outbox."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from obscura.wire.words import Admission, DecisionAction, DecisionState
from service.db.base import Base, Entity, Id, Name, Sha256, ShortText, partial_index, values_of


class Person(Entity):
    """A user of the sign-in provider who has signed in, identified by issuer and subject.

    The provider last confirmed the person and their groups at `confirmed_at`. Without another confirmation, their keys
    work until `keys_until`. At `lapsed_at` the provider stopped confirming them; signing in clears it. `refresh_token`
    is sealed (`service.identity.provider`); `asked_until` is the lease of the process that is asking the provider.
    """

    __tablename__ = "people"
    __table_args__ = (UniqueConstraint("issuer", "subject"),)

    issuer: Mapped[str] = mapped_column(String(500))
    subject: Mapped[str] = mapped_column(String(255))
    name: Mapped[Name]
    email: Mapped[str | None] = mapped_column(String(320))
    created_at: Mapped[datetime]
    confirmed_at: Mapped[datetime]
    keys_until: Mapped[datetime]
    lapsed_at: Mapped[datetime | None]
    refresh_token: Mapped[str | None] = mapped_column(Text)
    asked_until: Mapped[datetime | None]


class Admin(Entity):
    """A person who decides, with other admins, about limits, admins and shares, with any of their API keys.

    `project_id` is the project of an owner; None for an admin of the installation. Only the second admin of the
    installation is admitted by one admin alone. An owner whom one admin named alone counts as that admin
    (`service.identity.decisions`). `person_id` is a person of the sign-in provider whose groups make them an admin. A
    person has one row per owned project, but counts once.
    """

    __tablename__ = "admins"
    __table_args__ = (
        CheckConstraint("(admission IN ('machine', 'provider')) = (requested_by IS NULL)", "requested_by_somebody"),
        CheckConstraint("(admission = 'approved') = (approved_by IS NOT NULL)", "approved_by_somebody"),
        CheckConstraint("approved_by IS NULL OR approved_by != requested_by", "two_people"),
        partial_index("uq_admins_alone", "admission", where="admission = 'alone' AND project_id IS NULL", unique=True),
    )

    name: Mapped[Name] = mapped_column(unique=True)
    admission: Mapped[Admission] = mapped_column(values_of(Admission, "admission"))
    requested_by: Mapped[Id | None] = mapped_column(ForeignKey("admins.id"))
    approved_by: Mapped[Id | None] = mapped_column(ForeignKey("admins.id"))
    admitted_at: Mapped[datetime]
    removed_at: Mapped[datetime | None]
    project_id: Mapped[Id | None]
    person_id: Mapped[Id | None] = mapped_column(index=True)


class Decision(Entity):
    """A request by one admin that a second admin decides: see `service.identity.decisions`.

    `requested_by` used the key `requested_with`, `decided_by` the key `decided_with`. Approving a raise requires that
    the limit is still `epsilon_before`. An admission names the id and the SHA-256 of a token that only the new admin
    has. `keys_revoked` is the number of keys that an approval revoked. `project_id` is the project whose owners may
    also decide. A release is shared with the project `shared_with`, or with EVERY_PROJECT. A request to accept missing
    spending names its account in `name`, because the account may be missing from the database.
    """

    __tablename__ = "decisions"
    __table_args__ = (
        CheckConstraint(
            "(action = 'raise') = (account_id IS NOT NULL) AND (account_id IS NULL) = (epsilon IS NULL) "
            "AND (epsilon IS NULL) = (epsilon_before IS NULL) AND (epsilon IS NULL) = (name IS NOT NULL)",
            "concerns_account",
        ),
        CheckConstraint("epsilon_before > 0 AND epsilon > epsilon_before", "epsilon_is_raised"),
        CheckConstraint(
            "(action = 'admit') = (key_hash IS NOT NULL) AND (action IN ('admit', 'revoke')) = (key_id IS NOT NULL)",
            "names_key",
        ),
        CheckConstraint("action IN ('raise', 'admit', 'share', 'accept') OR admin_id IS NOT NULL", "concerns_one"),
        CheckConstraint(
            "(action = 'share') = (release_id IS NOT NULL) AND (release_id IS NULL) = (shared_with IS NULL)",
            "concerns_release",
        ),
        CheckConstraint(
            "(state = 'pending') = (decided_at IS NULL) AND (decided_at IS NULL) = (decided_by IS NULL) "
            "AND (decided_by IS NULL) = (decided_with IS NULL)",
            "decided_by_somebody",
        ),
        CheckConstraint("state != 'approved' OR decided_by != requested_by", "two_people"),
        CheckConstraint("state != 'approved' OR decided_with != requested_with", "two_keys"),
    )

    action: Mapped[DecisionAction] = mapped_column(values_of(DecisionAction, "action"))
    account_id: Mapped[Id | None] = mapped_column(ForeignKey("accounts.id"), index=True)
    epsilon_before: Mapped[float | None]
    epsilon: Mapped[float | None]
    name: Mapped[Name | None]
    admin_id: Mapped[Id | None] = mapped_column(ForeignKey("admins.id"))
    key_id: Mapped[Id | None]
    key_hash: Mapped[Sha256 | None]
    keys_revoked: Mapped[int | None]
    reason: Mapped[str] = mapped_column(String(500))
    state: Mapped[DecisionState] = mapped_column(values_of(DecisionState, "state"))
    requested_by: Mapped[Id] = mapped_column(ForeignKey("admins.id"))
    requested_with: Mapped[Id] = mapped_column(ForeignKey("api_keys.id"))
    requested_at: Mapped[datetime]
    decided_by: Mapped[Id | None] = mapped_column(ForeignKey("admins.id"))
    decided_with: Mapped[Id | None] = mapped_column(ForeignKey("api_keys.id"))
    decided_at: Mapped[datetime | None]
    project_id: Mapped[Id | None] = mapped_column(index=True)
    release_id: Mapped[Id | None]
    shared_with: Mapped[Id | None]


class ApiKey(Entity):
    """An API key. Only the SHA-256 of its random 256-bit token is stored.

    `admin_id` is the admin of a key with the scope admin; None for every other key. `created_by` is the key that
    created it; None if it was created on the machine. Only admins' keys create keys, so every key belongs to its own
    admin or its creator's admin. `project_id` is the project whose rows it opens; None for all projects. `person_id` is
    the direct or indirect creator, whom the sign-in provider must regularly confirm. A person's key without a creator
    represents a role (`service.identity.people`), and its token is unknown. `last_used_at` is rounded to the hour, see
    `service.identity.auth`.
    """

    __tablename__ = "api_keys"
    __table_args__ = (
        CheckConstraint("(CAST(scopes AS TEXT) LIKE '%\"admin\"%') = (admin_id IS NOT NULL)", "admin_is_somebody"),
        CheckConstraint("admin_id IS NOT NULL OR project_id IS NOT NULL", "of_a_project"),
    )

    name: Mapped[Name]
    hash: Mapped[Sha256]
    scopes: Mapped[list[str]]
    admin_id: Mapped[Id | None] = mapped_column(ForeignKey("admins.id"), index=True)
    created_by: Mapped[Id | None] = mapped_column(ForeignKey("api_keys.id"), index=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    project_id: Mapped[Id | None]
    person_id: Mapped[Id | None] = mapped_column(index=True)


class SignIn(Base):
    """A session of the dashboard: the SHA-256 of its cookie, and the key that opened it. Sign-out deletes the row."""

    __tablename__ = "sign_ins"

    token_sha256: Mapped[Sha256] = mapped_column(primary_key=True)
    key_id: Mapped[Id] = mapped_column(index=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]


class Idempotency(Base):
    """The result of the first request with an idempotency key of a principal."""

    __tablename__ = "idempotency"

    principal: Mapped[Name] = mapped_column(primary_key=True)
    key: Mapped[Name] = mapped_column(primary_key=True)
    body_hash: Mapped[Sha256]
    resource_id: Mapped[Id]
    created_at: Mapped[datetime]


class Outbox(Base):
    """A task to send after its transaction has committed. Idempotent."""

    __tablename__ = "outbox"
    __table_args__ = (partial_index("ix_outbox_unsent", "id", where="sent_at IS NULL"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    task: Mapped[ShortText]
    args: Mapped[list[Any]]
    created_at: Mapped[datetime]
    sent_at: Mapped[datetime | None]


class Installation(Base):
    """The single row with the random id that database and data folder share (`service.installation`).

    If an operator confirms that the clock was ahead, `clock_ahead_until` is the time of the newest ledger entry, and
    `clock_accepted_at` the time of the confirmation.
    """

    __tablename__ = "installation"
    __table_args__ = (CheckConstraint("number = 1", "only_one"),)

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False, default=1)
    id: Mapped[Id]
    made_at: Mapped[datetime]
    clock_accepted_at: Mapped[datetime | None]
    clock_ahead_until: Mapped[datetime | None]
