"""The resources as frozen records that can act: `job.wait()`, `release.sample(1000)`, `sample.to_numpy()`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from obscura.client.contents import READABLE, Images, read_images, require_room, unpack
from obscura.client.download import download
from obscura.client.html import release_html
from obscura.client.live import Live
from obscura.client.transport import Transport
from obscura.errors import JobFailed, NotFoundError, WaitTimeout
from obscura.wire import admin_schemas, job_schemas, release_schemas, share_schemas, sweep_schemas
from obscura.wire.formats import DOWNLOADS, MADE, SampleFormat

if TYPE_CHECKING:
    from datasets import Dataset as HuggingFaceDataset
    from torch.utils.data import TensorDataset

__all__ = ["Evaluation", "Job", "Release", "Sample", "Sweep"]

OnEvent = Callable[[job_schemas.EventRecord], None]


class _Cancellable(Live):
    def cancel(self, *, discard: bool = False) -> Self:
        """Ask a job, or every trial and evaluation of a sweep that has not ended, to end.

        What was charged stays spent, and the rest of the hold returns.

        Args:
            discard: Publish nothing. Without it, a training that has charged publishes what it has made by then;
                `publishes_if_cancelled` says whether there is anything.
        """
        body = {"discard": discard}
        answer = self._transport.request("POST", f"{self.path}/cancel", json=body, repeatable=True)
        return self.bound(self._transport, answer)


class MadeByJob(Live):
    """What a job was asked to make."""

    job_id: str

    def job(self) -> Job:
        """The job that makes it."""
        return Job.read(self._transport, self.job_id)

    def wait(self, on_event: OnEvent | None = None) -> Self:
        """Follow the job to its end.

        Raises:
            JobFailed: It failed or was cancelled. Ask again: it costs nothing.
        """
        self.job().wait(on_event)
        return self.refresh()


class Job(_Cancellable, job_schemas.JobRecord):
    """A requested training, sampling or evaluation."""

    PATH = "/v1/jobs"

    @property
    def finished(self) -> bool:
        """Whether the job has reached a final state."""
        return self.state in job_schemas.FINAL_STATES

    def events(self, last_event_id: str | None = None) -> Iterator[job_schemas.EventRecord]:
        """Yield what changes, the final state last. Broken connections resume where they broke off."""
        for record in self._transport.events(job_schemas.EventRecord, f"{self.path}/events", last_event_id):
            yield record
            if record.state in job_schemas.FINAL_STATES:
                return

    def wait(self, on_event: OnEvent | None = None, *, timeout_seconds: float | None = None) -> Job:
        """Follow the job to its end and return it.

        Raises:
            JobFailed: It failed or was cancelled.
            WaitTimeout: It was still running after `timeout_seconds` (checked at each event).
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        for event in self.events():
            if on_event is not None:
                on_event(event)
            if deadline is not None and time.monotonic() > deadline and event.state not in job_schemas.FINAL_STATES:
                raise WaitTimeout(f"Job {self.id} is still {event.state}.")
        return self.ended()

    def ended(self) -> Job:
        """Read a job that has ended, and return it if it succeeded.

        Raises:
            JobFailed: It failed or was cancelled.
        """
        job = self.refresh()
        if job.state != "succeeded":
            code = job.failure.code if job.failure else job.state
            raise JobFailed(job.id, job.state, code, job.failure.message if job.failure else "It was cancelled.")
        return job

    def release(self) -> Release:
        """The release that this training published.

        Raises:
            JobFailed: It has published nothing, or nothing yet.
        """
        job = self if self.release_id is not None else self.refresh()  # it may have ended since it was read
        if job.release_id is None:
            raise JobFailed(job.id, job.state, job.state, "It has published no release.")
        return Release.read(self._transport, job.release_id)


class Sweep(_Cancellable, sweep_schemas.SweepRecord):
    """A hyper-parameter search whose whole price was held at once."""

    PATH = "/v1/sweeps"

    @property
    def finished(self) -> bool:
        """Whether every trial has reached a final state."""
        return self.state == "ended"

    def wait(self, on_change: Callable[[Sweep], None] | None = None, *, poll_seconds: float = 2.0) -> Sweep:
        """Wait until every trial has ended, well or not, and return the sweep.

        Args:
            on_change: Called with the sweep whenever it reads differently.
            poll_seconds: Between two looks.
        """
        seen: Sweep | None = None
        while True:
            sweep = self.refresh()
            if on_change is not None and (seen is None or sweep.model_dump() != seen.model_dump()):
                on_change(sweep)
            if sweep.finished:
                return sweep
            seen = sweep
            self._transport.sleep(poll_seconds)

    def best(self) -> Release:
        """The release that is best on public data. Choosing it is post-processing: it costs nothing.

        Raises:
            NotFoundError: No trial has a measured release.
        """
        found = [trial.release_id for trial in self.trials if trial.job_id == self.best_job_id]
        if not found or found[0] is None:
            raise NotFoundError("not_found", 404, f"No trial of sweep {self.id} has a measured release yet.", {}, [])
        return Release.read(self._transport, found[0])


class Release(Live, release_schemas.ReleaseRecord):
    """A published generator; sampling it costs nothing, for ever."""

    PATH = "/v1/releases"

    def card(self) -> dict[str, Any]:
        """The privacy card: what is guaranteed, what was assumed public, and what is not covered."""
        return self._transport.document(f"{self.path}/card")

    def receipt(self) -> dict[str, Any]:
        """The signed receipt: the entry that paid for this release, the account's terms, and the signature."""
        return self._transport.document(f"{self.path}/receipt")

    def save_receipt(self, path: Path | str) -> Path:
        """Save the signed receipt as it is served."""
        return self._save("receipt", path)

    def save_report(self, path: Path | str) -> Path:
        """Save the HTML report."""
        return self._save("report.html", path)

    def save_grid(self, path: Path | str) -> Path:
        """Save the grid of synthetic samples as PNG."""
        return self._save("grid.png", path)

    def save_weights(self, folder: Path | str) -> list[Path]:
        """Save what was trained: the weights of a generator or classifier with their description, or the histogram.

        The privacy card comes with it, and with a generator a model card in Hugging Face's form and
        `load_generator.py`, which draws from it with torch alone: `python load_generator.py --count 100 --out images/`.

        Returns:
            The files, in `folder`, which is made where it is missing.
        """
        saved = []
        for name in (*DOWNLOADS, *MADE):
            with suppress(NotFoundError):  # each kind of release has some of them
                saved.append(self._save(f"files/{name}", Path(folder) / name))
        return saved

    def share(self, project_id: str | None = None, *, reason: str) -> admin_schemas.DecisionRecord:
        """Ask for another project to see this release, which another owner, or an admin, must approve.

        Args:
            project_id: As the other project's people tell it; None publishes to all projects, later ones too.
            reason: Kept with the request.
        """
        body = {"project_id": project_id, "reason": reason}
        answer = self._transport.request("POST", f"{self.path}/shares", json=body)
        return self._transport.parse(admin_schemas.DecisionRecord, answer)

    def shares(self) -> Iterator[share_schemas.ShareRecord]:
        """With whom it is shared, and was, newest first."""
        return self._transport.pages(share_schemas.ShareRecord, f"{self.path}/shares")

    def unshare(self, project_id: str | None = None) -> share_schemas.ShareRecord:
        """Stop sharing it with a project, or its being published, at once. What was drawn or downloaded stays there.

        Raises:
            NotFoundError: It is not shared so.
        """
        for share in self.shares():
            if share.ended_at is None and share.project_id == project_id:
                answer = self._transport.request("DELETE", f"{self.path}/shares/{share.id}", repeatable=True)
                return self._transport.parse(share_schemas.ShareRecord, answer)
        raise NotFoundError("not_found", 404, f"Release {self.id} is not shared so.", {}, [])

    def _repr_html_(self) -> str:
        grid = None
        if self.kind == "generator":
            grid = self._transport.request("GET", f"{self.path}/grid.png", headers={"Accept": "*/*"}).content
        return release_html(self, self.card(), grid)

    def evaluate(
        self,
        dataset_id: str,
        *,
        samples: int | None = None,
        seed: int | None = None,
        idempotency_key: str | None = None,
    ) -> Evaluation:
        """Ask for a measurement on a public dataset. It costs nothing, and adds its section to the report."""
        body = {"dataset_id": dataset_id, "samples": samples, "seed": seed}
        answer = self._transport.create(f"{self.path}/evaluations", body, idempotency_key)
        return Evaluation.bound(self._transport, answer)

    def evaluations(self) -> Iterator[Evaluation]:
        """What was measured, and is being measured, newest first."""
        return Evaluation.of_release(self._transport, self.id)

    def sample(
        self,
        count: int,
        *,
        seed: int = 0,
        format: SampleFormat = "imagefolder",
        classes: list[str] | None = None,
        proportions: dict[str, float] | Literal["stated"] | None = None,
        idempotency_key: str | None = None,
    ) -> Sample:
        """Ask for synthetic images. The seed is public: the same request gives the same bytes.

        Args:
            count: Of images.
            seed: Public.
            format: How they are packed.
            classes: Names of those to draw, equally often; all where they are left out.
            proportions: In place of `classes`, how often each class comes: `{"normal": 2000, "sick": 20}`. Only ratios
                count, and a class that is not named is not drawn. `"stated"`: as its training was told.
            idempotency_key: Repeating a request with it asks for nothing new.
        """
        body: dict[str, Any] = {"count": count, "seed": seed, "format": format, "classes": classes}
        body |= {} if proportions is None else {"proportions": proportions}
        answer = self._transport.create(f"{self.path}/samples", body, idempotency_key)
        return Sample.bound(self._transport, answer)


class Evaluation(MadeByJob, release_schemas.EvaluationRecord):
    """One measurement of a release on a public dataset. It is read in the list of its release."""

    @classmethod
    def of_release(cls, transport: Transport, release_id: str) -> Iterator[Self]:
        """Yield the evaluations of a release, newest first."""
        return cls.listed(transport, f"{Release.PATH}/{release_id}/evaluations")

    def refresh(self) -> Self:
        """Read the evaluation again."""
        return next(found for found in self.of_release(self._transport, self.release_id) if found.id == self.id)


class Sample(MadeByJob, release_schemas.SampleRecord):
    """A set of synthetic images."""

    PATH = "/v1/samples"

    def download(self, path: Path | str, on_bytes: Callable[[int, int], None] | None = None) -> Path:
        """Download the content to `path`; a broken download goes on where it stopped and its SHA-256 is checked.

        Args:
            path: Where the file goes. A partial download waits beside it as `<name>.part`.
            on_bytes: Called with (bytes so far, bytes in all).

        Raises:
            ApiError: The sample is still pending, or failed.
            DownloadCorrupt: The bytes do not match the recorded SHA-256.
        """
        record = self if self.sha256 else self.refresh()
        return download(self._transport, f"{self.path}/content", Path(path), record.sha256, record.bytes, on_bytes)

    def to_imagefolder(self, folder: Path | str) -> Path:
        """Wait for the images and save them as class folders of PNG files, with the privacy card beside them.

        Args:
            folder: Appears as a whole, or not at all.

        Raises:
            PlaceTaken: There is something already, and it is not an empty folder.
            JobFailed: The sampling failed.
        """
        return self._unpacked("imagefolder", folder)

    def to_parquet(self, folder: Path | str) -> Path:
        """Wait for the images and save them as Parquet with a dataset card, as Hugging Face's `load_dataset` reads it.

        Args:
            folder: Appears as a whole, or not at all.

        Raises:
            PlaceTaken: There is something already, and it is not an empty folder.
            JobFailed: The sampling failed.
        """
        return self._unpacked("parquet", folder)

    def to_webdataset(self, path: Path | str) -> Path:
        """Wait for the images and save them as a WebDataset tar of `<number>.png` and `<number>.cls`.

        Raises:
            JobFailed: The sampling failed.
        """
        return self.packed("webdataset")._finished().download(path)

    def to_numpy(self) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], np.ndarray[Any, np.dtype[np.int64]]]:
        """Wait for the images; return them as uint8, (n, h, w) or (n, h, w, 3), and their labels as int64, (n,)."""
        images = self.images()
        return images.pixels, images.labels

    def to_torch(self) -> TensorDataset:
        """Wait for the images; see `Images.to_torch`."""
        return self.images().to_torch()

    def to_hf(self) -> HuggingFaceDataset:
        """Wait for the images; see `Images.to_hf`."""
        return self.images().to_hf()

    def images(self) -> Images:
        """Wait for the images and read them into memory.

        Raises:
            JobFailed: The sampling failed.
        """
        sample = self.packed(*READABLE)._finished()
        with tempfile.TemporaryDirectory(prefix="obscura-") as scratch:
            return read_images(sample.download(Path(scratch) / "sample"), sample.format, self.count)

    def packed(self, *formats: SampleFormat) -> Sample:
        """The same images in one of these formats: this sample, or one that is drawn again in the first, for free."""
        if self.format in formats:
            return self
        release = Release.read(self._transport, self.release_id)
        return release.sample(
            self.count, seed=self.seed, format=formats[0], classes=self.classes, proportions=self.proportions
        )

    def _unpacked(self, format: SampleFormat, folder: Path | str) -> Path:
        require_room(Path(folder))
        sample = self.packed(format)._finished()
        with tempfile.TemporaryDirectory(prefix="obscura-") as scratch:
            return unpack(sample.download(Path(scratch) / "sample"), Path(folder), self.count)

    def _finished(self) -> Sample:
        return self if self.sha256 else self.wait()
