"""Resources for asyncio: each method of a synchronous one, run in a thread. Waiting for a job occupies no thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload

from pydantic import BaseModel, PrivateAttr

from obscura.client.contents import READABLE, require_room
from obscura.client.resources import Live, OnEvent, Preview, Release, Sample, Sweep
from obscura.errors import WaitTimeout
from obscura.stopping import in_thread
from obscura.wire import job_schemas, release_schemas, schemas, sweep_schemas
from obscura.wire.formats import SampleFormat, UploadFormat

__all__ = [
    "AsyncAccount",
    "AsyncDataset",
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
    """Return an async method that runs a synchronous one in a thread, on `self.sync`.

    Args:
        method: Method of the synchronous class.
        turn: Converts its result; by default, return it unchanged.
    """

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
        """Return the synchronous record."""
        return self._sync

    @property
    def path(self) -> str:
        """Return the path of the resource."""
        return str(self._sync.path)

    async def refresh(self) -> Self:
        """Read the resource again."""
        return self.of(await in_thread(self._sync.refresh))


class AsyncAccount(AsyncLive, schemas.AccountRecord):
    """A population with one privacy budget."""


class AsyncDataset(AsyncLive, schemas.DatasetRecord):
    """A declared set of labelled images."""

    async def push(
        self, body: Iterable[bytes], *, format: UploadFormat, subjects_key_check: str | None = None
    ) -> AsyncDataset:
        """As `Dataset.push`."""
        options = {"format": format, "subjects_key_check": subjects_key_check}
        return self.of(await in_thread(self._sync.push, body, **options))

    async def delete(self, *, cancel_jobs: bool = False) -> AsyncDataset:
        """As `Dataset.delete`."""
        return self.of(await in_thread(self._sync.delete, cancel_jobs=cancel_jobs))


class _AsyncCancellable(AsyncLive):
    async def cancel(self, *, discard: bool = False) -> Self:
        return self.of(await in_thread(self._sync.cancel, discard=discard))


class AsyncJob(_AsyncCancellable, job_schemas.JobRecord):
    """A requested training, sampling or evaluation."""

    async def events(self) -> AsyncIterator[job_schemas.EventRecord]:
        """Yield changes, the final state last."""
        said = None
        while True:
            job = await self.refresh()
            facts = {name: getattr(job, name) for name in job_schemas.EventRecord.model_fields if name != "job_id"}
            event = job_schemas.EventRecord(job_id=job.id, **facts)
            if event != said:
                yield event
            if job.finished:
                return
            said = event
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

    async def release(self) -> AsyncRelease:
        """Return the release that this training published."""
        return AsyncRelease.of(await in_thread(self._sync.release))


class AsyncMadeByJob(AsyncLive):
    """An order that a job carries out."""

    async def job(self) -> AsyncJob:
        """Return the job."""
        return AsyncJob.of(await in_thread(self._sync.job))

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


class AsyncSweep(_AsyncCancellable, sweep_schemas.SweepRecord):
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
