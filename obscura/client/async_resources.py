"""The resources for asyncio: the same records, whose verbs are awaited.

Waiting looks at the job twice a second, which is how often the service itself looks for what its event stream tells. So
it takes no thread, any number of jobs can be awaited together, and awaiting can be cancelled at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, PrivateAttr

from obscura.client.contents import READABLE, require_room
from obscura.client.live import Live
from obscura.client.resources import OnEvent, Release, Sample, Sweep
from obscura.client.verbs import Async, P, R, Sync, listed, verb
from obscura.errors import WaitTimeout
from obscura.stopping import in_thread
from obscura.wire import job_schemas, release_schemas, schemas, sweep_schemas
from obscura.wire.formats import SampleFormat, UploadFormat

__all__ = ["AsyncAccount", "AsyncDataset", "AsyncEvaluation", "AsyncJob", "AsyncRelease", "AsyncSample", "AsyncSweep"]

POLL_SECONDS = 0.5


class AsyncLive(BaseModel):
    """A record that remembers the synchronous one, whose verbs it awaits."""

    _sync: Any = PrivateAttr()

    @classmethod
    def of(cls, sync: Live) -> Self:
        """Make one of a synchronous record."""
        record = cls.model_construct(**dict(sync))
        record._sync = sync
        return record

    @property
    def sync(self) -> Any:
        """The synchronous record."""
        return self._sync

    @property
    def path(self) -> str:
        """Where the resource stands."""
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
        """As `Job.cancel` and `Sweep.cancel`: asks the service to end it. To end the waiting alone, cancel the task."""
        return self.of(await in_thread(self._sync.cancel, discard=discard))


class AsyncJob(_AsyncCancellable, job_schemas.JobRecord):
    """A requested training, sampling or evaluation."""

    @property
    def finished(self) -> bool:
        """Whether the job has reached a final state."""
        return bool(self._sync.finished)

    async def events(self) -> AsyncIterator[job_schemas.EventRecord]:
        """Yield what changes, the final state last."""
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
        """Follow the job to its end and return it.

        Raises:
            JobFailed: It failed or was cancelled.
            WaitTimeout: It was still running after `timeout_seconds`.
        """
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
        """The release that this training published."""
        return AsyncRelease.of(await in_thread(self._sync.release))


class AsyncMadeByJob(AsyncLive):
    """`MadeByJob` for asyncio."""

    async def job(self) -> AsyncJob:
        """The job that makes it."""
        return AsyncJob.of(await in_thread(self._sync.job))

    async def wait(self, on_event: OnEvent | None = None) -> Self:
        """Follow the job to its end.

        Raises:
            JobFailed: It failed or was cancelled. Ask again: it costs nothing.
        """
        await (await self.job()).wait(on_event)
        return await self.refresh()


class AsyncEvaluation(AsyncMadeByJob, release_schemas.EvaluationRecord):
    """One measurement of a release on a public dataset."""


def drawn(method: Sync[P, R], *formats: SampleFormat) -> Async[P, R]:
    """Make a method that waits until a sample has been drawn in one of these formats, and then runs another one in a
    thread."""

    @wraps(method)
    async def run(self: AsyncSample, /, *args: P.args, **kwargs: P.kwargs) -> R:
        sample = AsyncSample.of(await in_thread(self.sync.packed, *formats))
        if not sample.sha256:
            sample = await sample.wait()
        return await in_thread(method, sample.sync, *args, **kwargs)

    return run


def unpacked(method: Sync[[Path | str], Path], format: SampleFormat) -> Async[[Path | str], Path]:
    """As `drawn`, of a method that unpacks into a folder; that there is room is known before anything is drawn."""
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
    """A published generator; sampling it costs nothing, for ever."""

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
    """A hyper-parameter search whose whole price was held at once."""

    best = verb(Sweep.best, AsyncRelease.of)

    @property
    def finished(self) -> bool:
        """Whether every trial has reached a final state."""
        return bool(self._sync.finished)

    async def wait(
        self, on_change: Callable[[AsyncSweep], None] | None = None, *, poll_seconds: float = 2.0
    ) -> AsyncSweep:
        """Wait until every trial has ended, well or not; see `Sweep.wait`."""
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
