"""Resources: frozen records with methods, such as `job.wait()`, `release.sample(1000)` and `sample.to_numpy()`."""

from __future__ import annotations

import base64
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from obscura.client.contents import READABLE, Images, download, read_images, require_room, unpack
from obscura.client.transport import Live
from obscura.errors import JobFailed, NotFoundError, WaitTimeout
from obscura.wire import admin_schemas, job_schemas, release_schemas, schemas
from obscura.wire.budgets import UNIT_WORDS
from obscura.wire.formats import DOWNLOADS, MADE, SampleFormat, UploadFormat
from obscura.wire.wording import show_epsilon, show_sure

if TYPE_CHECKING:
    from datasets import Dataset as HuggingFaceDataset
    from torch.utils.data import TensorDataset

__all__ = ["Account", "Dataset", "Evaluation", "Job", "Preview", "Release", "Sample", "Sweep"]

OnEvent = Callable[[job_schemas.EventRecord], None]


class Account(Live, schemas.AccountRecord):
    """A population with one privacy budget. Notebooks show spent, reserved and remaining budget."""

    PATH = "/v1/accounts"

    def _repr_html_(self) -> str:
        balance = self.balance
        parts = (("spent", "#b3261e", balance.spent_fraction), ("reserved", "#e0a100", balance.reserved_fraction))
        bar = "".join(
            f'<span title="{name}" style="display:inline-block;height:100%;width:{100 * share:.2f}%;'
            f'background:{colour}"></span>'
            for name, colour, share in parts
        )
        frame = '<div style="height:12px;max-width:400px;background:#d7e3d4">'
        left, limit = show_epsilon(balance.left_epsilon, up=False), show_epsilon(self.epsilon, up=False)
        facts = {
            "account": self.id,
            "spent": f"epsilon {show_epsilon(balance.spent_epsilon, up=True)}",
            "reserved": f"epsilon {show_epsilon(balance.reserved_epsilon, up=True)}",
            "left": f"epsilon {left} of {limit}",
            "delta": f"{self.delta:g}",
            "hides": UNIT_WORDS.get(self.unit, self.unit),
            "promises": f"epsilon {show_epsilon(balance.guaranteed_epsilon, up=True)} for all that is ever published",
            "certainty": f"{show_sure(balance.attacker_certainty_max)} at most, for an attacker who was 50% sure",
        }
        return _html(self.name, f"{frame}{bar}</div>", facts)


class Dataset(Live, schemas.DatasetRecord):
    """A declared set of labelled images."""

    PATH = "/v1/datasets"

    def push(self, body: Iterable[bytes], *, format: UploadFormat, subjects_key_check: str | None = None) -> Self:
        """Stream the content to the service; raise RequestError if it is invalid. The error states the broken rule.

        `subjects_key_check` is the result of `obscura.preparing.subjects.key_check`; None for plain ids.
        """
        params = {"format": format} | ({} if subjects_key_check is None else {"subjects_key_check": subjects_key_check})
        return self._transport.parse(type(self), self._transport.upload(f"{self._path}/content", body, params))

    def delete(self, *, cancel_jobs: bool = False) -> Self:
        """Destroy the images forever. Spent budget stays spent; releases and the account's log stay.

        If jobs need the dataset, `cancel_jobs` cancels them; otherwise ApiError is raised. Charges of cancelled jobs
        stay spent, and these jobs publish nothing. Until their processes have stopped, the dataset is `deleting`.
        """
        answer = self._transport.request("DELETE", self._path, params={"cancel_jobs": cancel_jobs}, repeatable=True)
        return self._transport.parse(type(self), answer)


class _Cancellable(Live):
    def cancel(self, *, discard: bool = False) -> Self:
        """Request the cancellation of a job, or of every unfinished trial and evaluation of a sweep.

        Charges stay spent, and the rest of the reservation is returned. A training that has charged budget publishes
        its partial result, unless `discard` is set. `publishes_if_cancelled` reports whether there is a partial result.
        """
        return self._transport.post(type(self), f"{self._path}/cancel", {"discard": discard}, repeatable=True)


class MadeByJob(Live):
    """A record that is complete once its job has succeeded, such as a sample."""

    job_id: str

    def job(self) -> Job:
        return Job.read(self._transport, self.job_id)

    def wait(self, on_event: OnEvent | None = None) -> Self:
        """Wait for the end of the job; raise JobFailed if it did not succeed. Requesting again is free."""
        self.job().wait(on_event)
        return self.refresh()


class Job(_Cancellable, job_schemas.JobRecord):
    """A requested training, sampling or evaluation."""

    PATH = "/v1/jobs"

    def events(self) -> Iterator[job_schemas.EventRecord]:
        """Yield an event for each change; the last event has the final state. Reconnects after a broken connection."""
        for record in self._transport.events(job_schemas.EventRecord, f"{self._path}/events"):
            yield record
            if record.state in job_schemas.FINAL_STATES:
                return

    def wait(self, on_event: OnEvent | None = None, *, timeout_seconds: float | None = None) -> Job:
        """Wait for the end of the job; raise JobFailed unless it succeeds.

        Raises WaitTimeout at the first event after `timeout_seconds`, unless that event is the end.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        for event in self.events():
            if on_event is not None:
                on_event(event)
            if deadline is not None and time.monotonic() > deadline and event.state not in job_schemas.FINAL_STATES:
                raise WaitTimeout(f"Job {self.id} is still {event.state}. It continues: wait again, or cancel it.")
        return self.ended()

    def ended(self) -> Job:
        """Return a job that has succeeded; raise JobFailed if it failed or was cancelled."""
        job = self.refresh()
        if job.state != "succeeded":
            code = job.failure.code if job.failure else job.state
            raise JobFailed(job.id, job.state, code, job.failure.message if job.failure else "It was cancelled.")
        return job

    def release(self) -> Release:
        """Return the release that this training published; raise JobFailed if there is none."""
        job = self if self.release_id is not None else self.refresh()  # it may have ended in the meantime
        if job.release_id is None:
            raise JobFailed(job.id, job.state, job.state, "It has published no release.")
        return Release.read(self._transport, job.release_id)


class Sweep(_Cancellable, job_schemas.SweepRecord):
    """A hyperparameter search whose whole cost is reserved at once."""

    PATH = "/v1/sweeps"

    def wait(self, on_change: Callable[[Sweep], None] | None = None, *, poll_seconds: float = 2.0) -> Sweep:
        """Wait until every trial has ended, whether it succeeded or not."""
        seen: Sweep | None = None
        while True:
            sweep = self.refresh()
            if on_change is not None and sweep != seen:
                on_change(sweep)
            if sweep.finished:
                return sweep
            seen = sweep
            self._transport.sleep(poll_seconds)

    def best(self) -> Release:
        """Return the release that is best on public data, for free; raise NotFoundError if no release was evaluated."""
        found = [trial.release_id for trial in self.trials if trial.job_id == self.best_job_id]
        if not found or found[0] is None:
            raise NotFoundError("not_found", 404, f"No trial of sweep {self.id} has a measured release yet.", {}, [])
        return Release.read(self._transport, found[0])


class Release(Live, release_schemas.ReleaseRecord):
    """A published result of a training. Sampling a generator is free, forever."""

    PATH = "/v1/releases"

    def card(self) -> dict[str, Any]:
        """Return the privacy card: guarantee, public assumptions, and what is not covered."""
        return self._transport.document(f"{self._path}/card")

    def receipt(self) -> dict[str, Any]:
        """Return the signed receipt: ledger entry, account terms and signature."""
        return self._transport.document(f"{self._path}/receipt")

    def save_receipt(self, path: Path | str) -> Path:
        """Save the signed receipt byte for byte."""
        return _save(self, "receipt", path)

    def save_report(self, path: Path | str) -> Path:
        return _save(self, "report.html", path)

    def save_grid(self, path: Path | str) -> Path:
        """Save the grid of synthetic images as PNG."""
        return _save(self, "grid.png", path)

    def save_weights(self, folder: Path | str) -> list[Path]:
        """Save the trained artefact (weights with their description, or the histogram) and the privacy card.

        A generator also has a Hugging Face model card and `load_generator.py`, which samples with torch alone:
        `python load_generator.py --count 100 --out images/`.
        """
        saved = []
        for name in (*DOWNLOADS, *MADE):
            with suppress(NotFoundError):  # each kind of release has some of these files
                saved.append(_save(self, f"files/{name}", Path(folder) / name))
        return saved

    def share(self, project_id: str | None = None, *, reason: str) -> admin_schemas.DecisionRecord:
        """Request that another project, or all, can see this release. Another owner or an admin must approve."""
        body = {"project_id": project_id, "reason": reason}
        return self._transport.post(admin_schemas.DecisionRecord, f"{self._path}/shares", body)

    def shares(self) -> Iterator[release_schemas.ShareRecord]:
        """Yield current and ended shares, newest first."""
        return self._transport.pages(release_schemas.ShareRecord, f"{self._path}/shares")

    def unshare(self, project_id: str | None = None) -> release_schemas.ShareRecord:
        """Stop sharing with a project, or with all. Existing copies remain. Raise NotFoundError if it is not shared."""
        for share in self.shares():
            if share.ended_at is None and share.project_id == project_id:
                path = f"{self._path}/shares/{share.id}"
                answer = self._transport.request("DELETE", path, repeatable=True)
                return self._transport.parse(release_schemas.ShareRecord, answer)
        raise NotFoundError(
            "not_found", 404, f"Release {self.id} is not shared with {project_id or 'all projects'}.", {}, []
        )

    def _repr_html_(self) -> str:
        card, image = self.card(), ""
        if self.kind == "generator":
            grid = self._transport.request("GET", f"{self._path}/grid.png", headers={"Accept": "*/*"}).content
            data = base64.b64encode(grid).decode("ascii")
            image = f'<img alt="Synthetic samples, one row for each class" src="data:image/png;base64,{data}">'
        facts = {
            "release": self.id,
            "guarantee": f"epsilon {show_epsilon(card['epsilon'], up=True)}, delta {card['delta']:g}",
            "hides": UNIT_WORDS.get(card.get("unit", ""), "-"),
            "not covered": "; ".join(card.get("not_covered", ())) or "-",
        }
        return _html(self.name, image, facts)

    def evaluate(
        self,
        dataset_id: str,
        *,
        samples: int | None = None,
        seed: int | None = None,
        idempotency_key: str | None = None,
    ) -> Evaluation:
        """Request an evaluation on a public dataset, for free. It adds a section to the report."""
        body = {"dataset_id": dataset_id, "samples": samples, "seed": seed}
        return self._transport.create(Evaluation, f"{self._path}/evaluations", body, idempotency_key)

    def evaluations(self) -> Iterator[Evaluation]:
        """Yield all evaluations, newest first, including unfinished evaluations."""
        return self._transport.pages(Evaluation, f"{self._path}/evaluations")

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
        """Request synthetic images. The seed is public: the same request returns the same bytes.

        Args:
            classes: Classes to generate in equal numbers; all by default.
            proportions: Instead of `classes`, the ratio of each class: `{"normal": 2000, "sick": 20}`. Classes that are
                not named are not generated. `"stated"` uses the ratios stated for the training.
        """
        body: dict[str, Any] = {"count": count, "seed": seed, "format": format, "classes": classes}
        body |= {} if proportions is None else {"proportions": proportions}
        return self._transport.create(Sample, f"{self._path}/samples", body, idempotency_key)


class Evaluation(MadeByJob, release_schemas.EvaluationRecord):
    """One evaluation of a release on a public dataset, read from the release's list of evaluations."""

    def refresh(self) -> Self:
        listed = self._transport.pages(type(self), f"{Release.PATH}/{self.release_id}/evaluations")
        return next(evaluation for evaluation in listed if evaluation.id == self.id)


class Sample(MadeByJob, release_schemas.SampleRecord):
    """A set of synthetic images."""

    PATH = "/v1/samples"

    def download(self, path: Path | str, on_bytes: Callable[[int, int], None] | None = None) -> Path:
        """Download the content and verify its SHA-256. A partial download resumes from `<name>.part` beside the file.

        Calls `on_bytes` with (bytes so far, total bytes). Raises ApiError if the sample is pending or failed, and
        DownloadCorrupt if the bytes do not match.
        """
        record = self if self.sha256 else self.refresh()
        return download(self._transport, f"{self._path}/content", Path(path), record.sha256, record.bytes, on_bytes)

    def to_imagefolder(self, folder: Path | str) -> Path:
        """Wait for the images and save them as class folders of PNG files, with the privacy card.

        Atomic: the folder is complete or absent. Raises JobFailed, or PlaceTaken if the folder is not empty.
        """
        return self._unpacked("imagefolder", folder)

    def to_parquet(self, folder: Path | str) -> Path:
        """Wait for the images and save them as Parquet with a dataset card; see `to_imagefolder`."""
        return self._unpacked("parquet", folder)

    def to_webdataset(self, path: Path | str) -> Path:
        """Wait for the images and save them as a WebDataset tar of `<number>.png` and `<number>.cls`."""
        return self.packed("webdataset")._finished().download(path)

    def to_numpy(self) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], np.ndarray[Any, np.dtype[np.int64]]]:
        """Wait for the images; return uint8 (n, h, w) or (n, h, w, 3), and int64 labels (n,)."""
        images = self.images()
        return images.pixels, images.labels

    def to_torch(self) -> TensorDataset:
        """Wait for the images; see `Images.to_torch`."""
        return self.images().to_torch()

    def to_hf(self) -> HuggingFaceDataset:
        """Wait for the images; see `Images.to_hf`."""
        return self.images().to_hf()

    def images(self) -> Images:
        """Wait for the images and read them into memory; raise JobFailed if the job failed."""
        sample = self.packed(*READABLE)._finished()
        with tempfile.TemporaryDirectory(prefix="obscura-") as scratch:
            return read_images(sample.download(Path(scratch) / "sample"), sample.format, self.count)

    def packed(self, *formats: SampleFormat) -> Sample:
        """Return this sample if it has one of the formats; otherwise request its images in the first format, free."""
        if self.format in formats:
            return self
        release = Release.read(self._transport, self.release_id)
        return release.sample(
            self.count, seed=self.seed, format=formats[0], classes=self.classes, proportions=self.proportions
        )

    def _unpacked(self, format: SampleFormat, folder: Path | str) -> Path:
        require_room(folder)
        sample = self.packed(format)._finished()
        with tempfile.TemporaryDirectory(prefix="obscura-") as scratch:
            return unpack(sample.download(Path(scratch) / "sample"), Path(folder), self.count)

    def _finished(self) -> Sample:
        return self if self.sha256 else self.wait()


class Preview(MadeByJob, job_schemas.PreviewRecord):
    """A plan tried on public images."""

    PATH = "/v1/previews"

    def save_grid(self, path: Path | str) -> Path:
        """Save a grid of generated images as PNG."""
        return _save(self, "grid.png", path)


def _save(resource: Live, name: str, path: Path | str) -> Path:
    return download(resource._transport, f"{resource._path}/{name}", Path(path), None, None)


def _html(name: str, picture: str, facts: Mapping[str, str]) -> str:
    """Return HTML that shows a resource in a notebook. The name and the facts are escaped."""
    rows = (f"<tr><th>{escape(fact)}</th><td>{escape(value)}</td></tr>" for fact, value in facts.items())
    return f"<h4>{escape(name)}</h4>{picture}<table>{''.join(rows)}</table>"
