"""The connection of a client, and what comes before jobs: admins and keys, accounts, and datasets that they protect."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import ValidationError

from obscura.client.datasets import Datasets, only_one
from obscura.client.holdings import Account, Dataset
from obscura.client.transport import RETRY_STATUSES, Record, Transport
from obscura.errors import ApiError, ConnectionFailed, UnexpectedAnswer
from obscura.preparing.choices import read_secret
from obscura.preparing.subjects import key_check, keyed_numbers, require_plain_ids, subject_key
from obscura.wire import admin_schemas, schemas, webhook_schemas
from obscura.wire.budgets import Unit
from obscura.wire.subjects import SubjectId

READY_SECONDS_MAX = 300.0
READY_POLL_SECONDS = 0.5
AUDIT_LINES = 1000  # of one answer, at most


class AccountClient:
    """A connection that answers to a `with` block.

    Args:
        transport: The connection.
    """

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
        """Whether the service says that it can serve."""
        return self.health() is not None

    def health(self) -> schemas.HealthRecord | None:
        """What the service says of itself; None where it does not answer, or says that it cannot serve."""
        try:
            return self.wait_ready(0.0)
        except (ApiError, ConnectionFailed):
            return None

    def wait_ready(
        self, seconds_max: float = READY_SECONDS_MAX, *, on_wait: Callable[[str], None] = lambda _why: None
    ) -> schemas.HealthRecord:
        """Wait until the service can serve, and return what it says of itself.

        A slow service, which accepts connections and answers late or that it is busy, is waited for; an absent one, at
        whose address nothing listens, is not.

        Args:
            seconds_max: After which a slow service counts as absent.
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
        """Everybody who is or was an admin."""
        return list(self._get(admin_schemas.AdminList, "/v1/admins").items)

    def decisions(self, *, action: str | None = None) -> Iterator[admin_schemas.DecisionRecord]:
        """What one admin asked for and another one decides, newest first.

        Args:
            action: `raise`, `admit`, `remove`, `revoke` or `share`; None for all.
        """
        return self.transport.pages(admin_schemas.DecisionRecord, "/v1/decisions", action=action)

    def decision(self, request_id: str) -> admin_schemas.DecisionRecord:
        """Return one such request."""
        return self._get(admin_schemas.DecisionRecord, f"/v1/decisions/{request_id}")

    def approve(self, request_id: str) -> admin_schemas.DecisionRecord:
        """Carry out what another admin has asked for.

        Raises:
            AuthError: You asked for it yourself.
        """
        return self._repeat(admin_schemas.DecisionRecord, f"/v1/decisions/{request_id}/approve")

    def decline(self, request_id: str) -> admin_schemas.DecisionRecord:
        """Leave everything as it is; also withdraws your own request."""
        return self._repeat(admin_schemas.DecisionRecord, f"/v1/decisions/{request_id}/decline")

    def ask_admission(
        self, *, name: str, introduction: str, reason: str, project_id: str | None = None
    ) -> admin_schemas.AdminAnswer:
        """Ask for a person to be admitted, who made a token and gave you its introduction; to own a project, if one is
        named."""
        body = {"name": name, "introduction": introduction, "reason": reason}
        body |= {} if project_id is None else {"project_id": project_id}
        return self._post(admin_schemas.AdminAnswer, "/v1/admins", body)

    def ask_removal(self, admin_id: str, *, reason: str) -> admin_schemas.DecisionRecord:
        """Ask for an admin to be removed."""
        return self._post(admin_schemas.DecisionRecord, f"/v1/admins/{admin_id}/remove", {"reason": reason})

    def create_project(self, *, name: str) -> admin_schemas.ProjectRecord:
        """Create a project for a department, whose keys see what belongs to it and nothing else.

        The second project hides the datasets, jobs and releases of every project from keys without a project.
        """
        return self._post(admin_schemas.ProjectRecord, "/v1/projects", {"name": name})

    def projects(self) -> Iterator[admin_schemas.ProjectRecord]:
        """The projects that the key opens, newest first: its own, or all for an admin's that belongs to none."""
        return self.transport.pages(admin_schemas.ProjectRecord, "/v1/projects")

    def find_project(self, name_or_id: str) -> admin_schemas.ProjectRecord:
        """Return the project with this id or name.

        Raises:
            NoSuchName: Nothing has this id or name.
        """
        return only_one(self.projects(), name_or_id, "project")

    def rename_project(self, project_id: str, *, name: str) -> admin_schemas.ProjectRecord:
        """Give a project another name."""
        return self._repeat(admin_schemas.ProjectRecord, f"/v1/projects/{project_id}/rename", {"name": name})

    def project(self, project_id: str) -> admin_schemas.ProjectUseRecord:
        """Return a project with its quota of jobs, and how many unfinished jobs it has."""
        return self._get(admin_schemas.ProjectUseRecord, f"/v1/projects/{project_id}")

    def set_quota(self, project_id: str, *, jobs_max: int | None) -> admin_schemas.ProjectUseRecord:
        """Limit the jobs of a project that wait or run, as an admin of the installation. None removes the limit."""
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
        """Create an API key; its token is shown this once.

        Args:
            name: For people.
            scopes: Of `admin`, `data`, `train`, `read`, `releases`, `audit` and `metrics`; or else a role.
            role: What somebody does in the project.
            expires_at: Aware; None for as late as the key that asks, or never.
            project_id: Whose accounts and releases it opens; None where there is one project, and for a key of an
                admin of the installation.
        """
        body = {"name": name, "scopes": list(scopes), "expires_at": expires_at and expires_at.isoformat()}
        body |= {} if role is None else {"role": role}
        body |= {} if project_id is None else {"project_id": project_id}
        return self._post(admin_schemas.NewKeyRecord, "/v1/keys", body)

    def people(self) -> Iterator[admin_schemas.PersonRecord]:
        """Whom the sign-in provider knows, with a line for each role that its groups give them here."""
        return self.transport.pages(admin_schemas.PersonRecord, "/v1/people")

    def keys(self, *, made_by: str | None = None) -> Iterator[admin_schemas.KeyRecord]:
        """All keys, without secrets; or those that a key has made, with what these have made, and so on."""
        return self.transport.pages(admin_schemas.KeyRecord, "/v1/keys", made_by=made_by)

    def rotate_key(
        self, key_id: str, *, overlap_seconds: int, expires_at: datetime | None = None
    ) -> admin_schemas.NewKeyRecord:
        """Make a key that takes another one's place; its token is shown this once.

        Args:
            key_id: Of the one that is to go.
            overlap_seconds: For how long it still opens something, at most.
            expires_at: When the new one ends: aware; None for as late as the key that asks, or never.
        """
        body = {"overlap_seconds": overlap_seconds, "expires_at": expires_at and expires_at.isoformat()}
        return self._post(admin_schemas.NewKeyRecord, f"/v1/keys/{key_id}/rotate", body)

    def revoke_key(self, key_id: str, *, with_made: bool = True) -> admin_schemas.RevokedKeyRecord:
        """Revoke a key at once, and all that it has made unless that is to stay.

        Raises:
            AuthError: It is another admin's, see `ask_revocation`.
        """
        return self._repeat(admin_schemas.RevokedKeyRecord, f"/v1/keys/{key_id}/revoke", {"with_made": with_made})

    def ask_revocation(self, key_id: str, *, reason: str) -> admin_schemas.DecisionRecord:
        """Ask for another admin's key to be revoked, with all that it has made."""
        return self._post(admin_schemas.DecisionRecord, f"/v1/keys/{key_id}/ask-revocation", {"reason": reason})

    def audit_log(self, *, after: str | None = None) -> Iterator[admin_schemas.AuditEventRecord]:
        """Who asked for what, and what came of it, oldest first, as far as your key may see it. Keep it private.

        Args:
            after: Id of the last event that you have; None begins with the first.
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
        """Have an address told of what happens in the key's project; the secret is shown this once.

        Args:
            url: https, of a public address.
        """
        return self._post(webhook_schemas.NewWebhookRecord, "/v1/webhooks", {"url": url})

    def webhooks(self) -> Iterator[webhook_schemas.WebhookRecord]:
        """The webhooks of the key's project, newest first; of all projects, for an admin's that belongs to none."""
        return self.transport.pages(webhook_schemas.WebhookRecord, "/v1/webhooks")

    def test_webhook(self, webhook_id: str) -> webhook_schemas.WebhookTestRecord:
        """Send a request of the type `test`, which carries no data."""
        return self._post(webhook_schemas.WebhookTestRecord, f"/v1/webhooks/{webhook_id}/test", {})

    def remove_webhook(self, webhook_id: str) -> webhook_schemas.WebhookRecord:
        """Tell an address nothing more."""
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
        """Open an account with a lifetime budget, in a project where there are several.

        Args:
            name: Of the population, for people.
            owner: Who is asked about the account.
            epsilon: The lifetime budget.
            delta: At most 1 / (10 x number of images); a value above 1e-4 must be confirmed.
            unit: What the guarantee hides: one record, or all records of one subject.
            adjacency: Which datasets count as neighbours.
            project_id: The project that it belongs to.
            accept_large_delta: Confirms a delta above 1e-4.

        Raises:
            RequestError: The service refused it.
        """
        body = {"name": name, "owner": owner, "epsilon": epsilon, "delta": delta, "unit": unit}
        body |= {} if project_id is None else {"project_id": project_id}
        body |= {"accept_large_delta": True} if accept_large_delta else {}
        return self._account(self._post(Account, "/v1/accounts", {**body, "adjacency": adjacency}))

    def find_account(self, name_or_id: str) -> Account:
        """Return the account with this id, or else the only one with this name.

        Raises:
            NoSuchName: Nothing has this id or name, or several have the name.
        """
        return only_one(self.accounts(), name_or_id, "account")

    def account(self, account_id: str) -> Account:
        """Read an account with its balance."""
        return Account.read(self.transport, account_id)

    def accounts(self) -> Iterator[Account]:
        """All accounts."""
        return Account.listed(self.transport)

    def entries(self, account_id: str) -> Iterator[schemas.EntryRecord]:
        """The ledger of an account, oldest first."""
        return self.transport.pages(schemas.EntryRecord, f"/v1/accounts/{account_id}/entries")

    def lower_limit(self, account_id: str, *, epsilon: float, reason: str) -> Account:
        """Lower the lifetime limit at once; below what is spent and held the account freezes."""
        body = {"epsilon": epsilon, "reason": reason}
        return self._account(self._post(Account, f"/v1/accounts/{account_id}/lower-limit", body))

    def request_raise(self, account_id: str, *, epsilon: float, reason: str) -> admin_schemas.DecisionRecord:
        """Ask for a higher limit. Another admin must approve it."""
        body = {"epsilon": epsilon, "reason": reason}
        return self._post(admin_schemas.DecisionRecord, f"/v1/accounts/{account_id}/raise-limit", body)

    def freeze(self, account_id: str, *, reason: str) -> Account:
        """Take no new jobs and let no waiting one open its data."""
        return self._account(self._repeat(Account, f"/v1/accounts/{account_id}/freeze", {"reason": reason}))

    def unfreeze(self, account_id: str, *, reason: str) -> Account:
        """Open a frozen account again."""
        return self._account(self._repeat(Account, f"/v1/accounts/{account_id}/unfreeze", {"reason": reason}))

    def close_to_data(self, account_id: str) -> Account:
        """Take no new dataset or upload: who comes later gets an account of their own. Trainings go on."""
        return self._account(self._repeat(Account, f"/v1/accounts/{account_id}/close"))

    def reopen(self, account_id: str) -> Account:
        """Take new data again."""
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
        """Have the images of subjects destroyed in all datasets of an account that recognise them, for ever.

        What was spent stays spent. The answer is the same whether a subject was there or not.

        Args:
            account_id: Of the subjects.
            private_ids: Theirs, as in what was pushed.
            subjects_key: The file with the secret under which all was pushed: ids stay here, and a keyed hash of each
                is sent. None sends the ids themselves, as whoever calls the API himself may have done.
            join_subjects: Whether it was pushed with that.
            cancel_jobs: Cancel the trainings that need the datasets; what they have charged stays spent.

        Raises:
            PackingError: An id stands for nobody or is suspicious, such as 12.0, or there is no such secret.
            RequestError: Trainings need the datasets, nobody is recognised there, or the secret or `join_subjects`
                differs from that of the first upload.
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
        """Declare a dataset; every argument becomes public. Then `push` its content. `datasets.push` does both."""
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
        """Read a dataset's declaration and state."""
        return Dataset.read(self.transport, dataset_id)

    def _get(self, record: type[Record], path: str) -> Record:
        return self.transport.parse(record, self.transport.request("GET", path))

    def _post(self, record: type[Record], path: str, body: dict[str, Any]) -> Record:
        return self.transport.parse(record, self.transport.request("POST", path, json=body))

    def _repeat(self, record: type[Record], path: str, body: dict[str, Any] | None = None) -> Record:
        """POST what changes nothing the second time, and may therefore be tried again."""
        answer = self.transport.request("POST", path, json=body, repeatable=True)
        return self.transport.parse(record, answer)

    def _account(self, account: Account) -> Account:
        account._transport = self.transport
        return account
