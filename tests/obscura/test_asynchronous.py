"""The client for asyncio: its verbs are those of the synchronous one, and against a running service."""

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import numpy as np
import pytest

import obscura
from obscura import client
from obscura.client import AlreadyTrained, BudgetError, JobFailed, WaitTimeout
from obscura.client.resources import Live
from obscura.preparing import Arrays
from tests.obscura.small import LONG, SMALL, SMALL_DATALENS, two_classes
from tests.pictures import write_folders
from tests.together import wait_until

BLOCKED_SECONDS_MAX = 3.0  # machines that test are busy; what would block takes longer


async def longest_pause(seconds: list[float]) -> None:
    """Write down for ever how long the event loop served nobody."""
    while True:
        began = time.monotonic()
        await asyncio.sleep(0.01)
        seconds.append(time.monotonic() - began)


def begun_and_cancelled(
    data_dir: Path, act: Callable[[obscura.AsyncClient], Coroutine[Any, Any, Any]], done: list[int]
) -> None:
    """Await something until the first of it is done, and no longer."""

    async def program() -> None:
        async with obscura.local_async(data_dir) as asynchronous:
            task = asyncio.create_task(act(asynchronous))
            while not done and not task.done():
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(program())


@pytest.mark.slow
def test_trainings_are_awaited_together_and_block_nobody(service, data_dir):
    async def program() -> None:
        pauses: list[float] = []
        async with obscura.local_async(data_dir) as asynchronous:
            watch = asyncio.create_task(longest_pause(pauses))
            trained = await asyncio.gather(
                *(
                    asynchronous.train(*two_classes(200), epsilon=1, at_most=200, name=name, options=SMALL)
                    for name in ("one", "two")
                )
            )
            watch.cancel()
            accounts = [await asynchronous.accounts.get(name) for name in ("one", "two")]
            assert [each.account_id for each in trained] == [each.id for each in accounts]
        assert max(pauses) < BLOCKED_SECONDS_MAX

    asyncio.run(program())


@pytest.mark.slow
def test_the_verbs_do_what_the_synchronous_ones_do(service, data_dir, images, release, tmp_path):
    async def program() -> None:
        async with obscura.connect_async(service.service.url, service.service.token) as asynchronous:
            found = [each for each in await asynchronous.releases.list() if each.id == release.id]
            assert found == [await asynchronous.releases.get(release.id)]
            (mine,) = found
            assert (mine.name, mine.created_at) == (release.name, release.created_at)
            assert await mine.card() == release.card()
            drawn = await mine.sample(12, seed=5, format="npz")
            assert (await drawn.download(tmp_path / "waited.npz")).stat().st_size > 0
            pixels, _labels = await drawn.to_numpy()
            assert np.array_equal(pixels, release.sample(12, seed=5).to_numpy()[0])
            assert len(await drawn.to_torch()) == 12
            folder = await drawn.to_imagefolder(tmp_path / "made")
            assert len(list(folder.glob("*/*.png"))) == 12
            assert (await (await drawn.wait()).download(tmp_path / "x.npz")).stat().st_size > 0
            assert {path.name for path in await mine.save_weights(tmp_path)} >= {"generator.safetensors"}
            account = await asynchronous.accounts.get("images")
            assert account == await account.refresh()
            dataset = await asynchronous.datasets.get("images")
            with pytest.raises(AlreadyTrained):
                await asynchronous.train(dataset, epsilon=1, options=SMALL)
            with pytest.raises(BudgetError):
                await asynchronous.train(dataset, epsilon=1, options=SMALL, again=True)
            plan = await asynchronous.plan(dataset, recipe="datalens", epsilon=1)
            assert not plan.budget.affordable
            listed = await asynchronous.datasets.list()
            assert [each.id for each in listed] == [each.id for each in service.datasets.list()]

    asyncio.run(program())


@pytest.mark.slow
def test_progress_is_iterated_and_awaiting_is_cancelled(service, data_dir):
    account = service.accounts.create(name="long", owner="clinic", epsilon=2, delta=1e-5, unit="record")
    dataset = service.datasets.push(Arrays(*two_classes(200)), account_id=account.id, at_most=200, name="long")

    async def program() -> str:
        async with obscura.local_async(data_dir) as asynchronous:
            job = await asynchronous.jobs.create(dataset.id, recipe="datalens", epsilon=0.5, options=SMALL_DATALENS)
            events = [event async for event in job.events()]
            assert [event.state for event in events][-1] == "succeeded"
            assert len(events) > 1
            assert all(before != after for before, after in pairwise(events))
            assert (await job.release()).id == events[-1].release_id  # the job was read before there was one
            assert service.jobs.get(job.id).release().id == (await job.release()).id
            assert await job.wait() is job
            assert job.release_id == events[-1].release_id

            long = await asynchronous.jobs.create(dataset.id, recipe="datalens", epsilon=1, options=LONG)
            with pytest.raises(WaitTimeout, match=r"still (queued|running)"):
                await long.wait(timeout_seconds=1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await long.wait()
            return long.id

    async def ending(job_id: str) -> None:
        async with obscura.local_async(data_dir) as asynchronous:
            long = await asynchronous.jobs.get(job_id)
            assert not long.finished  # it goes on until somebody asks it to end
            assert (await long.cancel(discard=True)).cancel_requested
            with pytest.raises(JobFailed, match="cancelled"):
                await long.wait()

    asyncio.run(ending(asyncio.run(program())))  # the first run ends although the job goes on


def test_a_push_that_nobody_awaits_stops_and_leaves_nothing(service, data_dir, tmp_path):
    account = service.accounts.create(name="slow", owner="clinic", epsilon=2, delta=1e-5, unit="record")
    write_folders(tmp_path, {"cat": 100, "dog": 100})
    looked_at: list[int] = []

    def look(count: int) -> None:
        looked_at.append(count)
        time.sleep(0.02)

    facts = {"account_id": account.id, "at_most": 200, "name": "slow", "on_image": look}
    begun_and_cancelled(data_dir, lambda client: client.datasets.push(tmp_path, **facts), looked_at)
    assert 0 < len(looked_at) < 100
    assert "slow" not in {dataset.name for dataset in service.datasets.list()}


def test_an_upload_that_nobody_awaits_stops(service, data_dir):
    account = service.accounts.create(name="broken off", owner="clinic", epsilon=2, delta=1e-5, unit="record")
    dataset = service.datasets.create(
        name="broken off", visibility="private", account_id=account.id, classes=["a", "b"],
        height=8, width=8, channels=1, records_declared=10,
    )  # fmt: skip
    sent: list[int] = []

    def parts() -> Iterator[bytes]:
        for number in range(500):
            sent.append(number)
            time.sleep(0.02)
            yield bytes(1000)

    async def push(client: obscura.AsyncClient) -> None:
        await (await client.datasets.get(dataset.id)).push(parts(), format="npz")

    begun_and_cancelled(data_dir, push, sent)
    assert 0 < len(sent) < 400
    wait_until(lambda: dataset.refresh().state != "receiving", "the service still waits for it")
    assert dataset.refresh().ready_at is None


# --- its verbs --------------------------------------------------------------------------------------------------------


KINDS = [kind for kind in vars(client).values() if inspect.isclass(kind) and issubclass(kind, Live)]
PAIRS = [(kind, getattr(client, f"Async{kind.__name__}")) for kind in KINDS]
NOUNS = get_type_hints(client.AsyncClient)
PAIRS += [(kind, get_origin(NOUNS[noun]) or NOUNS[noun]) for noun, kind in get_type_hints(client.Client).items()]
PAIRS += [(client.Client, client.AsyncClient)]
# `ended` and `packed` are steps of `wait` and `to_imagefolder`.
ONLY_SYNCHRONOUS = {("Job", "ended"), ("Sample", "packed")}


def verbs(kind: type) -> dict[str, object]:
    found = {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}
    inherited = set(dir(Live.__mro__[1]))  # of pydantic's BaseModel
    return {name: one for name, one in found.items() if inspect.isfunction(one) and name not in inherited}


@pytest.mark.parametrize(("sync", "asynchronous"), PAIRS, ids=lambda kind: kind.__name__)
def test_the_verbs_and_their_arguments_are_the_same(sync, asynchronous):
    wanted = {name: verb for name, verb in verbs(sync).items() if (sync.__name__, name) not in ONLY_SYNCHRONOUS}
    found = verbs(asynchronous)
    assert found.keys() == wanted.keys()
    for name, verb in wanted.items():
        key = (sync.__name__, name)
        given = inspect.signature(found[name]).parameters
        asked = inspect.signature(verb).parameters
        assert list(given) == list(asked), key
        for argument, parameter in asked.items():
            assert given[argument].kind == parameter.kind, (key, argument)
            assert given[argument].default == parameter.default, (key, argument)
        assert inspect.iscoroutinefunction(found[name]) or inspect.isasyncgenfunction(found[name]), key


def test_records_have_the_same_fields():
    for sync, asynchronous in PAIRS:
        if issubclass(sync, Live):
            assert asynchronous.model_fields.keys() == sync.model_fields.keys()
            properties = {name for name, value in inspect.getmembers_static(sync) if isinstance(value, property)}
            assert properties - {"_path"} <= {name for name, _ in inspect.getmembers_static(asynchronous)}
