"""`Client`: the operations of a service."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from obscura.client.administration import Administration, AsyncAdministration
from obscura.client.async_resources import (
    AsyncAccount,
    AsyncDataset,
    AsyncEvaluation,
    AsyncJob,
    AsyncPreview,
    AsyncRelease,
    AsyncSample,
    AsyncSweep,
    listed,
    verb,
)
from obscura.client.datasets import AsyncDatasets, Datasets, only_one
from obscura.client.one_step import RECIPE, ImageInput, Labels, push_for
from obscura.client.progress import TerminalConsole, job_progress
from obscura.client.resources import Account, Dataset, Evaluation, Job, Preview, Release, Sample, Sweep
from obscura.client.transport import RETRY_STATUSES, Transport
from obscura.errors import ApiError, ConnectionFailed
from obscura.preparing.choices import read_secret
from obscura.preparing.subjects import key_check, keyed_numbers, require_plain_ids, subject_key
from obscura.stopping import in_thread
from obscura.wire.admin_schemas import DecisionRecord
from obscura.wire.budgets import Unit
from obscura.wire.job_schemas import PlanRecord, RecipeList, RecipeRecord
from obscura.wire.schemas import EntryRecord, HealthRecord, Visibility, WithdrawalRecord
from obscura.wire.uploads import SubjectId

__all__ = ["AsyncClient", "Client"]

READY_SECONDS_MAX = 300.0
READY_POLL_SECONDS = 0.5


class Client(Administration):
    """A connection to an Obscura service; a context manager. `transport` replaces the HTTP transport in tests."""

    def __init__(self, base_url: str, token: str | None, *, transport: Transport | None = None) -> None:
        self.transport = transport or Transport(base_url, token)
        self.datasets = Datasets(self.transport)

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

    # --- accounts ---

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
            delta: Recommended: at most 1 / (10 x number of images).
            unit: Protected unit: one record, or all records of a subject.
            project_id: Required if there are several projects.
            accept_large_delta: Confirm a delta above 1e-4.
        """
        body = {"name": name, "owner": owner, "epsilon": epsilon, "delta": delta, "unit": unit, "adjacency": adjacency}
        body |= {"project_id": project_id, "accept_large_delta": accept_large_delta}
        return self.transport.post(Account, "/v1/accounts", body)

    def find_account(self, name_or_id: str) -> Account:
        """Return the account with this id, or the only account with this name; raise NoSuchName otherwise."""
        return only_one(self.accounts(), name_or_id, "account")

    def account(self, account_id: str) -> Account:
        """Return an account with its balance."""
        return Account.read(self.transport, account_id)

    def accounts(self) -> Iterator[Account]:
        return self.transport.pages(Account, Account.PATH)

    def entries(self, account_id: str) -> Iterator[EntryRecord]:
        """Yield the ledger entries of an account, oldest first."""
        return self.transport.pages(EntryRecord, f"/v1/accounts/{account_id}/entries")

    def lower_limit(self, account_id: str, *, epsilon: float, reason: str) -> Account:
        """Lower the lifetime limit at once. A limit below the spent and reserved budget freezes the account."""
        body = {"epsilon": epsilon, "reason": reason}
        return self.transport.post(Account, f"/v1/accounts/{account_id}/lower-limit", body)

    def request_raise(self, account_id: str, *, epsilon: float, reason: str) -> DecisionRecord:
        """Request a higher limit. Nothing changes until another admin approves."""
        body = {"epsilon": epsilon, "reason": reason}
        return self.transport.post(DecisionRecord, f"/v1/accounts/{account_id}/raise-limit", body)

    def freeze(self, account_id: str, *, reason: str) -> Account:
        """Freeze an account: it accepts no new jobs, and queued jobs cannot read its data. Running jobs continue."""
        return self.transport.post(Account, f"/v1/accounts/{account_id}/freeze", {"reason": reason}, repeatable=True)

    def unfreeze(self, account_id: str, *, reason: str) -> Account:
        """Unfreeze an account."""
        return self.transport.post(Account, f"/v1/accounts/{account_id}/unfreeze", {"reason": reason}, repeatable=True)

    def close_to_data(self, account_id: str) -> Account:
        """Close an account to new data: new people need another account. Trainings on existing data continue."""
        return self.transport.post(Account, f"/v1/accounts/{account_id}/close", repeatable=True)

    def reopen(self, account_id: str) -> Account:
        """Open a closed account to new data again."""
        return self.transport.post(Account, f"/v1/accounts/{account_id}/reopen", repeatable=True)

    def withdraw_subjects(
        self,
        account_id: str,
        private_ids: Sequence[SubjectId],
        *,
        subjects_key: str | Path | None,
        join_subjects: bool = False,
        cancel_jobs: bool = False,
    ) -> WithdrawalRecord:
        """Destroy the images of subjects forever, in each dataset of the account whose `subjects_recognised` is true.

        Spent budget stays spent. The answer does not reveal whether a subject was found.

        Args:
            subjects_key: File with the secret used for every push. Ids stay on this machine; only keyed hashes are
                sent. None sends the ids themselves, for data that was uploaded through the API with plain ids.
            join_subjects: True if the data was pushed with `join_subjects`.
            cancel_jobs: Cancel the trainings that need the datasets. Charged budget stays spent.

        Raises:
            PackingError: An id is a placeholder or suspicious, such as 12.0, or the secret cannot be read.
            RequestError: Trainings need the datasets, no subject is recognised, or the secret or `join_subjects`
                differs from the first upload.
        """
        require_plain_ids(dict.fromkeys(private_ids, ""), join=join_subjects, withdrawal=True)
        names = [subject_key(private_id, join=join_subjects) for private_id in private_ids]
        body: dict[str, Any] = {"subjects": names, "cancel_jobs": cancel_jobs}
        if (secret := read_secret(subjects_key)) is not None:
            body["subjects"] = [*keyed_numbers(names, secret).values()]
            body["subjects_key_check"] = key_check(secret, join=join_subjects)
        return self.transport.post(WithdrawalRecord, f"/v1/accounts/{account_id}/withdrawals", body, repeatable=True)

    # --- datasets ---

    def declare_dataset(
        self,
        *,
        name: str,
        visibility: Visibility,
        classes: list[str],
        height: int,
        width: int,
        channels: int,
        records_declared: int,
        subjects_declared: int | None = None,
        subjects_recognised: bool = False,
        account_id: str | None = None,
    ) -> Dataset:
        """Declare a dataset; every argument becomes public. Then call `Dataset.push`. `datasets.push` does both."""
        body: dict[str, Any] = {"name": name, "visibility": visibility, "account_id": account_id, "classes": classes}
        body |= {"height": height, "width": width, "channels": channels, "records_declared": records_declared}
        body |= {"subjects_declared": subjects_declared, "subjects_recognised": subjects_recognised}
        return self.transport.post(Dataset, Dataset.PATH, body)

    def dataset(self, dataset_id: str) -> Dataset:
        """Return a dataset's declaration and state."""
        return Dataset.read(self.transport, dataset_id)

    # --- recipes and plans ---

    def recipes(self) -> list[RecipeRecord]:
        """Return the recipes of this service and their options."""
        return list(self.transport.get(RecipeList, "/v1/recipes").items)

    def recipe(self, name: str) -> RecipeRecord:
        """Return a recipe: presets, defaults and the JSON Schema of its options."""
        return self.transport.get(RecipeRecord, f"/v1/recipes/{quote(name, safe='')}")

    def plan(
        self, dataset_id: str, *, recipe: str, epsilon: float, options: dict[str, Any] | None = None
    ) -> PlanRecord:
        """Return the stages and the cost of a training. Reads no data."""
        body = {"dataset_id": dataset_id, "recipe": recipe, "epsilon": epsilon, "options": options or {}}
        return self.transport.post(PlanRecord, "/v1/plans", body, repeatable=True)

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
        """Request a preview of a training on public images, for free; `wait()` returns the forecast."""
        body = {"dataset_id": dataset_id, "recipe": recipe, "epsilon": epsilon, "options": options or {}}
        body["stand_in_dataset_id"] = stand_in_dataset_id
        return self.transport.create(Preview, Preview.PATH, body, idempotency_key)

    # --- trainings, jobs and sweeps ---

    def train(
        self,
        images: ImageInput,
        labels: Labels = None,
        *,
        epsilon: float,
        account: str | None = None,
        recipe: str = RECIPE,
        options: dict[str, Any] | None = None,
        show: bool = True,
        **preparing: Any,
    ) -> Release:
        """Train on images and wait for the release: prepare, declare, plan, upload, train.

        Repeating the call with the same images and limits reuses the uploaded dataset.

        Args:
            images: A folder or file as for `datasets.push`; uint8 images (n, h, w) or (n, h, w, 3); or a pushed
                dataset, whose account pays.
            labels: For images in memory, (n,) numbers or names. For a folder, a table with the columns file and label.
            account: Name or id of the account that pays. By default the account with the dataset's name; it is opened
                if it does not exist.
            show: Show progress on stderr.
            preparing: Further arguments of `datasets.push`; `at_most` is required.

        Raises:
            ChoiceNeeded: You must decide something; the message names the option. Nothing was done.
            PackingError: The images cannot be pushed. Nothing was done.
            BudgetError: The account cannot pay. Nothing was uploaded.
            JobFailed: The training failed; the message states the reason.
        """
        console = TerminalConsole(stderr=True, quiet=not show)
        order: dict[str, Any] = {"epsilon": epsilon, "recipe": recipe, "options": options}
        dataset = push_for(self, console, images, labels, account=account, **order, preparing=preparing)
        job = self.start_training(dataset.id, **order)
        with job_progress(console, "training") as on_event:
            return job.wait(on_event).release()

    def start_training(
        self,
        dataset_id: str,
        *,
        recipe: str,
        epsilon: float,
        options: dict[str, Any] | None = None,
        evaluation_dataset_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Request a training without waiting. Its cost is reserved at once.

        Raise BudgetError if the account cannot pay; the error's `numbers` state the affordable budget.
        """
        body = {"dataset_id": dataset_id, "recipe": recipe, "epsilon": epsilon, "options": options or {}}
        body["evaluation_dataset_id"] = evaluation_dataset_id
        return self.transport.create(Job, Job.PATH, body, idempotency_key)

    def job(self, job_id: str) -> Job:
        return Job.read(self.transport, job_id)

    def jobs(self) -> Iterator[Job]:
        """Yield all jobs, newest first."""
        return self.transport.pages(Job, Job.PATH)

    def sweep_over(
        self,
        dataset_id: str,
        *,
        name: str,
        recipe: str,
        trials: list[dict[str, Any]],
        epsilon: float | None = None,
        evaluation_dataset_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Sweep:
        """Request a hyperparameter sweep. The cost of all trials is reserved atomically, or nothing is reserved.

        Args:
            trials: 2 to 64 trials, each `{"options": {...}}` and optionally its own `"epsilon"`.
            epsilon: Budget of each trial that has no epsilon of its own.
            evaluation_dataset_id: Public dataset that compares the releases.

        Raises:
            BudgetError: The account cannot pay for all trials. `numbers` states how many are affordable.
        """
        body = {"name": name, "dataset_id": dataset_id, "recipe": recipe, "trials": trials, "epsilon": epsilon}
        body["evaluation_dataset_id"] = evaluation_dataset_id
        return self.transport.create(Sweep, Sweep.PATH, body, idempotency_key)

    def sweep(self, sweep_id: str) -> Sweep:
        """Return a sweep with its trials."""
        return Sweep.read(self.transport, sweep_id)

    def sweeps(self) -> Iterator[Sweep]:
        """Yield all sweeps, newest first."""
        return self.transport.pages(Sweep, Sweep.PATH)

    # --- releases and samples ---

    def release(self, release_id: str) -> Release:
        return Release.read(self.transport, release_id)

    def releases(self) -> Iterator[Release]:
        """Yield all releases, newest first."""
        return self.transport.pages(Release, Release.PATH)

    def evaluations(self, release_id: str) -> Iterator[Evaluation]:
        """Yield all evaluations of a release, newest first."""
        return self.transport.pages(Evaluation, f"{Release.PATH}/{release_id}/evaluations")

    def sample(self, sample_id: str) -> Sample:
        return Sample.read(self.transport, sample_id)

    def find_release(self, name_or_id: str) -> Release:
        """Return the release with this id, or the only release with this name; raise NoSuchName otherwise."""
        if name_or_id.startswith("rel_"):
            return self.release(name_or_id)
        return only_one(self.releases(), name_or_id, "release")


class AsyncClient(AsyncAdministration):
    """`Client` for asyncio; an async context manager. On entry, it calls `connect` to create the synchronous client.

    Callbacks such as `say` and `on_bytes` run in the worker thread; `on_event` and `on_change` run in the event loop.
    """

    _sync: Client
    datasets: AsyncDatasets

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect

    async def __aenter__(self) -> Self:
        self._sync = await in_thread(self._connect)
        self.datasets = AsyncDatasets(self._sync.datasets)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    close = verb(Client.close)
    ready = verb(Client.ready)
    wait_ready = verb(Client.wait_ready)

    recipes = verb(Client.recipes)
    recipe = verb(Client.recipe)
    plan = verb(Client.plan)
    preview = verb(Client.preview, AsyncPreview.of)

    create_account = verb(Client.create_account, AsyncAccount.of)
    find_account = verb(Client.find_account, AsyncAccount.of)
    account = verb(Client.account, AsyncAccount.of)
    accounts = listed(Client.accounts, AsyncAccount.of)
    entries = listed(Client.entries)
    lower_limit = verb(Client.lower_limit, AsyncAccount.of)
    request_raise = verb(Client.request_raise)
    freeze = verb(Client.freeze, AsyncAccount.of)
    unfreeze = verb(Client.unfreeze, AsyncAccount.of)
    close_to_data = verb(Client.close_to_data, AsyncAccount.of)
    reopen = verb(Client.reopen, AsyncAccount.of)
    withdraw_subjects = verb(Client.withdraw_subjects)

    declare_dataset = verb(Client.declare_dataset, AsyncDataset.of)
    dataset = verb(Client.dataset, AsyncDataset.of)

    start_training = verb(Client.start_training, AsyncJob.of)
    job = verb(Client.job, AsyncJob.of)
    jobs = listed(Client.jobs, AsyncJob.of)
    sweep_over = verb(Client.sweep_over, AsyncSweep.of)
    sweep = verb(Client.sweep, AsyncSweep.of)
    sweeps = listed(Client.sweeps, AsyncSweep.of)

    release = verb(Client.release, AsyncRelease.of)
    releases = listed(Client.releases, AsyncRelease.of)
    evaluations = listed(Client.evaluations, AsyncEvaluation.of)
    sample = verb(Client.sample, AsyncSample.of)
    find_release = verb(Client.find_release, AsyncRelease.of)

    async def train(
        self,
        images: ImageInput | AsyncDataset,
        labels: Labels = None,
        *,
        epsilon: float,
        account: str | None = None,
        recipe: str = RECIPE,
        options: dict[str, Any] | None = None,
        show: bool = False,
        **preparing: Any,
    ) -> AsyncRelease:
        """Like `Client.train`, but silent unless `show` is set, so that several calls can run together.

        Cancelling before the training is accepted deletes the declared dataset. Cancelling later ends only the wait;
        `job.cancel()` stops the training.
        """
        console = TerminalConsole(stderr=True, quiet=not show)
        order: dict[str, Any] = {"epsilon": epsilon, "recipe": recipe, "options": options}
        push = partial(push_for, self._sync, console, images, labels, account=account, **order, preparing=preparing)
        job = await self.start_training((await in_thread(push)).id, **order)
        with job_progress(console, "training") as on_event:
            return await (await job.wait(on_event)).release()
