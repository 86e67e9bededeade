"""Methods for admins and owners: admins, decisions, projects, keys, the audit log and webhooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from obscura.client.async_resources import listed, verb
from obscura.client.datasets import only_one
from obscura.client.transport import Transport
from obscura.wire.admin_schemas import (
    AdminAnswer,
    AdminList,
    AdminRecord,
    AuditEventRecord,
    DecisionRecord,
    InvitationRecord,
    KeyRecord,
    NewInvitationRecord,
    NewKeyRecord,
    NewWebhookRecord,
    PersonRecord,
    ProjectRecord,
    ProjectUseRecord,
    RevokedKeyRecord,
    WebhookRecord,
    WebhookTestRecord,
)

AUDIT_LINES = 1000  # most events in one answer


class Administration:
    """Methods of `Client` for admins and owners."""

    transport: Transport

    def admins(self) -> list[AdminRecord]:
        """Return all current and former admins."""
        return list(self.transport.get(AdminList, "/v1/admins").items)

    def decisions(self, *, action: str | None = None) -> Iterator[DecisionRecord]:
        """Yield requests that another admin must decide, newest first.

        `action` selects one kind of request, such as `raise`; None selects all.
        """
        return self.transport.pages(DecisionRecord, "/v1/decisions", action=action)

    def decision(self, request_id: str) -> DecisionRecord:
        """Return one request that another admin must decide."""
        return self.transport.get(DecisionRecord, f"/v1/decisions/{request_id}")

    def approve(self, request_id: str) -> DecisionRecord:
        """Approve another admin's request. Your own request raises AuthError."""
        return self.transport.post(DecisionRecord, f"/v1/decisions/{request_id}/approve", repeatable=True)

    def decline(self, request_id: str) -> DecisionRecord:
        """Decline another admin's request, or withdraw your own."""
        return self.transport.post(DecisionRecord, f"/v1/decisions/{request_id}/decline", repeatable=True)

    def request_admission(
        self, *, name: str, introduction: str, reason: str, project_id: str | None = None
    ) -> AdminAnswer:
        """Request that a person becomes an admin, or the owner of a project.

        `introduction` is `key_id:sha256` of the token that the person keeps (`obscura admins introduce`).
        """
        body = {"name": name, "introduction": introduction, "reason": reason, "project_id": project_id}
        return self.transport.post(AdminAnswer, "/v1/admins", body)

    def request_removal(self, admin_id: str, *, reason: str) -> DecisionRecord:
        """Request the removal of an admin, of all their keys, and of the keys that these keys created.

        Another admin must approve. The admin who would be removed may approve as well.
        """
        return self.transport.post(DecisionRecord, f"/v1/admins/{admin_id}/remove", {"reason": reason})

    def create_project(self, *, name: str) -> ProjectRecord:
        """Create a project. Its keys see only the project's own records.

        From the second project on, keys without a project no longer see the datasets, jobs and releases of any project.
        """
        return self.transport.post(ProjectRecord, "/v1/projects", {"name": name})

    def projects(self) -> Iterator[ProjectRecord]:
        """Yield the projects that the key can read, newest first: its own project, or all for an installation admin."""
        return self.transport.pages(ProjectRecord, "/v1/projects")

    def find_project(self, name_or_id: str) -> ProjectRecord:
        """Return the project with this id or name; raise NoSuchName if there is none."""
        return only_one(self.projects(), name_or_id, "project")

    def rename_project(self, project_id: str, *, name: str) -> ProjectRecord:
        """Rename a project."""
        return self.transport.post(ProjectRecord, f"/v1/projects/{project_id}/rename", {"name": name}, repeatable=True)

    def project(self, project_id: str) -> ProjectUseRecord:
        """Return a project with its job quota and number of unfinished jobs."""
        return self.transport.get(ProjectUseRecord, f"/v1/projects/{project_id}")

    def set_quota(self, project_id: str, *, jobs_max: int | None) -> ProjectUseRecord:
        """Limit the queued and running jobs of a project; None removes the limit. Needs an installation admin."""
        return self.transport.post(
            ProjectUseRecord, f"/v1/projects/{project_id}/quota", {"jobs_max": jobs_max}, repeatable=True
        )

    def create_key(
        self,
        *,
        name: str,
        scopes: Sequence[str] = (),
        role: str | None = None,
        expires_at: datetime | None = None,
        project_id: str | None = None,
    ) -> NewKeyRecord:
        """Create an API key. Its token is returned only once.

        Args:
            scopes: Some of `admin`, `data`, `train`, `read`, `releases`, `audit`, `metrics`. Or set `role` instead.
            role: Role in the project, such as `analyst`, which determines the scopes.
            expires_at: Timezone-aware; None uses the expiry of the requesting key.
            project_id: Project of the key. By default the requesting key's project, or the only project. A key with the
                scope `admin`, created by an admin of the installation, has none by default.
        """
        body: dict[str, Any] = {"name": name, "scopes": list(scopes), "role": role, "project_id": project_id}
        body["expires_at"] = expires_at and expires_at.isoformat()
        return self.transport.post(NewKeyRecord, "/v1/keys", body)

    def people(self) -> Iterator[PersonRecord]:
        """Yield the people known to the sign-in provider, one record per role."""
        return self.transport.pages(PersonRecord, "/v1/people")

    def keys(self, *, created_by: str | None = None) -> Iterator[KeyRecord]:
        """Yield all keys without secrets, or only those that one key created, directly or indirectly."""
        return self.transport.pages(KeyRecord, "/v1/keys", created_by=created_by)

    def rotate_key(self, key_id: str, *, overlap_seconds: int, expires_at: datetime | None = None) -> NewKeyRecord:
        """Replace a key. The old key remains valid for `overlap_seconds`. The new token is returned only once."""
        body = {"overlap_seconds": overlap_seconds, "expires_at": expires_at and expires_at.isoformat()}
        return self.transport.post(NewKeyRecord, f"/v1/keys/{key_id}/rotate", body)

    def revoke_key(self, key_id: str, *, include_created: bool = True) -> RevokedKeyRecord:
        """Revoke a key at once, by default with all keys that it created. See also `request_revocation`."""
        return self.transport.post(
            RevokedKeyRecord, f"/v1/keys/{key_id}/revoke", {"include_created": include_created}, repeatable=True
        )

    def request_revocation(self, key_id: str, *, reason: str) -> DecisionRecord:
        """Request the revocation of another admin's key and of all keys that it created."""
        return self.transport.post(DecisionRecord, f"/v1/keys/{key_id}/request-revocation", {"reason": reason})

    def invite(self, *, role: str, project_id: str | None = None) -> NewInvitationRecord:
        """Invite a person by link. The link works once, within seven days, and is returned only once.

        Args:
            role: `steward`, `analyst`, `auditor` or `viewer`. Or `owner` or `admin`, whose admission you must request.
            project_id: By default the requesting key's project, or the only project.
        """
        return self.transport.post(NewInvitationRecord, "/v1/invitations", {"role": role, "project_id": project_id})

    def invitations(self) -> Iterator[InvitationRecord]:
        """Yield all invitations, newest first."""
        return self.transport.pages(InvitationRecord, "/v1/invitations")

    def revoke_invitation(self, invitation_id: str) -> InvitationRecord:
        """Revoke the link of an invitation that nobody has used."""
        path = f"/v1/invitations/{invitation_id}/revoke"
        return self.transport.post(InvitationRecord, path, repeatable=True)

    def audit_log(self, *, after: str | None = None) -> Iterator[AuditEventRecord]:
        """Yield the audit events that your key can read, oldest first. after: id of the last event to skip."""
        while True:  # each request adds an audit event, so stop at the first answer that is not full
            params = {"limit": AUDIT_LINES} | ({} if after is None else {"after": after})
            answer = self.transport.request("GET", "/v1/audit-events", params=params)
            lines = answer.content.splitlines()
            for line in lines:
                event = self.transport.parse(AuditEventRecord, answer, line)
                after = event.id
                yield event
            if len(lines) < AUDIT_LINES:
                return

    def create_webhook(self, url: str) -> NewWebhookRecord:
        """Register a public https address for the events of the key's project. The secret is returned only once."""
        return self.transport.post(NewWebhookRecord, "/v1/webhooks", {"url": url})

    def webhooks(self) -> Iterator[WebhookRecord]:
        """Yield the webhooks of the key's project, newest first. An installation admin sees those of all projects."""
        return self.transport.pages(WebhookRecord, "/v1/webhooks")

    def test_webhook(self, webhook_id: str) -> WebhookTestRecord:
        """Send a request of type `test`, without data."""
        return self.transport.post(WebhookTestRecord, f"/v1/webhooks/{webhook_id}/test", {})

    def remove_webhook(self, webhook_id: str) -> WebhookRecord:
        """Remove a webhook."""
        answer = self.transport.request("DELETE", f"/v1/webhooks/{webhook_id}")
        return self.transport.parse(WebhookRecord, answer)


class AsyncAdministration:
    """Methods of `AsyncClient` for admins and owners."""

    admins = verb(Administration.admins)
    decisions = listed(Administration.decisions)
    decision = verb(Administration.decision)
    approve = verb(Administration.approve)
    decline = verb(Administration.decline)
    request_admission = verb(Administration.request_admission)
    request_removal = verb(Administration.request_removal)
    create_project = verb(Administration.create_project)
    projects = listed(Administration.projects)
    find_project = verb(Administration.find_project)
    rename_project = verb(Administration.rename_project)
    project = verb(Administration.project)
    set_quota = verb(Administration.set_quota)
    create_key = verb(Administration.create_key)
    people = listed(Administration.people)
    keys = listed(Administration.keys)
    rotate_key = verb(Administration.rotate_key)
    revoke_key = verb(Administration.revoke_key)
    request_revocation = verb(Administration.request_revocation)
    invite = verb(Administration.invite)
    invitations = listed(Administration.invitations)
    revoke_invitation = verb(Administration.revoke_invitation)
    audit_log = listed(Administration.audit_log)
    create_webhook = verb(Administration.create_webhook)
    webhooks = listed(Administration.webhooks)
    test_webhook = verb(Administration.test_webhook)
    remove_webhook = verb(Administration.remove_webhook)
