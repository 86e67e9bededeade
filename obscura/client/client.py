"""The verbs: open accounts, declare and push, plan, train, sample, download."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from rich.console import Console

from obscura.client.accounts import AccountClient
from obscura.client.holdings import Dataset
from obscura.client.one_step import Labels, Pictures, push_for
from obscura.client.progress import job_progress
from obscura.client.resources import Evaluation, Job, Preview, Release, Sample, Sweep
from obscura.client.transport import Transport
from obscura.wire import job_schemas, recipe_schemas

RECIPE = "moments"  # where none is named


class Client(AccountClient):
    """A connection to an Obscura service.

    Args:
        base_url: For example `http://127.0.0.1:8420`.
        token: An API key.
        transport: Replaces the connection, for tests.
    """

    def __init__(self, base_url: str, token: str | None, *, transport: Transport | None = None) -> None:
        super().__init__(transport or Transport(base_url, token))

    # --- recipes, plans, jobs and sweeps ---

    def recipes(self) -> list[recipe_schemas.RecipeRecord]:
        """What this service can train, and with which options."""
        return list(self._get(recipe_schemas.RecipeList, "/v1/recipes").items)

    def recipe(self, name: str) -> recipe_schemas.RecipeRecord:
        """Read a recipe: presets, defaults and the JSON Schema of its options."""
        return self._get(recipe_schemas.RecipeRecord, f"/v1/recipes/{quote(name, safe='')}")

    def plan(
        self, dataset_id: str, *, recipe: str, epsilon: float, options: dict[str, Any] | None = None
    ) -> job_schemas.PlanRecord:
        """What a training would do and cost. No data is touched."""
        body = {"dataset_id": dataset_id, "recipe": recipe, "epsilon": epsilon, "options": options or {}}
        return self._repeat(job_schemas.PlanRecord, "/v1/plans", body)

    def preview(
        self,
        dataset_id: str,
        *,
        recipe: str,
        epsilon: float,
        options: dict[str, Any] | None = None,
        stand_in_dataset_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Preview:
        """Ask what a training would make, tried on public images; `wait()` for the forecast. It costs nothing."""
        body = {"dataset_id": dataset_id, "recipe": recipe, "epsilon": epsilon, "options": options or {}}
        body["stand_in_dataset_id"] = stand_in_dataset_id
        return Preview.bound(self.transport, self.transport.create(Preview.PATH, body, idempotency_key))

    def train(
        self,
        pictures: Pictures,
        labels: Labels = None,
        *,
        epsilon: float,
        account: str | None = None,
        recipe: str = RECIPE,
        options: dict[str, Any] | None = None,
        show: bool = True,
        **preparing: Any,
    ) -> Release:
        """From pictures to a release: prepare, declare and send them, train, and wait.

        Args:
            pictures: A folder or file as for `datasets.push`; uint8 images (n, h, w) or (n, h, w, 3); or a dataset that
                has been pushed, whose account pays.
            labels: Of images in memory, (n,): numbers or names. Of a folder, a table with the columns file and label.
            epsilon: What this training may spend.
            account: Name or id of the account that pays. Without it, one that is named like the dataset, which is
                opened where it is missing (`obscura.client.one_step.account_for`).
            recipe: How it is trained.
            options: Of the recipe.
            show: Show on stderr what goes on.
            preparing: Further arguments of `datasets.push`: `at_most=2000`, which is needed, `size=64`, ...

        Raises:
            ChoiceNeeded: The layout needs a choice that was not made; the message names it. Nothing was done.
            PackingError: The pictures cannot be pushed as they are. Nothing was done.
            BudgetError: The account cannot pay. What was pushed stays, and can be trained on for less.
            JobFailed: The training failed; the message says why.
        """
        console = Console(stderr=True, quiet=not show)
        if isinstance(pictures, Dataset):
            dataset = pictures
        else:
            dataset = push_for(self, console, pictures, labels, account=account, epsilon=epsilon, preparing=preparing)
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
        """Ask for a training and do not wait for it; its price is held on the account at once.

        Raises:
            BudgetError: The account cannot pay. `numbers` says what it could pay.
        """
        body = {"dataset_id": dataset_id, "recipe": recipe, "epsilon": epsilon, "options": options or {}}
        body["evaluation_dataset_id"] = evaluation_dataset_id
        return Job.bound(self.transport, self.transport.create(Job.PATH, body, idempotency_key))

    def job(self, job_id: str) -> Job:
        """Read a job."""
        return Job.read(self.transport, job_id)

    def jobs(self) -> Iterator[Job]:
        """All jobs, newest first."""
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
        """Ask for a hyper-parameter search; the price of all trials is held at once, or nothing is.

        Args:
            dataset_id: To train on.
            name: For people.
            recipe: Of every trial.
            trials: 2 to 64, each `{"options": {...}}` and, where it differs from the others, `"epsilon"`.
            epsilon: Of each trial that names none.
            evaluation_dataset_id: A public dataset to compare the releases on.
            idempotency_key: The same key and request give the same sweep.

        Raises:
            BudgetError: The account cannot pay for all. `numbers` says how many trials it could pay for.
        """
        body = {"name": name, "dataset_id": dataset_id, "recipe": recipe, "trials": trials, "epsilon": epsilon}
        body["evaluation_dataset_id"] = evaluation_dataset_id
        return Sweep.bound(self.transport, self.transport.create(Sweep.PATH, body, idempotency_key))

    def sweep(self, sweep_id: str) -> Sweep:
        """Read a sweep with its trials."""
        return Sweep.read(self.transport, sweep_id)

    def sweeps(self) -> Iterator[Sweep]:
        """All sweeps, newest first."""
        return Sweep.listed(self.transport)

    # --- releases and samples ---

    def release(self, release_id: str) -> Release:
        """Read a release."""
        return Release.read(self.transport, release_id)

    def releases(self) -> Iterator[Release]:
        """All releases, newest first."""
        return Release.listed(self.transport)

    def evaluations(self, release_id: str) -> Iterator[Evaluation]:
        """All evaluations of a release, newest first."""
        return Evaluation.of_release(self.transport, release_id)

    def sample(self, sample_id: str) -> Sample:
        """Read a sample."""
        return Sample.read(self.transport, sample_id)
