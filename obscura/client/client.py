"""The verbs: open accounts, declare and push, plan, train, sample, download; and the same ones for asyncio.

For asyncio each is the synchronous one in a thread; waiting for a job takes none.

async with obscura.connect_async("https://obscura.example.org", token) as service:
    release = await service.train("images/", epsilon=1, at_most=2000)
    images, labels = await (await release.sample(1000)).to_numpy()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Self

from obscura.client.accounts import AccountClient
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
from obscura.client.datasets import Datasets, only_one
from obscura.client.one_step import RECIPE, ImageInput, Labels, push_for
from obscura.client.progress import TerminalConsole, job_progress
from obscura.client.resources import Dataset, Evaluation, Job, Release, Sample, Sweep
from obscura.client.transport import Transport
from obscura.stopping import in_thread
from obscura.wire import schemas

__all__ = ["AsyncClient", "AsyncDatasets", "Client"]


class Client(AccountClient):
    """A connection to an Obscura service.

    Args:
        base_url: For example `http://127.0.0.1:8420`.
        token: An API key.
        transport: Replaces the connection, for tests.
    """

    def __init__(self, base_url: str, token: str | None, *, transport: Transport | None = None) -> None:
        super().__init__(transport or Transport(base_url, token))

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
            epsilon: Budget of this training.
            account: Name or id of the account that pays. By default the account with the dataset's name, which is
                opened if it does not exist.
            recipe: Recipe of the training.
            options: Options of the recipe.
            show: Show progress on stderr.
            preparing: Further arguments of `datasets.push`; `at_most` is required.

        Raises:
            ChoiceNeeded: You must decide something; the message names the option. Nothing was done.
            PackingError: The images cannot be pushed. Nothing was done.
            BudgetError: The account cannot pay. Nothing was uploaded.
            JobFailed: The training failed; the message states the reason.
        """
        console = TerminalConsole(stderr=True, quiet=not show)
        if isinstance(images, Dataset):
            dataset = images
        else:
            payment: dict[str, Any] = {"account": account, "epsilon": epsilon, "recipe": recipe, "options": options}
            dataset = push_for(self, console, images, labels, **payment, preparing=preparing)
        job = self.start_training(dataset.id, recipe=recipe, epsilon=epsilon, options=options)
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

        Raises:
            BudgetError: The account cannot pay. `numbers` holds what it can pay.
        """
        body = {"dataset_id": dataset_id, "recipe": recipe, "epsilon": epsilon, "options": options or {}}
        body["evaluation_dataset_id"] = evaluation_dataset_id
        return Job.bound(self.transport, self.transport.create(Job.PATH, body, idempotency_key))

    def job(self, job_id: str) -> Job:
        """Return a job."""
        return Job.read(self.transport, job_id)

    def jobs(self) -> Iterator[Job]:
        """Yield all jobs, newest first."""
        return Job.listed(self.transport)

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
        """Request a hyperparameter search. The cost of all trials is reserved at once, or nothing is.

        Args:
            dataset_id: Training data.
            name: Shown to people.
            recipe: Recipe of every trial.
            trials: 2 to 64, each `{"options": {...}}` and optionally its own `"epsilon"`.
            epsilon: Budget of each trial without its own.
            evaluation_dataset_id: Public dataset that compares the releases.
            idempotency_key: The same key and request return the same sweep.

        Raises:
            BudgetError: The account cannot pay for all. `numbers` holds how many trials it can pay for.
        """
        body: dict[str, Any] = {"name": name, "dataset_id": dataset_id, "recipe": recipe, "trials": trials}
        body["epsilon"] = epsilon
        body["evaluation_dataset_id"] = evaluation_dataset_id
        return Sweep.bound(self.transport, self.transport.create(Sweep.PATH, body, idempotency_key))

    def sweep(self, sweep_id: str) -> Sweep:
        """Return a sweep with its trials."""
        return Sweep.read(self.transport, sweep_id)

    def sweeps(self) -> Iterator[Sweep]:
        """Yield all sweeps, newest first."""
        return Sweep.listed(self.transport)

    # --- releases and samples ---

    def release(self, release_id: str) -> Release:
        """Return a release."""
        return Release.read(self.transport, release_id)

    def releases(self) -> Iterator[Release]:
        """Yield all releases, newest first."""
        return Release.listed(self.transport)

    def evaluations(self, release_id: str) -> Iterator[Evaluation]:
        """Yield all evaluations of a release, newest first."""
        return Evaluation.of_release(self.transport, release_id)

    def sample(self, sample_id: str) -> Sample:
        """Return a sample."""
        return Sample.read(self.transport, sample_id)

    def find_release(self, name_or_id: str) -> Release:
        """Return the release with this id, or the only one with this name; raise NoSuchName otherwise."""
        found = self.release(name_or_id) if name_or_id.startswith("rel_") else None
        return found or only_one(self.releases(), name_or_id, "release")


class AsyncDatasets:
    """`obscura.client.datasets.Datasets` for asyncio."""

    def __init__(self, sync: Datasets) -> None:
        self.sync = sync

    __call__ = listed(Datasets.__call__, AsyncDataset.of)
    push = verb(Datasets.push, AsyncDataset.of)
    declare = verb(Datasets.declare, AsyncDataset.of)
    send = verb(Datasets.send, AsyncDataset.of)
    find = verb(Datasets.find, AsyncDataset.of)
    free_name = verb(Datasets.free_name)


class AsyncClient:
    """`Client` for asyncio, as an async context manager.

    Callbacks such as `say` and `on_bytes` run in the worker thread; `on_event` and `on_change` run in the event loop.

    Args:
        connect: Returns the synchronous client when the block starts.
    """

    sync: Client
    datasets: AsyncDatasets

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect

    async def __aenter__(self) -> Self:
        self.sync = await in_thread(self._connect)
        self.datasets = AsyncDatasets(self.sync.datasets)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    close = verb(Client.close)
    ready = verb(Client.ready)
    health = verb(Client.health)
    wait_ready = verb(Client.wait_ready)

    admins = verb(Client.admins)
    decisions = listed(Client.decisions)
    decision = verb(Client.decision)
    approve = verb(Client.approve)
    decline = verb(Client.decline)
    ask_admission = verb(Client.ask_admission)
    ask_removal = verb(Client.ask_removal)
    create_project = verb(Client.create_project)
    projects = listed(Client.projects)
    find_project = verb(Client.find_project)
    rename_project = verb(Client.rename_project)
    project = verb(Client.project)
    set_quota = verb(Client.set_quota)
    create_key = verb(Client.create_key)
    people = listed(Client.people)
    keys = listed(Client.keys)
    rotate_key = verb(Client.rotate_key)
    revoke_key = verb(Client.revoke_key)
    ask_revocation = verb(Client.ask_revocation)
    audit_log = listed(Client.audit_log)
    create_webhook = verb(Client.create_webhook)
    webhooks = listed(Client.webhooks)
    test_webhook = verb(Client.test_webhook)
    remove_webhook = verb(Client.remove_webhook)

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
        """Like `Client.train`, but silent unless `show` is set, so that several can run together.

        Cancelling before the training is accepted deletes what was sent. Later it only stops the waiting;
        `job.cancel()` stops the training.
        """
        console = TerminalConsole(stderr=True, quiet=not show)
        if isinstance(images, schemas.DatasetRecord):
            dataset_id = images.id
        else:
            payment: dict[str, Any] = {"account": account, "epsilon": epsilon, "recipe": recipe, "options": options}
            pushed = partial(push_for, self.sync, console, images, labels, **payment, preparing=preparing)
            dataset = await in_thread(pushed)
            dataset_id = dataset.id
        job = await self.start_training(dataset_id, recipe=recipe, epsilon=epsilon, options=options)
        with job_progress(console, "training") as on_event:
            return await (await job.wait(on_event)).release()
