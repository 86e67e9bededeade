"""External services: bounded slots and waiting, a breaker for each, and no limits outside of web requests."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from service import dependencies as external
from service.storage.interface import Storage
from tests.together import wait_until


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=1000.0)


@pytest.fixture
def storage(clock: SimpleNamespace) -> external.Dependency:
    bounds = {"slots": 2, "waiting": 1, "wait_seconds": 30.0, "failures_max": 2, "pause_seconds": 10}
    return external.Dependency("storage", **bounds, clock=lambda: clock.now)


@contextmanager
def held(dependency: external.Dependency, slots: int) -> Iterator[list[object]]:
    tokens = [dependency.enter() for _ in range(slots)]
    yield tokens
    for token in tokens:
        dependency.leave(token, failed=False)


def fail(dependency: external.Dependency) -> None:
    dependency.leave(dependency.enter(), failed=True)


def dependencies_with(storage: external.Dependency) -> external.Dependencies:
    return external.Dependencies(
        storage, external.Dependency("x", slots=1, waiting=0), external.Dependency("y", slots=1, waiting=0)
    )


def in_request(dependencies: external.Dependencies, act: Callable[[], object]) -> None:
    """Do something as a synchronous route of an application does."""

    async def app(_scope: object, _receive: object, _send: object) -> None:
        await anyio.to_thread.run_sync(act)

    async def nothing(*_: object) -> None:
        """Neither receive nor send."""

    anyio.run(external.WebRequests(app, dependencies), {"type": "http"}, nothing, nothing)


def test_one_request_waits_for_a_slot_and_further_ones_are_refused_at_once(storage):
    entered = threading.Event()

    def wait() -> None:
        token = storage.enter()
        entered.set()
        storage.leave(token, failed=False)

    with held(storage, 2):
        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_until(lambda: storage._queued == 1)
        with pytest.raises(external.DependencyBusy, match="maximum number of requests"):
            storage.enter()
        assert not entered.is_set()
    waiting.join()
    assert entered.is_set()


def test_whoever_waits_too_long_for_a_slot_is_refused():
    storage = external.Dependency("storage", slots=1, waiting=1, wait_seconds=0.01)
    with held(storage, 1), pytest.raises(external.DependencyBusy):
        storage.enter()
    storage.leave(storage.enter(), failed=False)


def test_the_breaker_opens_lets_one_through_after_a_pause_and_closes_with_a_success(storage, clock):
    fail(storage)
    assert not storage.is_away()
    fail(storage)
    assert storage.is_away()
    with pytest.raises(external.DependencyBusy, match="does not answer"):
        storage.enter()
    clock.now += 10
    assert not storage.is_away()  # whoever is told so sends the trial request
    trial = storage.enter()
    with pytest.raises(external.DependencyBusy):
        storage.enter()
    storage.leave(trial, failed=True)
    assert storage.is_away()
    clock.now += 10
    storage.leave(storage.enter(), failed=False)
    assert not storage.is_away()
    with held(storage, 2):
        pass


def test_a_trial_that_never_ends_is_followed_by_another(storage, clock):
    fail(storage)
    fail(storage)
    clock.now += 10
    trial = storage.enter()
    clock.now += 10
    storage.leave(storage.enter(), failed=False)
    storage.leave(trial, failed=False)
    assert not storage.is_away()


def test_requests_without_progress_in_all_slots_count_as_a_failure_until_one_goes_on(storage, clock):
    with held(storage, 2) as tokens:
        clock.now += external.SECONDS_MAX + 1
        assert storage.is_away()
        with pytest.raises(external.DependencyBusy, match="does not answer"):
            storage.enter()
        storage.progress(tokens[0])
        assert not storage.is_away()


def test_a_web_request_holds_one_slot_however_deep_and_gives_it_back(storage, clock):
    def act() -> None:
        assert external.in_web_request()
        with pytest.raises(RuntimeError, match="inside calling"):
            external.require_slot("storage")
        with external.calling("storage"), external.calling("storage"):
            external.require_slot("storage")
            assert len(storage._calls) == 1
        with pytest.raises(ZeroDivisionError), external.calling("storage"):
            raise ZeroDivisionError
        assert not storage._calls
        with external.patient(), external.calling("storage"):
            assert not storage._calls

    in_request(dependencies_with(storage), act)
    assert not storage.is_away()


def test_outside_of_web_requests_nothing_is_limited(storage):
    external.require_slot("storage")
    with external.calling("storage"):
        assert not external.in_web_request()
    assert not storage._calls


def test_together_they_leave_threads_to_other_requests():
    made = external.Dependencies()
    held_by_waiting = [each.slots + each.waiting for each in (made.storage, made.provider)]
    assert sum(held_by_waiting) + 8 < 40  # uploads hold up to 8, and anyio has 40


def test_every_verb_of_a_storage_holds_a_slot_but_one_that_uses_this_machines_disk_alone(storage):
    verbs = {name: verb for name, verb in vars(Storage).items() if callable(verb) and not name.startswith("_")}
    assert {name for name, verb in verbs.items() if not hasattr(verb, "__wrapped__")} == {"stage"}
    backend: Any = type("Backend", (Storage,), dict.fromkeys(verbs, lambda _: len(storage._calls)))()
    held: dict[str, int] = {}
    in_request(dependencies_with(storage), lambda: held.update({name: getattr(backend, name)() for name in verbs}))
    assert held == {name: int(name != "stage") for name in verbs}
