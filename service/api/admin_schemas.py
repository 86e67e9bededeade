"""What the routes about admins and keys take and give; see `service.api.schemas`."""

from __future__ import annotations

from pydantic import Field

from service.api.schemas import ApiRecord, ApiRequest, Minute, Name, ReasonRequest, Scope


class AdmissionRequest(ReasonRequest):
    """Ask for a person to become an admin."""

    name: Name
    introduction: str = Field(
        min_length=1, max_length=100, description="`key_...:SHA-256`, of the token that the person made and keeps."
    )


class AdminRecord(ApiRecord):
    """A person who decides with others. All keys of a person are that person."""

    id: str
    name: str
    admission: str = Field(description="By `machine` (its operator), `alone` (the second admin), or `approved`.")
    asked_by: str | None = Field(description="The admin who asked for the admission.")
    approved_by: str | None = Field(description="The other admin, who approved it.")
    admitted_at: Minute
    removed_at: Minute | None


class AdminList(ApiRecord):
    """Everybody who is or was an admin."""

    items: list[AdminRecord]


class AdminRequestRecord(ApiRecord):
    """What one admin asks about a person, and what another decided."""

    id: str
    action: str = Field(description="`admit` or `remove`.")
    name: str
    admin_id: str | None
    introduction: str | None = Field(description="Of an admission: compare it with what the person says.")
    reason: str
    state: str = Field(description="`pending`, `approved`, `declined`, or `expired` when nobody decided in time.")
    asked_by: str
    asked_at: Minute
    expires_at: Minute
    decided_by: str | None
    decided_at: Minute | None


class AdminAnswer(ApiRecord):
    """The admin who was admitted at once, or the request that waits for another admin; the other one is null."""

    admin: AdminRecord | None
    request: AdminRequestRecord | None


class KeyRequest(ApiRequest):
    """Create an API key."""

    name: Name
    scopes: list[Scope] = Field(min_length=1, max_length=4)


class KeyRecord(ApiRecord):
    """An API key without its secret."""

    id: str
    name: str
    scopes: list[str]
    admin_id: str | None = Field(description="The person whose key it is; null for keys without the scope `admin`.")
    created_by: str | None = Field(description="Id of the key that made it; null for one that its owner made.")
    created_at: Minute
    revoked_at: Minute | None


class NewKeyRecord(KeyRecord):
    """A fresh API key. The token is shown this once and stored nowhere."""

    token: str
