"""Resources: frozen records with methods, such as `job.wait()`, `release.sample(1000)` and `sample.to_numpy()`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from PIL import Image

from obscura.client.contents import READABLE, Images, download, read_images, require_room, unpack
from obscura.client.display import Displayed, bar, picture, table
from obscura.client.transport import Live, Named, Transport
from obscura.errors import JobFailed, NotFoundError, WaitTimeout
from obscura.extras import extras
from obscura.wire import admin_schemas, job_schemas, release_schemas, schemas
from obscura.wire.budgets import UNIT_WORDS
from obscura.wire.formats import DOWNLOADS, MADE, SampleFormat, UploadFormat
from obscura.wire.wording import show_epsilon, show_percent

if TYPE_CHECKING:
    from datasets import Dataset as HuggingFaceDataset
    from pandas import DataFrame
    from torch.utils.data import TensorDataset

__all__ = ["Dataset", "Evaluation", "Job", "Plan", "Preview", "Release", "Sample", "Sweep"]

OnEvent = Callable[[job_schemas.EventRecord], None]
SHOWN_BYTES_MAX = 8 * 2**20  # of a sample that a notebook downloads to show it


class Dataset(Live, schemas.DatasetRecord):
    """A declared set of labelled images. Notebooks show its public declaration, never an image."""

    PATH = "/v1/datasets"

    def _facts(self) -> dict[str, str]:
        images = f"{'at most ' if self.visibility == 'private' else ''}{self.records_declared:,} images"
        if self.subjects_declared is not None:
            images += f" of at most {self.subjects_declared:,} subjects"
        shape = f"{self.width} x {self.height} {'grey' if self.channels == 1 else 'colour'}"
        facts = {"state": f"{self.visibility}, {self.state}", "images": images, "shape": shape}
        return facts | {"classes": ", ".join(self.classes), "dataset": self.id}

    def push(self, body: Iterable[bytes], *, format: UploadFormat, subjects_key_check: str | None = None) -> Self:
        """Stream the content to the service; raise RequestError if it is invalid. The error states the broken rule.

        `subjects_key_check` is the result of `obscura.preparing.subjects.key_check`; None for plain ids.
        """
        params = {"format": format} | ({} if subjects_key_check is None else {"subjects_key_check": subjects_key_check})
        answer = self._transport.upload(f"{self._path}/content", body, params)
        return self._updated(self._transport.parse(type(self), answer))

    def delete(self, *, cancel_jobs: bool = False) -> Self:
        """Destroy the images forever. Spent budget stays spent; releases and the account's log stay.

        If jobs need the dataset, `cancel_jobs` cancels them; otherwise ApiError is raised. Charges of cancelled jobs
        stay spent, and these jobs publish nothing. Until their processes have stopped, the dataset is `deleting`.
        """
        answer = self._transport.request("DELETE", self._path, params={"cancel_jobs": cancel_jobs}, repeatable=True)
        return self._updated(self._transport.parse(type(self), answer))

    @classmethod
    def ids(cls, transport: Transport, **datasets: Named | None) -> dict[str, str | None]:
        """Return the ids of datasets that a caller gave as records, names or ids."""
        return {
            name: None if which is None else transport.id_of(cls, cls.PATH, which) for name, which in datasets.items()
        }


class _Cancellable(Live):
    def cancel(self, *, discard: bool = False) -> Self:
        """Request the cancellation of a job, or of every unfinished trial and evaluation of a sweep.

        Charges stay spent, and the rest of the reservation is returned. A training that has charged budget publishes
        its partial result, unless `discard` is set. `publishes_if_cancelled` reports whether there is a partial result.
        """
        return self._post("cancel", {"discard": discard})


class MadeByJob(Live):
    """A record that is complete once its job has succeeded, such as a sample."""

    job_id: str

    def job(self) -> Job:
        return Job.read(self._transport, self.job_id)

    def wait(self, on_event: OnEvent | None = None) -> Self:
        """Wait for the end of the job and update this record; raise JobFailed if it did not succeed.

        Requesting again is free.
        """
        self.job().wait(on_event)
        return self.refresh()


class Plan(Displayed, job_schemas.PlanRecord):
    """Plan and cost of a training, computed from public parameters only. Notebooks show what it would leave."""

    def _names(self) -> list[str]:
        return [self.recipe]

    def _facts(self) -> dict[str, str]:
        budget, cost = self.budget, f"epsilon {show_epsilon(self.cost_epsilon, up=True)}"
        left, after = (show_epsilon(each, up=False) for each in (budget.left_epsilon, budget.left_after_epsilon))
        facts = {"cost": f"costs {cost} of {left} left"}
        facts["left after"] = f"epsilon {after} left after it" if budget.affordable else "not affordable"
        facts |= {"guarantee": f"{cost}, delta {self.delta:g}", "hides": UNIT_WORDS.get(self.unit, self.unit)}
        return facts | {"notes": " ".join((*self.expectation.summary, *self.notes))}

    def _picture(self) -> str:
        return bar(job=self.cost_nano / max(self.budget.left_nano, self.cost_nano, 1))


class Job(_Cancellable, job_schemas.JobRecord):
    """A requested training, sampling or evaluation."""

    PATH = "/v1/jobs"

    def _facts(self) -> dict[str, str]:
        charged, cost = (show_epsilon(each, up=True) for each in (self.progress.charged_epsilon, self.cost_epsilon))
        facts = {"state": self.state, "kind": self.kind}
        facts |= {"charged": f"epsilon {charged} of {cost} charged"} if self.cost_nano else {}
        steps = f" {self.progress.step} of {self.progress.steps}" if self.progress.steps else ""
        facts |= {"recipe": self.recipe or "", "stage": (self.progress.stage or "") + steps}
        facts |= {"failure": self.failure.message if self.failure else "", "release": self.release_id or ""}
        return {name: text for name, text in facts.items() if text}

    def _picture(self) -> str:
        return bar(job=self.progress.charged_nano / self.cost_nano) if self.cost_nano else ""

    def events(self) -> Iterator[job_schemas.EventRecord]:
        """Yield an event for each change; the last event has the final state. Reconnects after a broken connection."""
        for record in self._transport.events(job_schemas.EventRecord, f"{self._path}/events"):
            yield record
            if record.state in job_schemas.FINAL_STATES:
                return

    def wait(self, on_event: OnEvent | None = None, *, timeout_seconds: float | None = None) -> Job:
        """Wait for the end of the job and update this record; raise JobFailed unless it succeeds.

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
        """Update this record, and return it if the job has succeeded; else raise JobFailed."""
        if self.refresh().state != "succeeded":
            code = self.failure.code if self.failure else self.state
            raise JobFailed(self.id, self.state, code, self.failure.message if self.failure else "It was cancelled.")
        return self

    def release(self) -> Release:
        """Return the release that this training published; raise JobFailed if there is none."""
        if self.release_id is None and self.refresh().release_id is None:  # it may have ended in the meantime
            raise JobFailed(self.id, self.state, self.state, "It has published no release.")
        return Release.read(self._transport, str(self.release_id))


class Sweep(_Cancellable, job_schemas.SweepRecord):
    """A hyperparameter search whose whole cost is reserved at once."""

    PATH = "/v1/sweeps"

    def _facts(self) -> dict[str, str]:
        cost, spent = (show_epsilon(each, up=True) for each in (self.totals.cost_epsilon, self.totals.spent_epsilon))
        facts = {"trials": f"{len(self.trials)} trials", "state": self.state}
        return facts | {"spent": f"epsilon {spent} of {cost} spent", "sweep": self.id}

    def _picture(self) -> str:
        return table(
            {name: str(value) for name, value in trial.options.items()}
            | {"epsilon": f"{trial.epsilon:g}", "state": trial.state, "release": trial.release_id or ""}
            | {name: show_percent(value) for name, value in (trial.accuracy or {}).items()}
            | {"best": "yes" if trial.job_id == self.best_job_id else ""}
            for trial in self.trials
        )

    def to_pandas(self) -> DataFrame:
        """Return a data frame with a row for each trial; columns are named like `accuracy.cnn`."""
        with extras("A data frame"):
            import pandas

        return pandas.json_normalize([trial.model_dump() for trial in self.trials])

    def wait(self, on_change: Callable[[Sweep], None] | None = None, *, poll_seconds: float = 2.0) -> Sweep:
        """Wait until every trial has ended, whether it succeeded or not, and update this record."""
        seen: dict[str, Any] | None = None
        while True:
            if dict(self.refresh()) != seen and on_change is not None:
                on_change(self)
            if self.finished:
                return self
            seen = dict(self)
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
        """Save the trained artefact (weights with their description, or the histogram), the privacy card, and
        `artifact.json`, with which `verify_receipt.py` compares the files with the receipt.

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

    def _facts(self) -> dict[str, str]:
        accuracy, facts = (self.accuracy or {}).get("cnn"), {"kind": self.kind}
        facts["guarantee"] = f"epsilon {show_epsilon(self.epsilon, up=True)}, delta {self.delta:g}"
        facts["hides"] = UNIT_WORDS.get(self.unit, self.unit)
        facts["accuracy"] = "not measured" if accuracy is None else f"{show_percent(accuracy)} of a CNN"
        facts |= {"complete": show_percent(self.incomplete.fraction, up=False)} if self.incomplete else {}
        return facts | {"recipe": self.recipe, "release": self.id}

    def _picture(self) -> str:
        image = ""
        if self.kind == "generator":
            grid = self._transport.request("GET", f"{self._path}/grid.png", headers={"Accept": "*/*"}).content
            image = picture(grid, "Synthetic samples, one row for each class")
        return f"{image}<p>Not covered: {escape('; '.join(self.card().get('not_covered', ())) or '-')}</p>"

    def compare(self, other: release_schemas.ReleaseRecord) -> dict[str, tuple[Any, Any]]:
        """Return the facts that differ between two releases, such as `{"epsilon": (1.0, 2.0)}`."""
        facts = ("kind", "recipe", "epsilon", "delta", "unit", "classes", "accuracy", "balanced_accuracy")
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in (*facts, "accuracy_by_class")}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def evaluate(
        self,
        dataset_id: Named,
        *,
        samples: int | None = None,
        seed: int | None = None,
        idempotency_key: str | None = None,
    ) -> Evaluation:
        """Request an evaluation on a public dataset (record, name or id), for free. It adds a section to the report."""
        body = {**Dataset.ids(self._transport, dataset_id=dataset_id), "samples": samples, "seed": seed}
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

        Example: `images, labels = release.sample(1000).to_numpy()`

        Args:
            classes: Classes to generate in equal numbers; all by default.
            proportions: Instead of `classes`, the ratio of each class: `{"normal": 2000, "sick": 20}`. Classes that are
                not named are not generated. `"stated"` uses the ratios stated for the training.
        """
        body: dict[str, Any] = {"count": count, "seed": seed, "format": format, "classes": classes}
        body |= {} if proportions is None else {"proportions": proportions}
        return self._transport.create(Sample, f"{self._path}/samples", body, idempotency_key)

    def images(self, count: int = 100, *, seed: int = 0, classes: list[str] | None = None) -> Images:
        """Generate images and read them into memory; `release.images()["cat"]` are those of one class."""
        return self.sample(count, seed=seed, format="npz", classes=classes).images()


class Evaluation(MadeByJob, release_schemas.EvaluationRecord):
    """One evaluation of a release on a public dataset, read from the release's list of evaluations."""

    def _facts(self) -> dict[str, str]:
        accuracies = {name: show_percent(value) for name, value in (self.accuracy or {}).items()}
        return {"state": self.state} | {name: f"{name} {value}" for name, value in accuracies.items()}

    def refresh(self) -> Self:
        listed = self._transport.pages(type(self), f"{Release.PATH}/{self.release_id}/evaluations")
        return self._updated(next(evaluation for evaluation in listed if evaluation.id == self.id))


class Sample(MadeByJob, release_schemas.SampleRecord):
    """A set of synthetic images."""

    PATH = "/v1/samples"

    def _facts(self) -> dict[str, str]:
        facts = {"images": f"{self.count:,} images", "state": self.state, "format": self.format}
        return facts | {"seed": str(self.seed), "release": self.release_id}

    def _picture(self) -> str:
        if not self.sha256 or self.format not in READABLE or (self.bytes or 0) > SHOWN_BYTES_MAX:
            return ""
        return picture(self.show(), "Synthetic images, one row for each class")

    def show(self, per_class: int = 10) -> Image.Image:
        """Wait for the images; return a grid with a row for each class, which notebooks display."""
        return self.images().show(per_class)

    def download(self, path: Path | str, on_bytes: Callable[[int, int], None] | None = None) -> Path:
        """Wait for the images, download the file and verify its SHA-256.

        A partial download resumes from `<name>.part` beside the file. Calls `on_bytes` with (bytes so far, total
        bytes). Raises JobFailed, or DownloadCorrupt if the bytes do not match.
        """
        if not self.sha256:
            self.wait()
        return download(self._transport, f"{self._path}/content", Path(path), self.sha256, self.bytes, on_bytes)

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
        return self.packed("webdataset").download(path)

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
        sample = self.packed(*READABLE)
        with tempfile.TemporaryDirectory(prefix="obscura-") as scratch:
            return read_images(sample.download(Path(scratch) / "sample"), sample.format, self.count)

    def packed(self, *formats: SampleFormat) -> Sample:
        """Return this sample if it has one of the formats, or if none is given; else request the first, for free."""
        if not formats or self.format in formats:
            return self
        release = Release.read(self._transport, self.release_id)
        return release.sample(
            self.count, seed=self.seed, format=formats[0], classes=self.classes, proportions=self.proportions
        )

    def _unpacked(self, format: SampleFormat, folder: Path | str) -> Path:
        require_room(folder)
        sample = self.packed(format)
        with tempfile.TemporaryDirectory(prefix="obscura-") as scratch:
            return unpack(sample.download(Path(scratch) / "sample"), Path(folder), self.count)


class Preview(MadeByJob, job_schemas.PreviewRecord):
    """A plan tried on public images."""

    PATH = "/v1/previews"

    def save_grid(self, path: Path | str) -> Path:
        """Save a grid of generated images as PNG."""
        return _save(self, "grid.png", path)


def _save(resource: Live, name: str, path: Path | str) -> Path:
    return download(resource._transport, f"{resource._path}/{name}", Path(path), None, None)
