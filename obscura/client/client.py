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

from obscura.client.async_resources import (
    AsyncAccount,
    AsyncDataset,
    AsyncEvaluation,
    AsyncJob,
    AsyncRelease,
    AsyncSample,
    AsyncSweep,
)
from obscura.client.datasets import Datasets, only_one
from obscura.client.holdings import Dataset
from obscura.client.one_step import RECIPE, Labels, Pictures, push_for
from obscura.client.plans import AsyncPlanClient, PlanClient
from obscura.client.progress import TerminalConsole, job_progress
from obscura.client.resources import Evaluation, Job, Release, Sample, Sweep
from obscura.client.transport import Transport
from obscura.client.verbs import listed, verb
from obscura.stopping import in_thread
from obscura.wire import schemas

__all__ = ["AsyncClient", "AsyncDatasets", "Client"]


class Client(PlanClient):
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
        pictures: Pictures,
        labels: Labels = None,
        *,
        epsilon: float,
        account: str | None = None,
        recipe: str = RECIPE,
        options: dict[str, Any] | None = None,
        show: bool = True,
        **preparing: Any,
    ) -> Release:
        """From pictures to a release: prepare, declare, plan, upload, train, and wait.

        Repeating it with the same pictures and statements trains on the dataset that was uploaded before.

        Args:
            pictures: A folder or file as for `datasets.push`; uint8 images (n, h, w) or (n, h, w, 3); or a dataset that
                has been pushed, whose account pays.
            labels: Of images in memory, (n,): numbers or names. Of a folder, a table with the columns file and label.
            epsilon: What this training may spend.
            account: Name or id of the account that pays. Without it, one that is named like the dataset, which is
                opened where it is missing (`obscura.client.one_step.account_for`).
            recipe: How it is trained.
            options: Of the recipe.
            show: Show on stderr what goes on.
            preparing: Further arguments of `datasets.push`: `at_most=2000`, which is needed, `size=64`, ...

        Raises:
            ChoiceNeeded: The layout needs a choice that was not made; the message names it. Nothing was done.
            PackingError: The pictures cannot be pushed as they are. Nothing was done.
            BudgetError: The account cannot pay. Nothing was uploaded.
            JobFailed: The training failed; the message says why.
        """
        console = TerminalConsole(stderr=True, quiet=not show)
        if isinstance(pictures, Dataset):
            dataset = pictures
        else:
            payment: dict[str, Any] = {"account": account, "epsilon": epsilon, "recipe": recipe, "options": options}
            dataset = push_for(self, console, pictures, labels, **payment, preparing=preparing)
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
        """Ask for a training and do not wait for it; its price is held on the account at once.

        Raises:
            BudgetError: The account cannot pay. `numbers` says what it could pay.
        """
        body = {"dataset_id": dataset_id, "recipe": recipe, "epsilon": epsilon, "options": options or {}}
        body["evaluation_dataset_id"] = evaluation_dataset_id
        return Job.bound(self.transport, self.transport.create(Job.PATH, body, idempotency_key))

    def job(self, job_id: str) -> Job:
        """Read a job."""
        return Job.read(self.transport, job_id)

    def jobs(self) -> Iterator[Job]:
        """All jobs, newest first."""
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
        """Ask for a hyper-parameter search; the price of all trials is held at once, or nothing is.

        Args:
            dataset_id: To train on.
            name: For people.
            recipe: Of every trial.
            trials: 2 to 64, each `{"options": {...}}` and, where it differs from the others, `"epsilon"`.
            epsilon: Of each trial that names none.
            evaluation_dataset_id: A public dataset to compare the releases on.
            idempotency_key: The same key and request give the same sweep.

        Raises:
            BudgetError: The account cannot pay for all. `numbers` says how many trials it could pay for.
        """
        body: dict[str, Any] = {"name": name, "dataset_id": dataset_id, "recipe": recipe, "trials": trials}
        body["epsilon"] = epsilon
        body["evaluation_dataset_id"] = evaluation_dataset_id
        return Sweep.bound(self.transport, self.transport.create(Sweep.PATH, body, idempotency_key))

    def sweep(self, sweep_id: str) -> Sweep:
        """Read a sweep with its trials."""
        return Sweep.read(self.transport, sweep_id)

    def sweeps(self) -> Iterator[Sweep]:
        """All sweeps, newest first."""
        return Sweep.listed(self.transport)

    # --- releases and samples ---

    def release(self, release_id: str) -> Release:
        """Read a release."""
        return Release.read(self.transport, release_id)

    def releases(self) -> Iterator[Release]:
        """All releases, newest first."""
        return Release.listed(self.transport)

    def evaluations(self, release_id: str) -> Iterator[Evaluation]:
        """All evaluations of a release, newest first."""
        return Evaluation.of_release(self.transport, release_id)

    def sample(self, sample_id: str) -> Sample:
        """Read a sample."""
        return Sample.read(self.transport, sample_id)

    def find_release(self, name_or_id: str) -> Release:
        """Return the release with this id, or else the only one with this name.

        Raises:
            NoSuchName: Nothing has this id or name, or several have the name.
        """
        found = self.release(name_or_id) if name_or_id.startswith("rel_") else None
        return found or only_one(self.releases(), name_or_id, "release")


class AsyncDatasets:
    """All datasets of a service: `obscura.client.datasets.Datasets` for asyncio.

    Args:
        sync: Whose verbs these are.
    """

    def __init__(self, sync: Datasets) -> None:
        self.sync = sync

    __call__ = listed(Datasets.__call__, AsyncDataset.of)
    push = verb(Datasets.push, AsyncDataset.of)
    declare = verb(Datasets.declare, AsyncDataset.of)
    send = verb(Datasets.send, AsyncDataset.of)
    find = verb(Datasets.find, AsyncDataset.of)
    free_name = verb(Datasets.free_name)


class AsyncClient(AsyncPlanClient):
    """`Client` for asyncio: a connection that answers to an `async with` block.

    Functions that are handed over to be called during the work (`say`, `on_bytes`, ...) are called in its thread;
    `on_event` and `on_change` of what waits are called in the event loop.

    Args:
        connect: Makes the synchronous client when the block begins.
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
        pictures: Pictures | AsyncDataset,
        labels: Labels = None,
        *,
        epsilon: float,
        account: str | None = None,
        recipe: str = RECIPE,
        options: dict[str, Any] | None = None,
        show: bool = False,
        **preparing: Any,
    ) -> AsyncRelease:
        """As `Client.train`, without a word unless `show` is set: several may be awaited together.

        Cancelling before the training is accepted takes back what was being sent. Cancelling later ends the waiting
        alone: the training goes on, and `job.cancel()` ends it.
        """
        console = TerminalConsole(stderr=True, quiet=not show)
        if isinstance(pictures, schemas.DatasetRecord):
            dataset_id = pictures.id
        else:
            payment: dict[str, Any] = {"account": account, "epsilon": epsilon, "recipe": recipe, "options": options}
            pushed = partial(push_for, self.sync, console, pictures, labels, **payment, preparing=preparing)
            dataset = await in_thread(pushed)
            dataset_id = dataset.id
        job = await self.start_training(dataset_id, recipe=recipe, epsilon=epsilon, options=options)
        with job_progress(console, "training") as on_event:
            return await (await job.wait(on_event)).release()
