"""Collections of a service, such as `service.releases`. Their methods are `create`, `get`, `list` and a few more."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel

from obscura.client.async_resources import AsyncJob, AsyncSample, AsyncSweep, asynchronous, verb
from obscura.client.resources import Dataset, Job, Release, Sample, Sweep
from obscura.client.transport import Named, Transport
from obscura.stopping import in_thread
from obscura.wire.job_schemas import RECIPE_USUAL, RecipeRecord

ONE_PAGE = {"limit": None}

A = TypeVar("A", bound=BaseModel)
R = TypeVar("R", bound=BaseModel)
S = TypeVar("S")


class Collection(Generic[R]):
    """The resources of one kind."""

    record: type[R]
    path: str
    readable = True  # False if the API can only list them
    paged: Mapping[str, None] = {}

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        verbs = [name for name in dir(self) if inspect.ismethod(getattr(self, name)) and not name.startswith("_")]
        return f"<{type(self).__name__} of {self._transport.base_url}: {', '.join(verbs)}>"

    def list(self, *, limit: int | None = None) -> builtins.list[R]:
        """Return all, or the first `limit`. Releases, jobs, datasets and sweeps are sorted by time, newest first."""
        return [*islice(self._transport.pages(self.record, self.path, **self.paged), limit)]

    def get(self, name_or_id: Named) -> R:
        """Return the one with this id or name. Jobs, samples and decisions have only ids.

        Raises:
            NotFoundError: Nothing has this id.
            NoSuchName: Nothing has this name, or several have it.
        """
        return self._transport.find(self.record, self.path, name_or_id, readable=self.readable, **self.paged)

    def _id_of(self, which: Named) -> str:
        return self._transport.id_of(self.record, self.path, which, readable=self.readable, **self.paged)

    def _act(self, answer: type[A], which: Named, verb: str, body: Any = None, *, repeatable: bool = False) -> A:
        """POST to a record, given by itself, its name or its id."""
        return self._transport.post(answer, f"{self.path}/{self._id_of(which)}/{verb}", body, repeatable=repeatable)


class AsyncCollection(Generic[S]):
    """`Collection` for asyncio."""

    def __init__(self, sync: Any) -> None:
        self._sync = sync

    async def list(self, *, limit: int | None = None) -> builtins.list[S]:
        """Return all, or the first `limit`; see `Collection.list`."""
        return [asynchronous(each) for each in await in_thread(self._sync.list, limit=limit)]

    async def get(self, name_or_id: Named) -> S:
        """Return the one with this id or name; see `Collection.get`."""
        return cast(S, asynchronous(await in_thread(self._sync.get, name_or_id)))


class Recipes(Collection[RecipeRecord]):
    """Training algorithms, with their presets, defaults and options."""

    record, path, paged = RecipeRecord, "/v1/recipes", ONE_PAGE


class Jobs(Collection[Job]):
    """Trainings, samplings and evaluations."""

    record, path = Job, Job.PATH

    def create(
        self,
        dataset_id: Named,
        *,
        epsilon: float,
        recipe: str = RECIPE_USUAL,
        options: dict[str, Any] | None = None,
        evaluation_dataset_id: Named | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Request a training without waiting. Its cost is reserved at once. Datasets are records, names or ids.

        Example: `release = service.jobs.create(dataset, epsilon=1).wait().release()`

        Raise BudgetError if the account cannot pay; the error's `numbers` state the affordable budget.
        """
        ids = Dataset.ids(self._transport, dataset_id=dataset_id, evaluation_dataset_id=evaluation_dataset_id)
        body = {**ids, "recipe": recipe, "epsilon": epsilon, "options": options or {}}
        return self._transport.create(Job, self.path, body, idempotency_key)


class Sweeps(Collection[Sweep]):
    """Hyperparameter searches."""

    record, path = Sweep, Sweep.PATH

    def create(
        self,
        dataset_id: Named,
        *,
        name: str,
        trials: Sequence[dict[str, Any]],
        epsilon: float | None = None,
        recipe: str = RECIPE_USUAL,
        evaluation_dataset_id: Named | None = None,
        idempotency_key: str | None = None,
    ) -> Sweep:
        """Request a sweep. The cost of all trials is reserved atomically, or nothing is reserved.

        Example: `service.sweeps.create(dataset, name="budgets", trials=[{"epsilon": 0.5}, {"epsilon": 1}])`

        Args:
            trials: 2 to 64 trials, each `{"options": {...}}` and optionally its own `"epsilon"`.
            epsilon: Budget of each trial that has no epsilon of its own.
            evaluation_dataset_id: Public dataset that compares the releases.

        Raises:
            BudgetError: The account cannot pay for all trials. `numbers` states how many are affordable.
        """
        ids = Dataset.ids(self._transport, dataset_id=dataset_id, evaluation_dataset_id=evaluation_dataset_id)
        body = {**ids, "name": name, "recipe": recipe, "trials": [*trials], "epsilon": epsilon}
        return self._transport.create(Sweep, self.path, body, idempotency_key)


class Releases(Collection[Release]):
    """Published results of trainings. Generating images is free: `service.releases.get("digits").sample(1000)`."""

    record, path = Release, Release.PATH


class Samples:
    """Sets of synthetic images, which `release.sample(1000)` requests."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, sample_id: str) -> Sample:
        """Return the sample with this id."""
        return Sample.read(self._transport, sample_id)


class AsyncJobs(AsyncCollection[AsyncJob]):
    create = verb(Jobs.create, AsyncJob.of)


class AsyncSweeps(AsyncCollection[AsyncSweep]):
    create = verb(Sweeps.create, AsyncSweep.of)


class AsyncSamples:
    def __init__(self, sync: Samples) -> None:
        self._sync = sync

    get = verb(Samples.get, AsyncSample.of)
