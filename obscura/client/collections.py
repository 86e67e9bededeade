"""Collections of a service, such as `service.releases`. Their methods are `create`, `get`, `list` and a few more.

Arguments that name a record, such as `dataset_id`, take the record itself, its name or its id.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel

from obscura.client.async_resources import AsyncJob, AsyncSample, AsyncSweep, asynchronous, verb
from obscura.client.resources import Dataset, Job, Release, Sample, Sweep
from obscura.client.transport import Named, Transport
from obscura.stopping import in_thread
from obscura.wire import admin_schemas
from obscura.wire.job_schemas import RECIPE_USUAL, RecipeRecord

ONE_PAGE = {"limit": None}

A = TypeVar("A", bound=BaseModel)
R = TypeVar("R", bound=BaseModel)
S = TypeVar("S")


class Collection(Generic[R]):
    """The resources of one kind."""

    record: type[R]
    path: str
    readable = True  # False if the API can only list them
    paged: Mapping[str, None] = {}

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        verbs = [name for name in dir(self) if inspect.ismethod(getattr(self, name)) and not name.startswith("_")]
        return f"<{type(self).__name__} of {self._transport.base_url}: {', '.join(verbs)}>"

    def list(self, *, limit: int | None = None) -> builtins.list[R]:
        """Return all, or the first `limit`. Releases, jobs, datasets and sweeps are sorted by time, newest first."""
        return [*islice(self._transport.pages(self.record, self.path, **self.paged), limit)]

    def get(self, name_or_id: Named) -> R:
        """Return the one with this id or name. Jobs, samples and decisions have only ids.

        Raises:
            NotFoundError: Nothing has this id.
            NoSuchName: Nothing has this name, or several have it.
        """
        return self._transport.find(self.record, self.path, name_or_id, readable=self.readable, **self.paged)

    def _id_of(self, which: Named) -> str:
        return self._transport.id_of(self.record, self.path, which, readable=self.readable, **self.paged)

    def _act(self, answer: type[A], which: Named, verb: str, body: Any = None, *, repeatable: bool = False) -> A:
        """POST to a record, given by itself, its name or its id."""
        return self._transport.post(answer, f"{self.path}/{self._id_of(which)}/{verb}", body, repeatable=repeatable)


class AsyncCollection(Generic[S]):
    """`Collection` for asyncio."""

    def __init__(self, sync: Any) -> None:
        self._sync = sync

    async def list(self, *, limit: int | None = None) -> builtins.list[S]:
        """Return all, or the first `limit`; see `Collection.list`."""
        return [asynchronous(each) for each in await in_thread(self._sync.list, limit=limit)]

    async def get(self, name_or_id: Named) -> S:
        """Return the one with this id or name; see `Collection.get`."""
        return cast(S, asynchronous(await in_thread(self._sync.get, name_or_id)))


class Recipes(Collection[RecipeRecord]):
    """Training algorithms, with their presets, defaults and options."""

    record, path, paged = RecipeRecord, "/v1/recipes", ONE_PAGE


class Jobs(Collection[Job]):
    """Trainings, samplings and evaluations."""

    record, path = Job, Job.PATH

    def create(
        self,
        dataset_id: Named,
        *,
        epsilon: float,
        recipe: str = RECIPE_USUAL,
        options: dict[str, Any] | None = None,
        evaluation_dataset_id: Named | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Request a training without waiting. Its cost is reserved at once.

        Example: `release = service.jobs.create(dataset, epsilon=1).wait().release()`

        Raise BudgetError if the account cannot pay; the error's `numbers` state the affordable budget.
        """
        ids = Dataset.ids(self._transport, dataset_id=dataset_id, evaluation_dataset_id=evaluation_dataset_id)
        body = {**ids, "recipe": recipe, "epsilon": epsilon, "options": options or {}}
        return self._transport.create(Job, self.path, body, idempotency_key)


class Sweeps(Collection[Sweep]):
    """Hyperparameter searches."""

    record, path = Sweep, Sweep.PATH

    def create(
        self,
        dataset_id: Named,
        *,
        name: str,
        trials: Sequence[dict[str, Any]],
        epsilon: float | None = None,
        recipe: str = RECIPE_USUAL,
        evaluation_dataset_id: Named | None = None,
        idempotency_key: str | None = None,
    ) -> Sweep:
        """Request a sweep. The cost of all trials is reserved atomically, or nothing is reserved.

        Example: `service.sweeps.create(dataset, name="budgets", trials=[{"epsilon": 0.5}, {"epsilon": 1}])`

        Args:
            trials: 2 to 64 trials, each `{"options": {...}}` and optionally its own `"epsilon"`.
            epsilon: Budget of each trial that has no epsilon of its own.
            evaluation_dataset_id: Public dataset that compares the releases.

        Raises:
            BudgetError: The account cannot pay for all trials. `numbers` states how many are affordable.
        """
        ids = Dataset.ids(self._transport, dataset_id=dataset_id, evaluation_dataset_id=evaluation_dataset_id)
        body = {**ids, "name": name, "recipe": recipe, "trials": [*trials], "epsilon": epsilon}
        return self._transport.create(Sweep, self.path, body, idempotency_key)


class Releases(Collection[Release]):
    """Published results of trainings. Generating images is free: `service.releases.get("digits").sample(1000)`."""

    record, path = Release, Release.PATH


class Samples:
    """Sets of synthetic images, which `release.sample(1000)` requests."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, sample_id: str) -> Sample:
        """Return the sample with this id."""
        return Sample.read(self._transport, sample_id)


class Admins(Collection[admin_schemas.AdminRecord]):
    """Current and former admins, who decide about limits, admins, keys and shares."""

    record, path, paged = admin_schemas.AdminRecord, "/v1/admins", ONE_PAGE
    readable = False

    def request_admission(
        self, *, name: str, introduction: str, reason: str, project_id: str | None = None
    ) -> admin_schemas.AdminAnswer:
        """Request that a person becomes an admin, or the owner of a project.

        `introduction` is `key_id:sha256` of the token that the person keeps (`obscura admins introduce`).
        """
        body = {"name": name, "introduction": introduction, "reason": reason, "project_id": project_id}
        return self._transport.post(admin_schemas.AdminAnswer, self.path, body)

    def request_removal(self, admin_id: Named, *, reason: str) -> admin_schemas.DecisionRecord:
        """Request the removal of an admin, of all their keys, and of the keys that these keys created.

        Another admin must approve. The admin who would be removed may approve as well.
        """
        return self._act(admin_schemas.DecisionRecord, admin_id, "remove", {"reason": reason})


class Decisions(Collection[admin_schemas.DecisionRecord]):
    """Requests that another admin must decide."""

    record, path = admin_schemas.DecisionRecord, "/v1/decisions"

    def list(
        self, *, limit: int | None = None, action: str | None = None
    ) -> builtins.list[admin_schemas.DecisionRecord]:
        """Return requests, newest first. `action` selects one kind of request, such as `raise`; None selects all."""
        return [*islice(self._transport.pages(self.record, self.path, action=action), limit)]

    def approve(self, request_id: Named) -> admin_schemas.DecisionRecord:
        """Approve another admin's request. Your own request raises AuthError."""
        return self._act(admin_schemas.DecisionRecord, request_id, "approve", repeatable=True)

    def decline(self, request_id: Named) -> admin_schemas.DecisionRecord:
        """Decline another admin's request, or withdraw your own."""
        return self._act(admin_schemas.DecisionRecord, request_id, "decline", repeatable=True)


class Projects(Collection[admin_schemas.ProjectRecord]):
    """The projects that the key can read: its own project, or all for an installation admin."""

    record, path = admin_schemas.ProjectRecord, "/v1/projects"

    def create(self, name: str) -> admin_schemas.ProjectRecord:
        """Create a project. Its keys see only the project's own records.

        From the second project on, keys without a project no longer see the datasets, jobs and releases of any project.
        """
        return self._transport.post(admin_schemas.ProjectRecord, self.path, {"name": name})

    def get(self, name_or_id: Named) -> admin_schemas.ProjectUseRecord:
        """Return a project with its job quota and number of unfinished jobs; see `Collection.get`."""
        return self._transport.get(admin_schemas.ProjectUseRecord, f"{self.path}/{self._id_of(name_or_id)}")

    def rename(self, project_id: Named, name: str) -> admin_schemas.ProjectRecord:
        """Rename a project."""
        return self._act(admin_schemas.ProjectRecord, project_id, "rename", {"name": name}, repeatable=True)

    def set_quota(self, project_id: Named, *, jobs_max: int | None) -> admin_schemas.ProjectUseRecord:
        """Limit the queued and running jobs of a project; None removes the limit. Needs an installation admin."""
        return self._act(admin_schemas.ProjectUseRecord, project_id, "quota", {"jobs_max": jobs_max}, repeatable=True)


class People(Collection[admin_schemas.PersonRecord]):
    """People known to the sign-in provider, one record per role."""

    record, path = admin_schemas.PersonRecord, "/v1/people"
    readable = False


class Invitations(Collection[admin_schemas.InvitationRecord]):
    """Links that let people join."""

    record, path = admin_schemas.InvitationRecord, "/v1/invitations"
    readable = False

    def create(self, *, role: str, project_id: str | None = None) -> admin_schemas.NewInvitationRecord:
        """Invite a person by link. The link works once, within seven days, and is returned only once.

        Args:
            role: `steward`, `analyst`, `auditor` or `viewer`. Or `owner` or `admin`, whose admission you must request.
            project_id: By default the requesting key's project, or the only project.
        """
        return self._transport.post(
            admin_schemas.NewInvitationRecord, self.path, {"role": role, "project_id": project_id}
        )

    def revoke(self, invitation_id: Named) -> admin_schemas.InvitationRecord:
        """Revoke the link of an unused invitation."""
        return self._act(admin_schemas.InvitationRecord, invitation_id, "revoke", repeatable=True)


class Keys(Collection[admin_schemas.KeyRecord]):
    """API keys, without their secrets."""

    record, path = admin_schemas.KeyRecord, "/v1/keys"
    readable = False

    def create(
        self,
        name: str,
        *,
        scopes: Sequence[str] = (),
        role: str | None = None,
        expires_at: datetime | None = None,
        project_id: str | None = None,
    ) -> admin_schemas.NewKeyRecord:
        """Create an API key. Its token is returned only once.

        Example: `token = service.keys.create("nightly", scopes=["train", "releases"]).token`

        Args:
            scopes: Some of `admin`, `data`, `train`, `read`, `releases`, `audit`, `metrics`. Or set `role` instead.
            role: Role in the project, such as `analyst`, which determines the scopes.
            expires_at: Timezone-aware; None uses the expiry of the requesting key.
            project_id: Project of the key. By default the requesting key's project, or the only project. A key with the
                scope `admin`, created by an admin of the installation, has none by default.
        """
        body: dict[str, Any] = {"name": name, "scopes": [*scopes], "role": role, "project_id": project_id}
        body["expires_at"] = expires_at and expires_at.isoformat()
        return self._transport.post(admin_schemas.NewKeyRecord, self.path, body)

    def list(
        self, *, limit: int | None = None, created_by: str | None = None
    ) -> builtins.list[admin_schemas.KeyRecord]:
        """Return all keys, or only those that one key created, directly or indirectly."""
        return [*islice(self._transport.pages(self.record, self.path, created_by=created_by), limit)]

    def rotate(
        self, key_id: Named, *, overlap_seconds: int, expires_at: datetime | None = None
    ) -> admin_schemas.NewKeyRecord:
        """Replace a key. The old key remains valid for `overlap_seconds`. The new token is returned only once."""
        body = {"overlap_seconds": overlap_seconds, "expires_at": expires_at and expires_at.isoformat()}
        return self._act(admin_schemas.NewKeyRecord, key_id, "rotate", body)

    def revoke(self, key_id: Named, *, include_created: bool = True) -> admin_schemas.RevokedKeyRecord:
        """Revoke a key at once, by default with all keys that it created. See also `request_revocation`."""
        return self._act(
            admin_schemas.RevokedKeyRecord, key_id, "revoke", {"include_created": include_created}, repeatable=True
        )

    def request_revocation(self, key_id: Named, *, reason: str) -> admin_schemas.DecisionRecord:
        """Request the revocation of another admin's key and of all keys that it created."""
        return self._act(admin_schemas.DecisionRecord, key_id, "request-revocation", {"reason": reason})


class Webhooks(Collection[admin_schemas.WebhookRecord]):
    """Addresses that receive the events of the key's project. An installation admin sees those of all projects."""

    record, path = admin_schemas.WebhookRecord, "/v1/webhooks"
    readable = False

    def create(self, url: str) -> admin_schemas.NewWebhookRecord:
        """Register a public https address for the events of the key's project. The secret is returned only once."""
        return self._transport.post(admin_schemas.NewWebhookRecord, self.path, {"url": url})

    def test(self, webhook_id: Named) -> admin_schemas.WebhookTestRecord:
        """Send a request of type `test`, without data."""
        return self._act(admin_schemas.WebhookTestRecord, webhook_id, "test", {})

    def delete(self, webhook_id: Named) -> admin_schemas.WebhookRecord:
        """Delete a webhook."""
        answer = self._transport.request("DELETE", f"{self.path}/{self._id_of(webhook_id)}")
        return self._transport.parse(admin_schemas.WebhookRecord, answer)


class AsyncJobs(AsyncCollection[AsyncJob]):
    create = verb(Jobs.create, AsyncJob.of)


class AsyncSweeps(AsyncCollection[AsyncSweep]):
    create = verb(Sweeps.create, AsyncSweep.of)


class AsyncSamples:
    def __init__(self, sync: Samples) -> None:
        self._sync = sync

    get = verb(Samples.get, AsyncSample.of)


class AsyncAdmins(AsyncCollection[admin_schemas.AdminRecord]):
    request_admission = verb(Admins.request_admission)
    request_removal = verb(Admins.request_removal)


class AsyncDecisions(AsyncCollection[admin_schemas.DecisionRecord]):
    list = verb(Decisions.list)
    approve = verb(Decisions.approve)
    decline = verb(Decisions.decline)


class AsyncProjects(AsyncCollection[admin_schemas.ProjectRecord]):
    get = verb(Projects.get)
    create = verb(Projects.create)
    rename = verb(Projects.rename)
    set_quota = verb(Projects.set_quota)


class AsyncInvitations(AsyncCollection[admin_schemas.InvitationRecord]):
    create = verb(Invitations.create)
    revoke = verb(Invitations.revoke)


class AsyncKeys(AsyncCollection[admin_schemas.KeyRecord]):
    list = verb(Keys.list)
    create = verb(Keys.create)
    rotate = verb(Keys.rotate)
    revoke = verb(Keys.revoke)
    request_revocation = verb(Keys.request_revocation)


class AsyncWebhooks(AsyncCollection[admin_schemas.WebhookRecord]):
    create = verb(Webhooks.create)
    test = verb(Webhooks.test)
    delete = verb(Webhooks.delete)
