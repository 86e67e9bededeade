"""Requests and records of admins, decisions, projects, keys and webhooks; see `obscura.wire.schemas`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field

from obscura.wire import schemas
from obscura.wire.words import DecisionAction, Outcome


class AdmissionRequest(schemas.ReasonRequest):
    """Request that a person becomes an admin."""

    name: schemas.Name
    introduction: schemas.Text = Field(description="`key_...:SHA-256` of the token. The person keeps the token.")
    project_id: schemas.Identifier | None = Field(
        default=None, description="The project to own. Absent: the requesting key's project, or the installation."
    )


class AdminRecord(schemas.NamedRecord):
    """A person who approves requests of other admins. All keys of a person count as one admin."""

    admission: str = Field(description="`machine` (operator), `alone` (the second admin), `approved` or `provider`.")
    requested_by: str | None = Field(description="The admin who asked for the admission.")
    approved_by: str | None = Field(description="The other admin, who approved it.")
    admitted_at: schemas.Minute = Field(description="When the person became an admin.")
    removed_at: schemas.Minute | None = Field(description="When the person was removed; null for current admins.")
    project_id: str | None = Field(description="The project that the person owns; null for the whole installation.")


class AdminList(schemas.ApiRecord):
    """All current and former admins."""

    items: list[AdminRecord] = Field(description="The admins.")


class DecisionRecord(schemas.IdRecord):
    """A request of one admin, and the decision of a second admin."""

    action: DecisionAction = Field(
        description="`raise` a limit, `admit` or `remove` an admin, `revoke` a key, `share` a release, or `accept` "
        "spending that a restored database lacks."
    )
    name: str = Field(description="Name of the account, the person or the release.")
    account_id: str | None = Field(description="The account, for a raise.")
    epsilon_before: float | None = Field(description="The limit at the time of the request, for a raise.")
    epsilon: float | None = Field(description="The requested limit, for a raise.")
    admin_id: str | None = Field(description="The person to remove, the owner of the key, or the admitted person.")
    key_id: str | None = Field(description="The key to revoke, or the first key of the person to admit.")
    introduction: str | None = Field(description="For an admission: compare this with what the person sent you.")
    release_id: str | None = Field(description="The release, for a share.")
    shared_with: str | None = Field(description="The other project, for a share; null for all projects.")
    shared_with_name: str | None = Field(description="Name of the other project.")
    project_id: str | None = Field(description="The project that the request concerns; null for the installation.")
    reason: str = Field(description="Why, in one line; it stays in the records.")
    state: str = Field(description="`pending`, `approved`, `declined`, or `expired` when nobody decided in time.")
    requested_by: str = Field(description="The admin who requested it.")
    requested_by_name: str = Field(description="The name of that admin.")
    requested_with: str = Field(description="Id of the key that requested it.")
    requested_at: schemas.Minute = Field(description="When it was requested.")
    expires_at: schemas.Minute = Field(description="Until when it can be approved.")
    decided_by: str | None = Field(description="The admin who decided; null while it is pending.")
    decided_by_name: str | None = Field(description="The name of that admin.")
    decided_with: str | None = Field(description="Id of the key that decided.")
    decided_at: schemas.Minute | None = Field(description="When it was decided; null while it is pending.")
    keys_revoked: int | None = Field(description="How many keys an approved removal or revocation has revoked.")


class AdminAnswer(schemas.ApiRecord):
    """The admin who was admitted at once, or the request that another admin must approve; the other field is null."""

    admin: AdminRecord | None = Field(description="The person who was admitted at once.")
    request: DecisionRecord | None = Field(description="The request that another admin must approve.")


class ProjectRequest(schemas.ApiRequest):
    """Create or rename a project."""

    name: schemas.Name


class ProjectRecord(schemas.DatedRecord, schemas.NamedRecord):
    """A project, such as a department. Its keys see only its own records."""


class QuotaRequest(schemas.ApiRequest):
    """Limit the jobs of a project."""

    jobs_max: int | None = Field(ge=0, le=2**53 - 1, description="Jobs waiting or running; null removes the limit.")


class ProjectUseRecord(ProjectRecord):
    """A project with its job quota and number of jobs."""

    jobs_max: int | None = Field(description="Limit on its waiting and running jobs; null if unlimited.")
    jobs_unfinished: int = Field(description="Number of its waiting and running jobs.")


class KeyRequest(schemas.ApiRequest):
    """Create an API key."""

    name: schemas.Name
    scopes: list[schemas.Scope] = Field(
        default=[],
        max_length=7,
        description="Permissions of the key: `admin` includes the others, `read` includes `releases`. Or set a role. "
        "Only an admin of the installation can grant `metrics`, because metrics cover all projects.",
    )
    role: schemas.Role | None = Field(default=None, description="A role in a project, instead of `scopes`.")
    expires_at: AwareDatetime | None = Field(default=None, description="Default: the expiry of the requesting key.")
    project_id: schemas.Identifier | None = Field(
        default=None,
        description="The project whose records the key can use. Default: the requesting key's project, or the only "
        "project. With the scope `admin`, a key made by an admin of the installation has none by default.",
    )


class InvitationRequest(schemas.ApiRequest):
    """Invite a person by link."""

    role: schemas.InvitedRole = Field(description="A role in the project, or `admin` for an admin of the installation.")
    project_id: schemas.Identifier | None = Field(
        default=None, description="The project. Default: the requesting key's project, or the only project."
    )


class InvitationRecord(schemas.DatedRecord):
    """An invitation, without the secret of its link."""

    role: str = Field(description="The role that the link gives.")
    project_id: str | None = Field(description="The project of the role; null for an admin of the installation.")
    created_by_name: str | None = Field(description="Name of the inviting admin.")
    state: str = Field(description="`open`, `accepted`, `revoked` or `expired`.")
    expires_at: schemas.Minute = Field(description="When the link expires.")
    name: str | None = Field(description="Name of the person who used the link.")
    key_id: str | None = Field(description="The person's key; for a future admin or owner, the key they introduced.")
    introduction: str | None = Field(description="For a future admin or owner: the introduction of their token.")


class NewInvitationRecord(InvitationRecord):
    """A new invitation. The link is shown only once and is not stored."""

    link: str = Field(description="The link for the invited person. It works once.")


class RotationRequest(schemas.ApiRequest):
    """Replace a key with a new key."""

    overlap_seconds: int = Field(
        ge=0, le=31 * 86_400, description="How long the old key stays valid; 0 ends it at once."
    )
    expires_at: AwareDatetime | None = Field(default=None, description="Default: the expiry of the requesting key.")


class RevocationRequest(schemas.ApiRequest):
    """Revoke a key."""

    include_created: bool = Field(
        default=True, description="Also revoke all keys that the key created, directly or indirectly."
    )


class KeyRecord(schemas.DatedRecord, schemas.NamedRecord):
    """An API key without its secret."""

    scopes: list[str] = Field(description="Permissions of the key: `admin` includes the others.")
    project_id: str | None = Field(description="The project that it can use; null for an installation admin's key.")
    admin_id: str | None = Field(description="The person whose key it is; null for keys without the scope `admin`.")
    created_by: str | None = Field(description="Id of the key that created it; null if its owner created it.")
    created_by_admin: str | None = Field(description="The admin who created it; null if it was created on the machine.")
    created_by_name: str | None = Field(description="Name of that admin, or of the person whom the provider signed in.")
    last_used_at: schemas.Minute | None = Field(description="The hour in which it was last used; null if it never was.")
    expires_at: schemas.Minute | None = Field(description="When it expires; null if it never does.")
    revoked_at: schemas.Minute | None = Field(description="When it was revoked; null while it is valid.")


class PersonRecord(schemas.NamedRecord):
    """A person's role in a project or the installation. The person's groups at the sign-in provider grant it."""

    email: str | None = Field(description="As reported by the provider; null if it reports none.")
    key_id: str = Field(description="The key that represents the role and creates the person's other keys.")
    scopes: list[str] = Field(description="Permissions of the person in the project.")
    project_id: str | None = Field(description="The project; null for the whole installation.")
    created_at: schemas.Minute = Field(description="Since when the person has the role.")
    confirmed_at: schemas.Minute = Field(description="When the provider last confirmed the person.")
    lapsed_at: schemas.Minute | None = Field(
        description="When the provider stopped confirming the person; null if it has not."
    )


class RevokedKeyRecord(KeyRecord):
    """A key that was revoked."""

    others_revoked: int = Field(description="How many keys that it had created were revoked with it.")


class NewKeyRecord(KeyRecord):
    """A new API key. The token is shown only once and is not stored."""

    token: str = Field(description="The token, to send as `Authorization: Bearer ...`. Shown only once.")


class AuditEventRecord(schemas.IdRecord):
    """One event of the audit log: actor, request and outcome."""

    at: schemas.Minute = Field(description="When it was requested.")
    action: str = Field(description="Method and route of the request, or a change such as `key revoked`.")
    object_id: str | None = Field(description="Id of the object; null if it has none.")
    outcome: Outcome = Field(description="`allowed`, `refused`, `missing` or `failed`.")
    key_id: str | None = Field(description="The key of the request; null if it had no valid key.")
    admin_id: str | None = Field(description="The admin who owns the key; null for other keys.")
    project_id: str | None = Field(description="The project of the key, or of the changed key or account.")


URL_CHARACTERS_MAX = 500
Url = Annotated[str, Field(min_length=1, max_length=URL_CHARACTERS_MAX), schemas.clean(URL_CHARACTERS_MAX)]


class WebhookRequest(schemas.ApiRequest):
    """Register an address for events."""

    url: Url = Field(description="An https URL with a public address, unless the operator allows others.")


class WebhookRecord(schemas.DatedRecord):
    """An address that receives the events of a project, without its secret."""

    project_id: str | None = Field(description="Project whose events it receives; null for the installation's.")
    url: str = Field(description="Where requests are sent.")
    state: str = Field(description="`active`, `failing` (last answer not 2xx) or `revoked` (with its key or owner).")
    failing_since: schemas.Minute | None = Field(
        description="Since when no request gets a 2xx answer; null unless failing."
    )


class NewWebhookRecord(WebhookRecord):
    """A webhook with its new secret, which is returned only once."""

    secret: str = Field(description="Key that signs its requests. Shown only once.")


class WebhookTestRecord(schemas.ApiRecord):
    """Result of a test request to a webhook."""

    delivered: bool = Field(description="True if the answer was 2xx.")
    status: int | None = Field(description="The status of the answer; null if there was none.")
    reason: str | None = Field(description="Why there was no answer; null if there was one.")
