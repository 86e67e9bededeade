"""Tables of identity and requests: projects, people, admins, decisions, API keys, sessions, the audit log.

Also messages to send (the outbox, webhooks), idempotency keys, and the row that identifies the installation.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, Integer, String, Text, UniqueConstraint, exists
from sqlalchemy.orm import Mapped, mapped_column

from obscura.wire.words import Admission, DecisionAction, DecisionState, Outcome
from service.db.base import Base, Entity, Id, Name, Sha256, ShortText, partial_index, values_of

EVERY_PROJECT = "*"  # instead of a project id: all projects
DEFAULT_PROJECT = "prj_default"  # the project that every installation has


class Project(Entity):
    """A project, such as a department. It is never removed, and its accounts, public datasets and keys never move.

    `jobs_max` limits its unfinished jobs, if set. `turn_at` is the time when a worker last claimed one of its jobs.
    """

    __tablename__ = "projects"

    name: Mapped[Name] = mapped_column(unique=True)
    created_at: Mapped[datetime]
    jobs_max: Mapped[int | None] = mapped_column(BigInteger)
    turn_at: Mapped[datetime | None]


ONE_PROJECT = ~exists().where(Project.id != DEFAULT_PROJECT)  # the SQL condition that there is only one project


class Person(Entity):
    """A user of the sign-in provider who has signed in, identified by issuer and subject.

    The provider last confirmed the person and their groups at `confirmed_at`. Without another confirmation, the
    person's keys work until `keys_until`. At `lapsed_at` the provider stopped confirming the person; a new sign-in sets
    it to None. `refresh_token` is sealed (`service.identity.provider`). `asked_until` is the lease of the process that
    is asking the provider.
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
    """A person who decides together with other admins about limits, admins and shares, using any of their API keys.

    `project_id` is the project that an owner owns; None for an admin of the installation. A single admin can admit
    only the second admin of the installation. In decisions, an owner named by a single admin counts as that admin
    (`service.identity.decisions`). `person_id` is the person whose groups at the sign-in provider make them an admin.
    Such a person has one row per project that they own, but counts as one admin.
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
    """A request by one admin, to be decided by a second admin: see `service.identity.decisions`.

    `requested_with` and `decided_with` are the keys that `requested_by` and `decided_by` used. Approving a raise
    requires that the limit is still `epsilon_before`. An admission names the id and the SHA-256 of a token that only
    the new admin has. `keys_revoked` is the number of keys that an approval revoked. `project_id` is the project whose
    owners may also decide. `shared_with` is the project that a share is for, or EVERY_PROJECT. A request to accept
    missing spending names its account in `name`, because the account may be missing from the database.
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
    created it; None if it was created on the service's machine. Only admins' keys create keys, so every key belongs to
    the admin in `admin_id`, or to the admin of the key in `created_by`. `project_id` is the only project that it gives
    access to; None for all projects. `person_id` is the person who created it, directly or by another key. The sign-in
    provider must regularly confirm that person. A key with a `person_id` but no `created_by` represents a role
    (`service.identity.people`); its token is known to no one. `last_used_at` is rounded to the hour, see
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
    """A session of the dashboard: the SHA-256 of its cookie, and the key that opened it. Sign-out deletes the row.

    `return_key_id` is the key of the admin of the installation who views a project in this session.
    """

    __tablename__ = "sign_ins"

    token_sha256: Mapped[Sha256] = mapped_column(primary_key=True)
    key_id: Mapped[Id] = mapped_column(index=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    return_key_id: Mapped[Id | None]


class Invitation(Entity):
    """A link that gives a person a role once: see `service.identity.invitations`.

    `project_id` is None for a future admin of the installation. The person who used it entered `name`. `key_id` is the
    id of their key; for a future admin or owner, `key_id` and `key_hash` are the introduction of their token.
    """

    __tablename__ = "invitations"
    __table_args__ = (
        CheckConstraint(
            "(used_at IS NULL) = (name IS NULL) AND (used_at IS NULL) = (key_id IS NULL)", "used_names_key"
        ),
        CheckConstraint("project_id IS NOT NULL OR role = 'admin'", "of_a_project"),
    )

    secret_sha256: Mapped[Sha256] = mapped_column(unique=True)
    role: Mapped[ShortText]
    project_id: Mapped[Id | None] = mapped_column(index=True)
    created_by: Mapped[Id] = mapped_column(ForeignKey("api_keys.id"))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    name: Mapped[Name | None]
    key_id: Mapped[Id | None]
    key_hash: Mapped[Sha256 | None]


class Idempotency(Base):
    """The result of a principal's first request with an idempotency key."""

    __tablename__ = "idempotency"

    principal: Mapped[Name] = mapped_column(primary_key=True)
    key: Mapped[Name] = mapped_column(primary_key=True)
    body_hash: Mapped[Sha256]
    resource_id: Mapped[Id]
    created_at: Mapped[datetime]


class Outbox(Base):
    """A task to send after its transaction has committed. Tasks are idempotent, so it may be sent twice."""

    __tablename__ = "outbox"
    __table_args__ = (partial_index("ix_outbox_unsent", "id", where="sent_at IS NULL"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    task: Mapped[ShortText]
    args: Mapped[list[Any]]
    created_at: Mapped[datetime]
    sent_at: Mapped[datetime | None]


class Webhook(Entity):
    """An address that receives the events of a project, or of the installation.

    `secret` signs its requests. Revoking the key `made_by` revokes the webhook. `failing_since` is the time of the
    first failed request since the last 2xx response; None if the last request succeeded.
    """

    __tablename__ = "webhooks"

    project_id: Mapped[Id | None] = mapped_column(index=True)
    url: Mapped[str] = mapped_column(String(500))
    secret: Mapped[str] = mapped_column(String(80))
    made_by: Mapped[Id]
    created_at: Mapped[datetime]
    failing_since: Mapped[datetime | None]


class Delivery(Entity):
    """A request to a webhook, with its body. Receivers can detect duplicates by the event's id.

    `next_at` is the time of the next try; None after a 2xx response or the last try. `status` is the HTTP status of the
    last response; None if there was none.
    """

    __tablename__ = "deliveries"
    __table_args__ = (
        CheckConstraint("attempts >= 0", "attempts_not_negative"),
        CheckConstraint("delivered_at IS NULL OR next_at IS NULL", "delivered_is_over"),
        partial_index("ix_deliveries_due", "next_at", where="next_at IS NOT NULL"),
    )

    webhook_id: Mapped[Id] = mapped_column(ForeignKey("webhooks.id"), index=True)
    body: Mapped[str] = mapped_column(Text)
    attempts: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(index=True)
    next_at: Mapped[datetime | None]
    delivered_at: Mapped[datetime | None]
    status: Mapped[int | None]


class AuditEvent(Base):
    """One request, or one act of a person within a request. Append-only.

    Triggers reject every UPDATE, and the DELETE of an event less than 12 hours old; `recording.remove_old` deletes old
    events. `sequence` is the order of insertion. `action` is the template of a route, such as `GET /v1/jobs/{job_id}`,
    or a `service.identity.recording.Act`. `project_id` is the caller's project, or the project that an act concerns;
    None for the whole installation.
    """

    __tablename__ = "audit_events"
    __table_args__ = (Index("ix_audit_events_project_id_sequence", "project_id", "sequence"),)

    sequence: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    id: Mapped[Id] = mapped_column(unique=True)
    at: Mapped[datetime]
    action: Mapped[str] = mapped_column(String(128))
    object_id: Mapped[Id | None]
    outcome: Mapped[Outcome] = mapped_column(values_of(Outcome, "outcome"))
    key_id: Mapped[Id | None]
    admin_id: Mapped[Id | None]
    project_id: Mapped[Id | None]


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
