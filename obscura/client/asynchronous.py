"""The same verbs for asyncio. Each is the synchronous one in a thread; waiting for a job takes none.

async with obscura.connect_async("https://obscura.example.org", token) as service:
    release = await service.train("images/", epsilon=1, at_most=2000)
    images, labels = await (await release.sample(1000)).to_numpy()
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from rich.console import Console

from obscura.client.async_resources import (
    AsyncAccount,
    AsyncDataset,
    AsyncEvaluation,
    AsyncJob,
    AsyncPreview,
    AsyncRelease,
    AsyncSample,
    AsyncSweep,
)
from obscura.client.client import RECIPE, Client
from obscura.client.datasets import Datasets
from obscura.client.one_step import Labels, Pictures, push_for
from obscura.client.progress import job_progress
from obscura.client.verbs import listed, verb
from obscura.stopping import in_thread
from obscura.wire import schemas


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


class AsyncClient:
    """`obscura.client.Client` for asyncio: a connection that answers to an `async with` block.

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

    admins = verb(Client.admins)
    admin_requests = listed(Client.admin_requests)
    ask_admission = verb(Client.ask_admission)
    ask_removal = verb(Client.ask_removal)
    approve_admin_request = verb(Client.approve_admin_request)
    decline_admin_request = verb(Client.decline_admin_request)
    create_key = verb(Client.create_key)
    keys = listed(Client.keys)
    revoke_key = verb(Client.revoke_key)
    ask_revocation = verb(Client.ask_revocation)

    create_account = verb(Client.create_account, AsyncAccount.of)
    find_account = verb(Client.find_account, AsyncAccount.of)
    account = verb(Client.account, AsyncAccount.of)
    accounts = listed(Client.accounts, AsyncAccount.of)
    entries = listed(Client.entries)
    pay_for_count = verb(Client.pay_for_count)
    lower_limit = verb(Client.lower_limit, AsyncAccount.of)
    request_raise = verb(Client.request_raise)
    limit_requests = listed(Client.limit_requests)
    approve_raise = verb(Client.approve_raise)
    decline_raise = verb(Client.decline_raise)
    freeze = verb(Client.freeze, AsyncAccount.of)
    unfreeze = verb(Client.unfreeze, AsyncAccount.of)

    declare_dataset = verb(Client.declare_dataset, AsyncDataset.of)
    dataset = verb(Client.dataset, AsyncDataset.of)

    recipes = verb(Client.recipes)
    recipe = verb(Client.recipe)
    plan = verb(Client.plan)
    preview = verb(Client.preview, AsyncPreview.of)
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
        console = Console(stderr=True, quiet=not show)
        if isinstance(pictures, schemas.DatasetRecord):
            dataset_id = pictures.id
        else:
            dataset = await in_thread(
                push_for, self.sync, console, pictures, labels, account=account, epsilon=epsilon, preparing=preparing
            )
            dataset_id = dataset.id
        job = await self.start_training(dataset_id, recipe=recipe, epsilon=epsilon, options=options)
        with job_progress(console, "training") as on_event:
            return await (await job.wait(on_event)).release()
