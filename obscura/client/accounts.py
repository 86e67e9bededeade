"""The connection of a client, and what comes before jobs: admins and keys, accounts, and datasets that they protect."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from pydantic import ValidationError

from obscura.client.datasets import Datasets, only_one
from obscura.client.resources import Account, Dataset, Preview
from obscura.client.transport import RETRY_STATUSES, Record, Transport
from obscura.errors import ApiError, ConnectionFailed, UnexpectedAnswer
from obscura.preparing.choices import read_secret
from obscura.preparing.subjects import key_check, keyed_numbers, require_plain_ids, subject_key
from obscura.wire import admin_schemas, job_schemas, recipe_schemas, schemas, webhook_schemas
from obscura.wire.budgets import Unit
from obscura.wire.subjects import SubjectId

READY_SECONDS_MAX = 300.0
READY_POLL_SECONDS = 0.5
AUDIT_LINES = 1000  # of one answer, at most


class AccountClient:
    """Admins, keys, projects, accounts and plans of a service, as a context manager."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.datasets = Datasets(transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.transport.close()

    def ready(self) -> bool:
        """Return whether the service can serve."""
        return self.health() is not None

    def health(self) -> schemas.HealthRecord | None:
        """Return the service's health record; None if it does not answer or cannot serve."""
        try:
            return self.wait_ready(0.0)
        except (ApiError, ConnectionFailed):
            return None

    def wait_ready(
        self, seconds_max: float = READY_SECONDS_MAX, *, on_wait: Callable[[str], None] = lambda _why: None
    ) -> schemas.HealthRecord:
        """Wait until the service can serve, and return its health record.

        Waits for a slow or busy service, but not if nothing listens at the address.

        Args:
            seconds_max: Give up after this time.
            on_wait: Called once with the reason, before the first wait.

        Raises:
            ConnectionFailed: Nothing listens at the address, or the answer took too long.
            ApiError: Something else answered, or the service was busy for too long.
        """
        deadline = time.monotonic() + seconds_max
        waits = False
        while True:
            try:
                answer = self.transport.request("GET", "/v1/health/ready", repeatable=False)
                return self.transport.parse(schemas.HealthRecord, answer)
            except (ApiError, ConnectionFailed) as error:
                slow = error.status in RETRY_STATUSES if isinstance(error, ApiError) else not error.refused
                if not slow or time.monotonic() >= deadline:
                    raise
                if not waits:
                    on_wait(str(error))
            waits = True
            self.transport.sleep(READY_POLL_SECONDS)

    def admins(self) -> list[admin_schemas.AdminRecord]:
        """Return all current and former admins."""
        return list(self._get(admin_schemas.AdminList, "/v1/admins").items)

    def decisions(self, *, action: str | None = None) -> Iterator[admin_schemas.DecisionRecord]:
        """Yield requests that another admin decides, newest first.

        Args:
            action: `raise`, `admit`, `remove`, `revoke` or `share`; None for all.
        """
        return self.transport.pages(admin_schemas.DecisionRecord, "/v1/decisions", action=action)

    def decision(self, request_id: str) -> admin_schemas.DecisionRecord:
        """Return one such request."""
        return self._get(admin_schemas.DecisionRecord, f"/v1/decisions/{request_id}")

    def approve(self, request_id: str) -> admin_schemas.DecisionRecord:
        """Approve another admin's request; raise AuthError for your own."""
        return self._repeat(admin_schemas.DecisionRecord, f"/v1/decisions/{request_id}/approve")

    def decline(self, request_id: str) -> admin_schemas.DecisionRecord:
        """Decline a request, or withdraw your own."""
        return self._repeat(admin_schemas.DecisionRecord, f"/v1/decisions/{request_id}/decline")

    def ask_admission(
        self, *, name: str, introduction: str, reason: str, project_id: str | None = None
    ) -> admin_schemas.AdminAnswer:
        """Request the admission of a person by the introduction of their token, optionally as owner of a project."""
        body = {"name": name, "introduction": introduction, "reason": reason}
        body |= {} if project_id is None else {"project_id": project_id}
        return self._post(admin_schemas.AdminAnswer, "/v1/admins", body)

    def ask_removal(self, admin_id: str, *, reason: str) -> admin_schemas.DecisionRecord:
        """Request the removal of an admin."""
        return self._post(admin_schemas.DecisionRecord, f"/v1/admins/{admin_id}/remove", {"reason": reason})

    def create_project(self, *, name: str) -> admin_schemas.ProjectRecord:
        """Create a project. Its keys see only what belongs to it.

        The second project hides the datasets, jobs and releases of every project from keys without a project.
        """
        return self._post(admin_schemas.ProjectRecord, "/v1/projects", {"name": name})

    def projects(self) -> Iterator[admin_schemas.ProjectRecord]:
        """Yield the projects that the key can read, newest first: its own, or all for an admin of the installation."""
        return self.transport.pages(admin_schemas.ProjectRecord, "/v1/projects")

    def find_project(self, name_or_id: str) -> admin_schemas.ProjectRecord:
        """Return the project with this id or name; raise NoSuchName if there is none."""
        return only_one(self.projects(), name_or_id, "project")

    def rename_project(self, project_id: str, *, name: str) -> admin_schemas.ProjectRecord:
        """Rename a project."""
        return self._repeat(admin_schemas.ProjectRecord, f"/v1/projects/{project_id}/rename", {"name": name})

    def project(self, project_id: str) -> admin_schemas.ProjectUseRecord:
        """Return a project with its job quota and number of unfinished jobs."""
        return self._get(admin_schemas.ProjectUseRecord, f"/v1/projects/{project_id}")

    def set_quota(self, project_id: str, *, jobs_max: int | None) -> admin_schemas.ProjectUseRecord:
        """Limit the queued and running jobs of a project; None removes the limit. Needs an installation admin."""
        return self._repeat(admin_schemas.ProjectUseRecord, f"/v1/projects/{project_id}/quota", {"jobs_max": jobs_max})

    def create_key(
        self,
        *,
        name: str,
        scopes: Sequence[str] = (),
        role: str | None = None,
        expires_at: datetime | None = None,
        project_id: str | None = None,
    ) -> admin_schemas.NewKeyRecord:
        """Create an API key. Its token is returned only once.

        Args:
            name: Shown to people.
            scopes: From `admin`, `data`, `train`, `read`, `releases`, `audit` and `metrics`; or give a role.
            role: The person's role in the project.
            expires_at: Timezone-aware; None for the expiry of the requesting key.
            project_id: Project of the key; None if there is only one project, or for an admin of the installation.
        """
        body = {"name": name, "scopes": list(scopes), "expires_at": expires_at and expires_at.isoformat()}
        body |= {} if role is None else {"role": role}
        body |= {} if project_id is None else {"project_id": project_id}
        return self._post(admin_schemas.NewKeyRecord, "/v1/keys", body)

    def people(self) -> Iterator[admin_schemas.PersonRecord]:
        """Yield the people known to the sign-in provider, one line per role."""
        return self.transport.pages(admin_schemas.PersonRecord, "/v1/people")

    def keys(self, *, made_by: str | None = None) -> Iterator[admin_schemas.KeyRecord]:
        """Yield all keys without secrets, or all keys that a key created, directly or indirectly."""
        return self.transport.pages(admin_schemas.KeyRecord, "/v1/keys", made_by=made_by)

    def rotate_key(
        self, key_id: str, *, overlap_seconds: int, expires_at: datetime | None = None
    ) -> admin_schemas.NewKeyRecord:
        """Replace a key. The new token is returned only once.

        Args:
            key_id: The key to replace.
            overlap_seconds: Time for which the old key remains valid.
            expires_at: Expiry of the new key, timezone-aware; None for that of the requesting key.
        """
        body = {"overlap_seconds": overlap_seconds, "expires_at": expires_at and expires_at.isoformat()}
        return self._post(admin_schemas.NewKeyRecord, f"/v1/keys/{key_id}/rotate", body)

    def revoke_key(self, key_id: str, *, with_made: bool = True) -> admin_schemas.RevokedKeyRecord:
        """Revoke a key at once, by default with all keys that it created.

        Raises:
            AuthError: It belongs to another admin; use `ask_revocation`.
        """
        return self._repeat(admin_schemas.RevokedKeyRecord, f"/v1/keys/{key_id}/revoke", {"with_made": with_made})

    def ask_revocation(self, key_id: str, *, reason: str) -> admin_schemas.DecisionRecord:
        """Request the revocation of another admin's key and all keys that it created."""
        return self._post(admin_schemas.DecisionRecord, f"/v1/keys/{key_id}/ask-revocation", {"reason": reason})

    def audit_log(self, *, after: str | None = None) -> Iterator[admin_schemas.AuditEventRecord]:
        """Yield the audit events that your key can read, oldest first. Keep them private.

        Args:
            after: Id of the last event that you have; None starts at the first.
        """
        events: list[admin_schemas.AuditEventRecord] | None = None
        while (
            events is None or len(events) == AUDIT_LINES
        ):  # fewer are all; each reading leaves an event, so it would never be none
            params = {"limit": AUDIT_LINES} | ({} if after is None else {"after": after})
            answer = self.transport.request("GET", "/v1/audit-events", params=params)
            try:
                events = [
                    admin_schemas.AuditEventRecord.model_validate_json(line) for line in answer.content.splitlines()
                ]
            except ValidationError as error:
                raise UnexpectedAnswer(self.transport.route, answer) from error
            for event in events:
                after = event.id
                yield event

    # --- accounts ---

    def create_webhook(self, url: str) -> webhook_schemas.NewWebhookRecord:
        """Register a public https address for events of the key's project. The secret is returned only once."""
        return self._post(webhook_schemas.NewWebhookRecord, "/v1/webhooks", {"url": url})

    def webhooks(self) -> Iterator[webhook_schemas.WebhookRecord]:
        """Yield the webhooks of the key's project, newest first; of all projects for an installation admin."""
        return self.transport.pages(webhook_schemas.WebhookRecord, "/v1/webhooks")

    def test_webhook(self, webhook_id: str) -> webhook_schemas.WebhookTestRecord:
        """Send a request of type `test`, without data."""
        return self._post(webhook_schemas.WebhookTestRecord, f"/v1/webhooks/{webhook_id}/test", {})

    def remove_webhook(self, webhook_id: str) -> webhook_schemas.WebhookRecord:
        """Remove a webhook."""
        answer = self.transport.request("DELETE", f"/v1/webhooks/{webhook_id}")
        return self.transport.parse(webhook_schemas.WebhookRecord, answer)

    def create_account(
        self,
        *,
        name: str,
        owner: str,
        epsilon: float,
        delta: float,
        unit: Unit,
        adjacency: str = "add_remove",
        project_id: str | None = None,
        accept_large_delta: bool = False,
    ) -> Account:
        """Open an account with a lifetime budget.

        Args:
            name: Name of the population.
            owner: Contact for the account.
            epsilon: Lifetime budget.
            delta: At most 1 / (10 x number of images).
            unit: Protected unit: one record, or all records of a subject.
            adjacency: Definition of neighbouring datasets.
            project_id: Project of the account, if there are several.
            accept_large_delta: Confirm a delta above 1e-4.
        """
        body = {"name": name, "owner": owner, "epsilon": epsilon, "delta": delta, "unit": unit}
        body |= {} if project_id is None else {"project_id": project_id}
        body |= {"accept_large_delta": True} if accept_large_delta else {}
        return self._account(self._post(Account, "/v1/accounts", {**body, "adjacency": adjacency}))

    def find_account(self, name_or_id: str) -> Account:
        """Return the account with this id, or the only one with this name; raise NoSuchName otherwise."""
        return only_one(self.accounts(), name_or_id, "account")

    def account(self, account_id: str) -> Account:
        """Return an account with its balance."""
        return Account.read(self.transport, account_id)

    def accounts(self) -> Iterator[Account]:
        """Yield all accounts."""
        return Account.listed(self.transport)

    def entries(self, account_id: str) -> Iterator[schemas.EntryRecord]:
        """Yield the ledger entries of an account, oldest first."""
        return self.transport.pages(schemas.EntryRecord, f"/v1/accounts/{account_id}/entries")

    def lower_limit(self, account_id: str, *, epsilon: float, reason: str) -> Account:
        """Lower the lifetime limit at once. Below spent and reserved budget, the account freezes."""
        body = {"epsilon": epsilon, "reason": reason}
        return self._account(self._post(Account, f"/v1/accounts/{account_id}/lower-limit", body))

    def request_raise(self, account_id: str, *, epsilon: float, reason: str) -> admin_schemas.DecisionRecord:
        """Request a higher limit, which another admin must approve."""
        body = {"epsilon": epsilon, "reason": reason}
        return self._post(admin_schemas.DecisionRecord, f"/v1/accounts/{account_id}/raise-limit", body)

    def freeze(self, account_id: str, *, reason: str) -> Account:
        """Freeze an account: accept no new jobs, and keep queued ones from reading its data."""
        return self._account(self._repeat(Account, f"/v1/accounts/{account_id}/freeze", {"reason": reason}))

    def unfreeze(self, account_id: str, *, reason: str) -> Account:
        """Unfreeze an account."""
        return self._account(self._repeat(Account, f"/v1/accounts/{account_id}/unfreeze", {"reason": reason}))

    def close_to_data(self, account_id: str) -> Account:
        """Accept no new datasets or uploads. Trainings continue."""
        return self._account(self._repeat(Account, f"/v1/accounts/{account_id}/close"))

    def reopen(self, account_id: str) -> Account:
        """Accept new data again."""
        return self._account(self._repeat(Account, f"/v1/accounts/{account_id}/reopen"))

    def withdraw_subjects(
        self,
        account_id: str,
        private_ids: Sequence[SubjectId],
        *,
        subjects_key: str | Path | None,
        join_subjects: bool = False,
        cancel_jobs: bool = False,
    ) -> schemas.WithdrawalRecord:
        """Destroy the images of subjects forever, in all datasets of an account that recognise them.

        Spent budget stays spent. The answer does not reveal whether a subject was there.

        Args:
            account_id: The account.
            private_ids: Subject ids as they were pushed.
            subjects_key: File with the secret of all pushes: ids stay here, and only keyed hashes are sent. None sends
                the ids themselves, for data that was uploaded through the API with plain ids.
            join_subjects: Whether the data was pushed with `join_subjects`.
            cancel_jobs: Cancel the trainings that need the datasets; their charges stay spent.

        Raises:
            PackingError: An id is a placeholder or suspicious, such as 12.0, or the secret cannot be read.
            RequestError: Trainings need the datasets, no subject is recognised, or the secret or `join_subjects`
                differs from the first upload.
        """
        require_plain_ids(dict.fromkeys(private_ids, ""), join=join_subjects, withdrawal=True)
        names = [subject_key(private_id, join=join_subjects) for private_id in private_ids]
        secret = read_secret(subjects_key)
        sent = names if secret is None else [*keyed_numbers(names, secret).values()]
        check = {} if secret is None else {"subjects_key_check": key_check(secret, join=join_subjects)}
        body = {"subjects": sent, "cancel_jobs": cancel_jobs, **check}
        return self._repeat(schemas.WithdrawalRecord, f"/v1/accounts/{account_id}/withdrawals", body)

    # --- datasets ---

    def declare_dataset(
        self,
        *,
        name: str,
        visibility: schemas.Visibility,
        classes: list[str],
        height: int,
        width: int,
        channels: int,
        records_declared: int,
        subjects_declared: int | None = None,
        subjects_recognised: bool = False,
        account_id: str | None = None,
    ) -> Dataset:
        """Declare a dataset; every argument becomes public. `push` its content next, or use `datasets.push`."""
        return Dataset.declared(
            self.transport,
            name=name,
            visibility=visibility,
            classes=classes,
            height=height,
            width=width,
            channels=channels,
            records_declared=records_declared,
            subjects_declared=subjects_declared,
            account_id=account_id,
            **({"subjects_recognised": True} if subjects_recognised else {}),
        )

    def dataset(self, dataset_id: str) -> Dataset:
        """Return a dataset's declaration and state."""
        return Dataset.read(self.transport, dataset_id)

    def _get(self, record: type[Record], path: str) -> Record:
        return self.transport.parse(record, self.transport.request("GET", path))

    def _post(self, record: type[Record], path: str, body: dict[str, Any]) -> Record:
        return self.transport.parse(record, self.transport.request("POST", path, json=body))

    def _repeat(self, record: type[Record], path: str, body: dict[str, Any] | None = None) -> Record:
        answer = self.transport.request("POST", path, json=body, repeatable=True)
        return self.transport.parse(record, answer)

    def _account(self, account: Account) -> Account:
        account._transport = self.transport
        return account

    def recipes(self) -> list[recipe_schemas.RecipeRecord]:
        """Return the recipes of this service and their options."""
        return list(self._get(recipe_schemas.RecipeList, "/v1/recipes").items)

    def recipe(self, name: str) -> recipe_schemas.RecipeRecord:
        """Return a recipe: presets, defaults and the JSON Schema of its options."""
        return self._get(recipe_schemas.RecipeRecord, f"/v1/recipes/{quote(name, safe='')}")

    def plan(
        self,
        dataset_id: str,
        *,
        recipe: str,
        epsilon: float,
        options: dict[str, Any] | None = None,
    ) -> job_schemas.PlanRecord:
        """Return what a training would do and cost. Reads no data."""
        body = {"dataset_id": dataset_id, "recipe": recipe, "epsilon": epsilon, "options": options or {}}
        return self._repeat(job_schemas.PlanRecord, "/v1/plans", body)

    def preview(
        self,
        dataset_id: str,
        *,
        recipe: str,
        epsilon: float,
        options: dict[str, Any] | None = None,
        stand_in_dataset_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Preview:
        """Request a preview of a training on public images, for free. `wait()` for the forecast.

        Args:
            stand_in_dataset_id: Public images to train on.
            idempotency_key: The same key and request return the same preview.
        """
        body = {"dataset_id": dataset_id, "recipe": recipe, "epsilon": epsilon, "options": options or {}}
        body["stand_in_dataset_id"] = stand_in_dataset_id
        return Preview.bound(self.transport, self.transport.create(Preview.PATH, body, idempotency_key))
