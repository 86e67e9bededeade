"""The client for asyncio: each verb runs the synchronous one in a thread. Waiting for a job occupies no thread.

async with obscura.connect_async("https://obscura.example.org", token) as service:
    release = await service.train("images/", epsilon=1, at_most=2000)
    images, labels = await (await release.sample(1000)).to_numpy()
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload

from pydantic import BaseModel, PrivateAttr

from obscura.client.client import Client
from obscura.client.contents import READABLE, require_room
from obscura.client.datasets import Datasets
from obscura.client.one_step import RECIPE, ImageInput, Labels, push_for
from obscura.client.progress import TerminalConsole, job_progress
from obscura.client.resources import Dataset, Job, MadeByJob, OnEvent, Preview, Release, Sample, Sweep
from obscura.client.transport import Live
from obscura.errors import WaitTimeout
from obscura.stopping import in_thread
from obscura.wire import job_schemas, release_schemas, schemas
from obscura.wire.formats import SampleFormat

__all__ = [
    "AsyncAccount",
    "AsyncClient",
    "AsyncDataset",
    "AsyncDatasets",
    "AsyncEvaluation",
    "AsyncJob",
    "AsyncPreview",
    "AsyncRelease",
    "AsyncSample",
    "AsyncSweep",
]

POLL_SECONDS = 0.5

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")

Sync = Callable[Concatenate[Any, P], R]
Async = Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]


@overload
def verb(method: Sync[P, R]) -> Async[P, R]: ...
@overload
def verb(method: Sync[P, R], turn: Callable[[R], A]) -> Async[P, A]: ...
def verb(method: Sync[P, Any], turn: Callable[[Any], Any] | None = None) -> Async[P, Any]:
    """Return an async method that runs a synchronous one in a thread, on `self.sync`. turn: converts the result."""

    @wraps(method)
    async def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        answer = await in_thread(method, self.sync, *args, **kwargs)
        return answer if turn is None else turn(answer)

    return run


@overload
def listed(method: Sync[P, Iterator[R]]) -> Callable[Concatenate[Any, P], AsyncIterator[R]]: ...
@overload
def listed(method: Sync[P, Iterator[R]], turn: Callable[[R], A]) -> Callable[Concatenate[Any, P], AsyncIterator[A]]: ...
def listed(
    method: Sync[P, Iterator[Any]], turn: Callable[[Any], Any] | None = None
) -> Callable[Concatenate[Any, P], AsyncIterator[Any]]:
    """Return an async generator method from a synchronous one. Pages are read in threads; see `verb`."""

    @wraps(method)
    async def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Any]:
        items, end = method(self.sync, *args, **kwargs), object()
        while (item := await in_thread(next, items, end)) is not end:
            yield item if turn is None else turn(item)

    return run


class AsyncLive(BaseModel):
    """A record that delegates to its synchronous counterpart."""

    _sync: Any = PrivateAttr()

    @classmethod
    def of(cls, sync: Live) -> Self:
        """Wrap a synchronous record."""
        record = cls.model_construct(**dict(sync))
        record._sync = sync
        return record

    @property
    def sync(self) -> Any:
        return self._sync

    @property
    def path(self) -> str:
        return str(self._sync.path)

    async def refresh(self) -> Self:
        return self.of(await in_thread(self._sync.refresh))


class AsyncAccount(AsyncLive, schemas.AccountRecord):
    """A population with one privacy budget."""


class AsyncDataset(AsyncLive, schemas.DatasetRecord):
    """A declared set of labelled images."""

    push = verb(Dataset.push, lambda dataset: AsyncDataset.of(dataset))
    delete = verb(Dataset.delete, lambda dataset: AsyncDataset.of(dataset))


class _AsyncCancellable(AsyncLive):
    async def cancel(self, *, discard: bool = False) -> Self:
        return self.of(await in_thread(self._sync.cancel, discard=discard))


class AsyncJob(_AsyncCancellable, job_schemas.JobRecord):
    """A requested training, sampling or evaluation."""

    async def events(self) -> AsyncIterator[job_schemas.EventRecord]:
        """Yield changes, the final state last."""
        last = None
        while True:
            job = await self.refresh()
            event = schemas.record_of(job_schemas.EventRecord, job, job_id=job.id)
            if event != last:
                yield event
            if job.finished:
                return
            last = event
            await asyncio.sleep(POLL_SECONDS)

    async def wait(self, on_event: OnEvent | None = None, *, timeout_seconds: float | None = None) -> AsyncJob:
        """Wait for the end of the job; see `Job.wait`."""
        state = self.state
        try:
            async with asyncio.timeout(timeout_seconds):
                async for event in self.events():
                    state = event.state
                    if on_event is not None:
                        on_event(event)
        except TimeoutError:
            raise WaitTimeout(f"Job {self.id} is still {state}.") from None
        return self.of(await in_thread(self._sync.ended))

    release = verb(Job.release, lambda release: AsyncRelease.of(release))


class AsyncMadeByJob(AsyncLive):
    """An order that a job carries out."""

    job = verb(MadeByJob.job, AsyncJob.of)

    async def wait(self, on_event: OnEvent | None = None) -> Self:
        """Wait for the end of the job; see `MadeByJob.wait`."""
        await (await self.job()).wait(on_event)
        return await self.refresh()


class AsyncEvaluation(AsyncMadeByJob, release_schemas.EvaluationRecord):
    """One evaluation of a release on a public dataset."""


def drawn(method: Sync[P, R], *formats: SampleFormat) -> Async[P, R]:
    """Return an async method that waits for a sample in one of these formats, then runs the synchronous method."""

    @wraps(method)
    async def run(self: AsyncSample, /, *args: P.args, **kwargs: P.kwargs) -> R:
        sample = AsyncSample.of(await in_thread(self.sync.packed, *formats))
        if not sample.sha256:
            sample = await sample.wait()
        return await in_thread(method, sample.sync, *args, **kwargs)

    return run


def unpacked(method: Sync[[Path | str], Path], format: SampleFormat) -> Async[[Path | str], Path]:
    """Like `drawn`, but check that the target folder is free before anything is generated."""
    unpack = drawn(method, format)

    @wraps(method)
    async def run(self: AsyncSample, /, folder: Path | str) -> Path:
        await in_thread(require_room, Path(folder))
        return await unpack(self, folder)

    return run


class AsyncSample(AsyncMadeByJob, release_schemas.SampleRecord):
    """A set of synthetic images."""

    download = verb(Sample.download)
    images = drawn(Sample.images, *READABLE)
    to_numpy = drawn(Sample.to_numpy, *READABLE)
    to_torch = drawn(Sample.to_torch, *READABLE)
    to_hf = drawn(Sample.to_hf, *READABLE)
    to_imagefolder = unpacked(Sample.to_imagefolder, "imagefolder")
    to_parquet = unpacked(Sample.to_parquet, "parquet")
    to_webdataset = drawn(Sample.to_webdataset, "webdataset")


class AsyncRelease(AsyncLive, release_schemas.ReleaseRecord):
    """A published generator. Sampling is free, forever."""

    card = verb(Release.card)
    receipt = verb(Release.receipt)
    save_receipt = verb(Release.save_receipt)
    save_report = verb(Release.save_report)
    save_grid = verb(Release.save_grid)
    save_weights = verb(Release.save_weights)
    evaluate = verb(Release.evaluate, AsyncEvaluation.of)
    evaluations = listed(Release.evaluations, AsyncEvaluation.of)
    sample = verb(Release.sample, AsyncSample.of)
    share = verb(Release.share)
    shares = listed(Release.shares)
    unshare = verb(Release.unshare)


class AsyncSweep(_AsyncCancellable, job_schemas.SweepRecord):
    """A hyperparameter search whose whole cost is reserved at once."""

    best = verb(Sweep.best, AsyncRelease.of)

    async def wait(
        self, on_change: Callable[[AsyncSweep], None] | None = None, *, poll_seconds: float = 2.0
    ) -> AsyncSweep:
        """Wait until every trial has ended; see `Sweep.wait`."""
        seen: dict[str, Any] | None = None
        while True:
            sweep = await self.refresh()
            facts = sweep.model_dump()
            if on_change is not None and facts != seen:
                on_change(sweep)
            if sweep.finished:
                return sweep
            seen = facts
            await asyncio.sleep(poll_seconds)


class AsyncPreview(AsyncMadeByJob, job_schemas.PreviewRecord):
    """A plan tried on public images."""

    save_grid = verb(Preview.save_grid)


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
    """`Client` for asyncio, as an async context manager. `connect` makes the synchronous client when the block starts.

    Callbacks such as `say` and `on_bytes` run in the worker thread; `on_event` and `on_change` run in the event loop.
    """

    sync: Client
    datasets: AsyncDatasets

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect

    async def __aenter__(self) -> Self:
        self.sync = await in_thread(self._connect)
        self.datasets = AsyncDatasets(self.sync.datasets)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    close = verb(Client.close)
    ready = verb(Client.ready)
    wait_ready = verb(Client.wait_ready)

    admins = verb(Client.admins)
    decisions = listed(Client.decisions)
    decision = verb(Client.decision)
    approve = verb(Client.approve)
    decline = verb(Client.decline)
    request_admission = verb(Client.request_admission)
    request_removal = verb(Client.request_removal)
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
    request_revocation = verb(Client.request_revocation)
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
        order: dict[str, Any] = {"epsilon": epsilon, "recipe": recipe, "options": options}
        push = partial(push_for, self.sync, console, images, labels, account=account, **order, preparing=preparing)
        job = await self.start_training((await in_thread(push)).id, **order)
        with job_progress(console, "training") as on_event:
            return await (await job.wait(on_event)).release()
