"""Resources for asyncio. Methods run their synchronous counterpart in a thread. Waiting for a job needs no thread.

async with obscura.connect_async("https://obscura.example.org", token) as service:
    release = await service.train("images/", epsilon=1, at_most=2000)
    images, labels = await (await release.sample(1000)).to_numpy()
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from importlib import import_module
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload

from pydantic import PrivateAttr

from obscura.client.contents import READABLE, Images, require_room
from obscura.client.display import Displayed
from obscura.client.resources import Dataset, Job, MadeByJob, OnEvent, Preview, Release, Sample, Sweep
from obscura.client.transport import Live
from obscura.errors import WaitTimeout
from obscura.stopping import in_thread
from obscura.wire import job_schemas, release_schemas, schemas
from obscura.wire.formats import SampleFormat

__all__ = ["AsyncDataset", "AsyncEvaluation", "AsyncJob", "AsyncPreview", "AsyncRelease", "AsyncSample", "AsyncSweep"]

POLL_SECONDS = 0.5

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
S = TypeVar("S")

Sync = Callable[Concatenate[Any, P], R]
Async = Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]


@overload
def verb(method: Sync[P, R]) -> Async[P, R]: ...
@overload
def verb(method: Sync[P, R], turn: Callable[[R], A]) -> Async[P, A]: ...
def verb(method: Sync[P, Any], turn: Callable[[Any], Any] | None = None) -> Async[P, Any]:
    """Return an async method that runs the same method of `self._sync` in a thread. `turn` converts the result."""

    @wraps(method)
    async def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        answer = await in_thread(method, self._sync, *args, **kwargs)
        return answer if turn is None else turn(answer)

    return run


def own(method: Sync[P, Live]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, S]]:
    """Return an async method that updates the record, as `method` does, and returns it."""

    @wraps(method)
    async def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        await in_thread(method, self._sync, *args, **kwargs)
        return self

    return run


@overload
def listed(method: Sync[P, Iterator[R]]) -> Callable[Concatenate[Any, P], AsyncIterator[R]]: ...
@overload
def listed(method: Sync[P, Iterator[R]], turn: Callable[[R], A]) -> Callable[Concatenate[Any, P], AsyncIterator[A]]: ...
def listed(
    method: Sync[P, Iterator[Any]], turn: Callable[[Any], Any] | None = None
) -> Callable[Concatenate[Any, P], AsyncIterator[Any]]:
    """Convert a synchronous generator method to an asynchronous one. Pages are read in threads; see `verb`."""

    @wraps(method)
    async def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Any]:
        items, end = method(self._sync, *args, **kwargs), object()
        while (item := await in_thread(next, items, end)) is not end:
            yield item if turn is None else turn(item)

    return run


class AsyncLive(Displayed):
    """A record that delegates to its synchronous counterpart, whose fields it shares."""

    _sync: Any = PrivateAttr()

    def _facts(self) -> Any:
        return self._sync._facts()

    def _picture(self) -> str:
        return str(self._sync._picture())

    @classmethod
    def of(cls, sync: Live) -> Self:
        """Wrap a synchronous record."""
        record = cls.model_construct()
        record._sync = sync
        object.__setattr__(record, "__dict__", sync.__dict__)
        return record

    async def refresh(self) -> Self:
        await in_thread(self._sync.refresh)
        return self


class AsyncDataset(AsyncLive, schemas.DatasetRecord):
    push = own(Dataset.push)
    delete = own(Dataset.delete)


class AsyncJob(AsyncLive, job_schemas.JobRecord):
    cancel = own(Job.cancel)
    release = verb(Job.release, lambda release: AsyncRelease.of(release))

    async def events(self) -> AsyncIterator[job_schemas.EventRecord]:
        """Yield an event for each change; the last event has the final state."""
        last = None
        while True:
            await self.refresh()
            event = schemas.record_of(job_schemas.EventRecord, self, job_id=self.id)
            if event != last:
                yield event
            if self.finished:
                return
            last = event
            await asyncio.sleep(POLL_SECONDS)

    async def wait(self, on_event: OnEvent | None = None, *, timeout_seconds: float | None = None) -> AsyncJob:
        """Wait for the end of the job; see `Job.wait`."""
        try:
            async with asyncio.timeout(timeout_seconds):
                async for event in self.events():
                    if on_event is not None:
                        on_event(event)
        except TimeoutError:
            raise WaitTimeout(f"Job {self.id} is still {self.state}. It continues: wait again, or cancel it.") from None
        await in_thread(self._sync.ended)
        return self


class AsyncMadeByJob(AsyncLive):
    """A record that is complete once its job has succeeded, such as a sample."""

    job = verb(MadeByJob.job, AsyncJob.of)

    async def wait(self, on_event: OnEvent | None = None) -> Self:
        """Wait for the end of the job; see `MadeByJob.wait`."""
        await (await self.job()).wait(on_event)
        return await self.refresh()


class AsyncEvaluation(AsyncMadeByJob, release_schemas.EvaluationRecord):
    """One evaluation of a release on a public dataset."""


def drawn(method: Sync[P, R], *formats: SampleFormat, check: Callable[P, None] | None = None) -> Async[P, R]:
    """Return an async method that waits for a sample in a suitable format, then runs the synchronous method.

    `check` runs before anything is generated, and may raise.
    """

    @wraps(method)
    async def run(self: AsyncSample, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if check is not None:
            await in_thread(check, *args, **kwargs)
        sample = AsyncSample.of(await in_thread(self._sync.packed, *formats))
        if not sample.sha256:
            await sample.wait()
        return await in_thread(method, sample._sync, *args, **kwargs)

    return run


class AsyncSample(AsyncMadeByJob, release_schemas.SampleRecord):
    download = drawn(Sample.download)
    show = drawn(Sample.show, *READABLE)
    images = drawn(Sample.images, *READABLE)
    to_numpy = drawn(Sample.to_numpy, *READABLE)
    to_torch = drawn(Sample.to_torch, *READABLE)
    to_hf = drawn(Sample.to_hf, *READABLE)
    to_imagefolder = drawn(Sample.to_imagefolder, "imagefolder", check=require_room)
    to_parquet = drawn(Sample.to_parquet, "parquet", check=require_room)
    to_webdataset = drawn(Sample.to_webdataset, "webdataset")


class AsyncRelease(AsyncLive, release_schemas.ReleaseRecord):
    card = verb(Release.card)
    receipt = verb(Release.receipt)
    save_receipt = verb(Release.save_receipt)
    save_report = verb(Release.save_report)
    save_grid = verb(Release.save_grid)
    save_weights = verb(Release.save_weights)
    evaluate = verb(Release.evaluate, AsyncEvaluation.of)
    evaluations = listed(Release.evaluations, AsyncEvaluation.of)
    sample = verb(Release.sample, AsyncSample.of)
    compare = verb(Release.compare)
    share = verb(Release.share)
    shares = listed(Release.shares)
    unshare = verb(Release.unshare)

    async def images(self, count: int = 100, *, seed: int = 0, classes: list[str] | None = None) -> Images:
        """Generate images and read them into memory; see `Release.images`."""
        return await (await self.sample(count, seed=seed, format="npz", classes=classes)).images()


class AsyncSweep(AsyncLive, job_schemas.SweepRecord):
    cancel = own(Sweep.cancel)
    best = verb(Sweep.best, AsyncRelease.of)
    to_pandas = verb(Sweep.to_pandas)

    async def wait(
        self, on_change: Callable[[AsyncSweep], None] | None = None, *, poll_seconds: float = 2.0
    ) -> AsyncSweep:
        """Wait until every trial has ended; see `Sweep.wait`."""
        seen: dict[str, Any] | None = None
        while True:
            if dict(await self.refresh()) != seen and on_change is not None:
                on_change(self)
            if self.finished:
                return self
            seen = dict(self)
            await asyncio.sleep(poll_seconds)


class AsyncPreview(AsyncMadeByJob, job_schemas.PreviewRecord):
    save_grid = verb(Preview.save_grid)


def asynchronous(record: Any) -> Any:
    """Wrap a record of the synchronous client; return a record without methods as it is."""
    if not isinstance(record, Live):
        return record
    return getattr(import_module("obscura.client"), f"Async{type(record).__name__}").of(record)
