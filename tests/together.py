"""Doing several things at the same moment or in another process, and waiting for what others do."""

import pickle
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

PATIENCE_SECONDS = 60.0


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """Do everything at the same moment, each in a thread; returns what each returned or raised, in their order."""
    start = threading.Barrier(len(acts))

    def run(act: Callable[[], Any]) -> Any:
        start.wait(PATIENCE_SECONDS)
        try:
            return act()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(run, acts, timeout=2 * PATIENCE_SECONDS))


def ready(client: Any) -> dict[str, Any]:
    """Wait until a service can serve, and return what its readiness says; a busy machine makes it say 503 first."""
    answers: list[Any] = []

    def is_ready() -> bool:
        answers.append(client.get("/v1/health/ready"))
        return bool(answers[-1].status_code == 200)

    wait_until(is_ready, "the service did not become ready", seconds=4 * PATIENCE_SECONDS)
    return dict(answers[-1].json())


def wait_until(
    condition: Callable[[], Any], why: str = "it did not happen", *, seconds: float = PATIENCE_SECONDS
) -> None:
    """Look again and again; fails when the time is over."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, why
        time.sleep(0.02)


def status_of(warm: str, act: Callable[..., None], *given: Any) -> int:
    """Call a function of a module in a process of its own, by the fixture `warm`, and return the exit status."""
    code = "import pickle, sys; act, given = pickle.loads(bytes.fromhex(sys.argv[1])); act(*given)"
    return subprocess.run([warm, "-c", code, pickle.dumps((act, given)).hex()], check=False).returncode
