"""The resources as frozen records that can act: `job.wait()`, `release.sample(...)`, `sample.download(path)`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, PrivateAttr

from service.api import release_schemas, schemas
from service.client.download import download
from service.client.errors import JobFailed, NotFoundError, WaitTimeout

if TYPE_CHECKING:
    from service.client.client import Client

UPLOAD_SECONDS_MAX = 3600.0  # the answer to an upload comes after the service has decoded every image

Live = TypeVar("Live", bound="_Live")


class _Live(BaseModel):
    _client: Client = PrivateAttr()

    @classmethod
    def bound(cls: type[Live], client: Client, content: bytes) -> Live:
        """Parse an answer and remember the connection it came from."""
        record = cls.model_validate_json(content)
        record._client = client
        return record


class Dataset(_Live, schemas.DatasetRecord):
    """A declared set of labelled images."""

    def push(self, body: Iterable[bytes], *, format: schemas.UploadFormat) -> Dataset:
        """Stream the content to the service; it is validated before this returns.

        Raises:
            RequestError: The content breaks a rule; the message says which.
        """
        path = f"/v1/datasets/{self.id}/content"
        response = self._client.transport.upload(
            path, body=body, params={"format": format}, timeout_seconds=UPLOAD_SECONDS_MAX
        )
        return Dataset.bound(self._client, response.content)

    def delete(self, *, cancel_jobs: bool = False) -> Dataset:
        """Destroy the images for ever. What was spent stays spent; releases and the account's log stay.

        Args:
            cancel_jobs: Cancel the jobs that need it. What trainings have charged stays spent, and they publish
                nothing. Until their processes have stopped the dataset is `deleting`.

        Raises:
            ApiError: Trainings that need the dataset are queued or running, and are not to be cancelled.
        """
        response = self._client.transport.request(
            "DELETE", f"/v1/datasets/{self.id}", params={"cancel_jobs": cancel_jobs}, repeatable=True
        )
        return Dataset.bound(self._client, response.content)


class Job(_Live, schemas.JobRecord):
    """A requested training, sampling or evaluation."""

    @property
    def finished(self) -> bool:
        """Whether the job has reached a final state."""
        return self.state in schemas.FINAL_STATES

    def refresh(self) -> Job:
        """Read the job again."""
        return self._client.job(self.id)

    def cancel(self, *, discard: bool = False) -> Job:
        """Ask the job to end. What it has charged stays spent, and the rest of its hold returns.

        Args:
            discard: Publish nothing. Without it, a training that has charged publishes what it has made by then;
                `publishes_if_cancelled` says whether there is anything.
        """
        response = self._client.transport.request(
            "POST", f"/v1/jobs/{self.id}/cancel", json={"discard": discard}, repeatable=True
        )
        return Job.bound(self._client, response.content)

    def events(self, last_event_id: str | None = None) -> Iterator[schemas.EventRecord]:
        """Yield what changes, the final state last. Broken connections resume where they broke off."""
        for event in self._client.transport.events(f"/v1/jobs/{self.id}/events", last_event_id):
            record = schemas.EventRecord.model_validate_json(event.data)
            yield record
            if record.state in schemas.FINAL_STATES:
                return

    def wait(
        self,
        on_event: Callable[[schemas.EventRecord], None] | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> Job:
        """Follow the job to its end and return it.

        Raises:
            JobFailed: It failed or was cancelled.
            WaitTimeout: It was still running after `timeout_seconds` (checked at each event).
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        for event in self.events():
            if on_event is not None:
                on_event(event)
            if deadline is not None and time.monotonic() > deadline and event.state not in schemas.FINAL_STATES:
                raise WaitTimeout(f"Job {self.id} is still {event.state}.")
        job = self.refresh()
        if job.state != "succeeded":
            code = job.failure.code if job.failure else job.state
            raise JobFailed(job.id, job.state, code, job.failure.message if job.failure else "It was cancelled.")
        return job

    def release(self) -> Release:
        """The release that this training published."""
        if self.release_id is None:
            raise JobFailed(self.id, self.state, self.state, "It has published no release.")
        return self._client.release(self.release_id)


class Sweep(_Live, schemas.SweepRecord):
    """A hyper-parameter search whose whole price was held at once."""

    @property
    def finished(self) -> bool:
        """Whether every trial has reached a final state."""
        return self.state == "ended"

    def refresh(self) -> Sweep:
        """Read the sweep again."""
        return self._client.sweep(self.id)

    def cancel(self, *, discard: bool = False) -> Sweep:
        """End every trial and evaluation that has not ended, as `Job.cancel` does."""
        response = self._client.transport.request(
            "POST", f"/v1/sweeps/{self.id}/cancel", json={"discard": discard}, repeatable=True
        )
        return Sweep.bound(self._client, response.content)

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
            self._client.transport.sleep(poll_seconds)

    def best(self) -> Release:
        """The release that is best on public data. Choosing it is post-processing: it costs nothing.

        Raises:
            NotFoundError: No trial has a measured release.
        """
        found = [trial.release_id for trial in self.trials if trial.job_id == self.best_job_id]
        if not found or found[0] is None:
            raise NotFoundError("not_found", 404, f"No trial of sweep {self.id} has a measured release yet.", {}, [])
        return self._client.release(found[0])


class Release(_Live, release_schemas.ReleaseRecord):
    """A published generator; sampling it costs nothing, for ever."""

    def card(self) -> dict[str, Any]:
        """The privacy card: what is guaranteed, what was assumed public, and what is not covered."""
        card: dict[str, Any] = self._client.transport.request("GET", f"/v1/releases/{self.id}/card").json()
        return card

    def receipt(self) -> dict[str, Any]:
        """The signed receipt: the entry that paid for this release, the account's terms, and the signature."""
        receipt: dict[str, Any] = self._client.transport.request("GET", f"/v1/releases/{self.id}/receipt").json()
        return receipt

    def save_receipt(self, path: Path) -> Path:
        """Save the signed receipt as it is served."""
        return self._save("receipt", path)

    def save_report(self, path: Path) -> Path:
        """Save the HTML report."""
        return self._save("report.html", path)

    def save_grid(self, path: Path) -> Path:
        """Save the grid of synthetic samples as PNG."""
        return self._save("grid.png", path)

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
        response = self._client.create(f"/v1/releases/{self.id}/evaluations", body, idempotency_key)
        return Evaluation.bound(self._client, response)

    def evaluations(self) -> Iterator[Evaluation]:
        """What was measured, and is being measured, newest first."""
        return self._client.evaluations(self.id)

    def refresh(self) -> Release:
        """Read the release again, with the figures of its newest evaluation."""
        return self._client.release(self.id)

    def _save(self, name: str, path: Path) -> Path:
        headers = {"Accept": "*/*"}
        content = self._client.transport.request("GET", f"/v1/releases/{self.id}/{name}", headers=headers).content
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def sample(
        self,
        *,
        count: int,
        seed: int,
        format: schemas.SampleFormat = "imagefolder",
        classes: list[str] | None = None,
        idempotency_key: str | None = None,
    ) -> Sample:
        """Ask for synthetic images. The seed is public: the same request gives the same bytes."""
        body = {"count": count, "seed": seed, "format": format, "classes": classes}
        response = self._client.create(f"/v1/releases/{self.id}/samples", body, idempotency_key)
        return Sample.bound(self._client, response)


class Evaluation(_Live, release_schemas.EvaluationRecord):
    """One measurement of a release on a public dataset."""

    def job(self) -> Job:
        """The job that measures."""
        return self._client.job(self.job_id)

    def refresh(self) -> Evaluation:
        """Read the evaluation again."""
        return next(found for found in self._client.evaluations(self.release_id) if found.id == self.id)

    def wait(self, on_event: Callable[[schemas.EventRecord], None] | None = None) -> Evaluation:
        """Follow the evaluation to its end.

        Raises:
            JobFailed: It failed or was cancelled. The release is as it was; ask again.
        """
        self.job().wait(on_event)
        return self.refresh()


class Sample(_Live, release_schemas.SampleRecord):
    """A set of synthetic images."""

    def refresh(self) -> Sample:
        """Read the sample again."""
        return self._client.sample(self.id)

    def job(self) -> Job:
        """The job that draws the images."""
        return self._client.job(self.job_id)

    def wait(self, on_event: Callable[[schemas.EventRecord], None] | None = None) -> Sample:
        """Follow the sampling to its end.

        Raises:
            JobFailed: It failed or was cancelled.
        """
        self.job().wait(on_event)
        return self.refresh()

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
        url = f"/v1/samples/{self.id}/content"
        return download(self._client.transport, url, Path(path), record.sha256, record.bytes, on_bytes)
