"""`Client`: a connection to a service, its collections, and `train`, which does everything in one call."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, Unpack, get_type_hints

from obscura.client import collections
from obscura.client.accounts import Accounts, AsyncAccounts
from obscura.client.async_resources import AsyncJob, AsyncPreview, AsyncRelease, listed, verb
from obscura.client.datasets import AsyncDatasets, Datasets
from obscura.client.one_step import ImageInput, Labels, begin
from obscura.client.progress import TerminalConsole, job_progress
from obscura.client.resources import Dataset, Plan, Preview, Release
from obscura.client.transport import RETRY_STATUSES, Named, Transport
from obscura.errors import ApiError, ConnectionFailed
from obscura.preparing.choices import ImageOptions, named_options
from obscura.stopping import in_thread
from obscura.wire.admin_schemas import AuditEventRecord, PersonRecord
from obscura.wire.job_schemas import RECIPE_USUAL, RecipeRecord
from obscura.wire.schemas import HealthRecord

__all__ = ["AsyncClient", "Client"]

AUDIT_LINES = 1000  # most events in one answer
READY_SECONDS_MAX = 300.0
READY_POLL_SECONDS = 0.5

P = ParamSpec("P")


class Client:
    """A connection to an Obscura service; a context manager. `transport` replaces the HTTP transport in tests.

    Each attribute is a collection: `service.accounts.create(...)`, `service.releases.list()`.
    """

    accounts: Accounts
    datasets: Datasets
    recipes: collections.Recipes
    jobs: collections.Jobs
    sweeps: collections.Sweeps
    releases: collections.Releases
    samples: collections.Samples
    admins: collections.Admins
    decisions: collections.Decisions
    people: collections.People
    projects: collections.Projects
    invitations: collections.Invitations
    keys: collections.Keys
    webhooks: collections.Webhooks

    def __init__(self, base_url: str, token: str | None, *, transport: Transport | None = None) -> None:
        self.transport = transport or Transport(base_url, token)
        for noun, kind in get_type_hints(Client).items():
            setattr(self, noun, kind(self.transport))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.transport.base_url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self.transport.close()

    def ready(self) -> bool:
        """Return whether the service can serve requests."""
        with suppress(ApiError, ConnectionFailed):
            return self.wait_ready(0.0) is not None
        return False

    def wait_ready(
        self, seconds_max: float = READY_SECONDS_MAX, *, on_wait: Callable[[str], None] = lambda _why: None
    ) -> HealthRecord:
        """Wait until the service can serve requests, and return its health record.

        The call waits while the service is slow or busy. It fails at once if nothing listens at the address.

        Args:
            on_wait: Called once with the reason, before the first wait.

        Raises:
            ConnectionFailed: Nothing listens at the address, or the answer took too long.
            ApiError: The service was busy for too long, or something other than the service answered.
        """
        deadline = time.monotonic() + seconds_max
        waits = False
        while True:
            try:
                answer = self.transport.request("GET", "/v1/health/ready", repeatable=False)
                return self.transport.parse(HealthRecord, answer)
            except (ApiError, ConnectionFailed) as error:
                slow = error.status in RETRY_STATUSES if isinstance(error, ApiError) else not error.refused
                if not slow or time.monotonic() >= deadline:
                    raise
                if not waits:
                    on_wait(str(error))
            waits = True
            self.transport.sleep(READY_POLL_SECONDS)

    def plan(
        self,
        dataset_id: Named,
        *,
        epsilon: float,
        recipe: str = RECIPE_USUAL,
        options: dict[str, Any] | None = None,
        expected_units: int | None = None,
    ) -> Plan:
        """Return the stages and the cost of a training. Reads no data, and costs nothing.

        The forecast assumes `expected_units` images, or subjects if the account protects them; by default, the limit.

        Example: `service.plan(dataset, epsilon=1).cost_epsilon`; the dataset is a record, a name or an id.
        """
        ids = Dataset.ids(self.transport, dataset_id=dataset_id)
        body = {**ids, "recipe": recipe, "epsilon": epsilon, "options": options or {}}
        body["expected_units"] = expected_units
        return self.transport.post(Plan, "/v1/plans", body, repeatable=True)

    def preview(
        self,
        dataset_id: Named,
        *,
        epsilon: float,
        recipe: str = RECIPE_USUAL,
        options: dict[str, Any] | None = None,
        stand_in_dataset_id: Named | None = None,
        idempotency_key: str | None = None,
    ) -> Preview:
        """Request a preview of a training on public images, for free; `wait()` returns the forecast."""
        ids = Dataset.ids(self.transport, dataset_id=dataset_id, stand_in_dataset_id=stand_in_dataset_id)
        body = {**ids, "recipe": recipe, "epsilon": epsilon, "options": options or {}}
        return self.transport.create(Preview, Preview.PATH, body, idempotency_key)

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

    @named_options
    def train(
        self,
        images: ImageInput,
        labels: Labels = None,
        *,
        epsilon: float | None = None,
        limit: float | None = None,
        at_most: int | None = None,
        subjects_at_most: int | None = None,
        subjects: Sequence[int | str | bytes] | None = None,
        name: str | None = None,
        account: Named | None = None,
        recipe: str = RECIPE_USUAL,
        options: dict[str, Any] | None = None,
        again: bool = False,
        show: bool | None = None,
        **reading: Unpack[ImageOptions],
    ) -> Release:
        """Train on images and wait for the release: prepare, declare, plan, upload, train.

        Nothing is opened, declared or uploaded unless the plan is valid and the account can pay. Repeating the call
        with the same images and limits reuses the uploaded dataset.

        Example: `release = service.train("images/", epsilon=1, at_most=2000, size=32, grey=True)`

        Args:
            images: A folder or file as for `datasets.push`; uint8 images (n, h, w) or (n, h, w, 3); or a pushed
                dataset, whose account pays.
            labels: For images in memory, (n,) numbers or names. For a folder, a table with the columns file and label.
            epsilon: Budget of this training; by default a third of what the account has left.
            limit: Lifetime budget of a new account, for all trainings on these images together; by default `epsilon`,
                which one line on stderr announces. Later, it can be raised only by a request.
            at_most: Public upper limit on the number of images; required unless `images` is a dataset.
            subjects_at_most: Public upper limit on the number of subjects, if the account protects subjects.
            subjects: For images in memory, (n,) ids of subjects.
            name: Name of the dataset; by default the folder's or file's name.
            account: The account that pays: a record, a name or an id. By default the account with the dataset's name;
                it is opened if it does not exist.
            again: Train, and pay, although there is such a training already.
            show: Show progress on stderr. By default, only asyncio does not, so that several calls can run together.
            reading: How images are read and converted; see `obscura.preparing.Choices`.

        Raises:
            ChoiceNeeded: You must decide something; the message names the argument. Nothing was done.
            PackingError: The images cannot be pushed, or `limit` contradicts the account. Nothing was done.
            AlreadyTrained: A training of this dataset with the same recipe, options and epsilon exists.
            JoinedAccount: Some images were known in another account, which now has the dataset. Nothing was spent.
            BudgetError: The account cannot pay. Nothing was uploaded.
            JobFailed: The training failed; the message states the reason.
        """
        order: dict[str, Any] = {"epsilon": epsilon, "limit": limit, "recipe": recipe, "options": options}
        order |= {"at_most": at_most, "subjects_at_most": subjects_at_most, "subjects": subjects}
        console = TerminalConsole(stderr=True, quiet=show is False)
        job = begin(self, console, images, labels, name=name, account=account, again=again, **order, **reading)
        with job_progress(console, "training") as on_event:
            return job.wait(on_event).release()


def awaited(
    method: Callable[Concatenate[Client, P], Release],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, AsyncRelease]]:
    """Return `Client.train` for asyncio, which needs a thread only until the training is accepted."""

    @wraps(method)
    async def train(self: AsyncClient, /, *args: Any, **order: Any) -> AsyncRelease:
        console = TerminalConsole(stderr=True, quiet=not order.pop("show", None))
        job = AsyncJob.of(await in_thread(begin, self._sync, console, *args, **order))
        with job_progress(console, "training") as on_event:
            return await (await job.wait(on_event)).release()

    return train


class AsyncClient:
    """`Client` for asyncio; an async context manager. On entry, it calls `connect` to create the synchronous client.

    Callbacks such as `say` and `on_bytes` run in the worker thread; `on_event` and `on_change` run in the event loop.
    Cancelling `train` before the training is accepted deletes the declared dataset. Cancelling it later ends only the
    wait; `job.cancel()` stops the training.
    """

    accounts: AsyncAccounts
    datasets: AsyncDatasets
    recipes: collections.AsyncCollection[RecipeRecord]
    jobs: collections.AsyncJobs
    sweeps: collections.AsyncSweeps
    releases: collections.AsyncCollection[AsyncRelease]
    samples: collections.AsyncSamples
    admins: collections.AsyncAdmins
    decisions: collections.AsyncDecisions
    people: collections.AsyncCollection[PersonRecord]
    projects: collections.AsyncProjects
    invitations: collections.AsyncInvitations
    keys: collections.AsyncKeys
    webhooks: collections.AsyncWebhooks

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect

    async def __aenter__(self) -> Self:
        self._sync = await in_thread(self._connect)
        for noun, kind in get_type_hints(AsyncClient).items():
            setattr(self, noun, kind(getattr(self._sync, noun)))
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    close = verb(Client.close)
    ready = verb(Client.ready)
    wait_ready = verb(Client.wait_ready)
    plan = verb(Client.plan)
    preview = verb(Client.preview, AsyncPreview.of)
    audit_log = listed(Client.audit_log)
    train = awaited(Client.train)
