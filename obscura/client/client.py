"""`Client`: trainings, sweeps, releases and samples, besides what `AccountClient` has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from obscura.client.accounts import AccountClient
from obscura.client.datasets import only_one
from obscura.client.one_step import RECIPE, ImageInput, Labels, push_for
from obscura.client.progress import TerminalConsole, job_progress
from obscura.client.resources import Dataset, Evaluation, Job, Release, Sample, Sweep
from obscura.client.transport import Transport

__all__ = ["Client"]


class Client(AccountClient):
    """A connection to an Obscura service. transport: replaces it in tests."""

    def __init__(self, base_url: str, token: str | None, *, transport: Transport | None = None) -> None:
        super().__init__(transport or Transport(base_url, token))

    # --- trainings, jobs and sweeps ---

    def train(
        self,
        images: ImageInput,
        labels: Labels = None,
        *,
        epsilon: float,
        account: str | None = None,
        recipe: str = RECIPE,
        options: dict[str, Any] | None = None,
        show: bool = True,
        **preparing: Any,
    ) -> Release:
        """Train on images and wait for the release: prepare, declare, plan, upload, train.

        Repeating the call with the same images and limits reuses the uploaded dataset.

        Args:
            images: A folder or file as for `datasets.push`; uint8 images (n, h, w) or (n, h, w, 3); or a pushed
                dataset, whose account pays.
            labels: For images in memory, (n,) numbers or names. For a folder, a table with the columns file and label.
            account: Name or id of the account that pays. By default the account with the dataset's name, which is
                opened if it does not exist.
            show: Show progress on stderr.
            preparing: Further arguments of `datasets.push`; `at_most` is required.

        Raises:
            ChoiceNeeded: You must decide something; the message names the option. Nothing was done.
            PackingError: The images cannot be pushed. Nothing was done.
            BudgetError: The account cannot pay. Nothing was uploaded.
            JobFailed: The training failed; the message states the reason.
        """
        console = TerminalConsole(stderr=True, quiet=not show)
        if isinstance(images, Dataset):
            dataset = images
        else:
            payment: dict[str, Any] = {"account": account, "epsilon": epsilon, "recipe": recipe, "options": options}
            dataset = push_for(self, console, images, labels, **payment, preparing=preparing)
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
        """Request a training without waiting. Its cost is reserved at once.

        Raise BudgetError if the account cannot pay; its `numbers` hold what it can pay.
        """
        body = {"dataset_id": dataset_id, "recipe": recipe, "epsilon": epsilon, "options": options or {}}
        body["evaluation_dataset_id"] = evaluation_dataset_id
        return self.transport.create(Job, Job.PATH, body, idempotency_key)

    def job(self, job_id: str) -> Job:
        return Job.read(self.transport, job_id)

    def jobs(self) -> Iterator[Job]:
        """Yield all jobs, newest first."""
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
        """Request a hyperparameter search. The cost of all trials is reserved at once, or nothing is.

        Args:
            trials: 2 to 64, each `{"options": {...}}` and optionally its own `"epsilon"`.
            epsilon: Budget of each trial without its own.
            evaluation_dataset_id: Public dataset that compares the releases.

        Raises:
            BudgetError: The account cannot pay for all. `numbers` holds how many trials it can pay for.
        """
        body = {"name": name, "dataset_id": dataset_id, "recipe": recipe, "trials": trials, "epsilon": epsilon}
        body["evaluation_dataset_id"] = evaluation_dataset_id
        return self.transport.create(Sweep, Sweep.PATH, body, idempotency_key)

    def sweep(self, sweep_id: str) -> Sweep:
        """Return a sweep with its trials."""
        return Sweep.read(self.transport, sweep_id)

    def sweeps(self) -> Iterator[Sweep]:
        """Yield all sweeps, newest first."""
        return Sweep.listed(self.transport)

    # --- releases and samples ---

    def release(self, release_id: str) -> Release:
        return Release.read(self.transport, release_id)

    def releases(self) -> Iterator[Release]:
        """Yield all releases, newest first."""
        return Release.listed(self.transport)

    def evaluations(self, release_id: str) -> Iterator[Evaluation]:
        """Yield all evaluations of a release, newest first."""
        return self.transport.pages(Evaluation, f"{Release.PATH}/{release_id}/evaluations")

    def sample(self, sample_id: str) -> Sample:
        return Sample.read(self.transport, sample_id)

    def find_release(self, name_or_id: str) -> Release:
        """Return the release with this id, or the only one with this name; raise NoSuchName otherwise."""
        if name_or_id.startswith("rel_"):
            return self.release(name_or_id)
        return only_one(self.releases(), name_or_id, "release")
