"""What a process of a service does: `python -m tests.crash.acts ACT GIVEN`, with arguments in JSON.

It does what a runner, supervisor, Celery task or web process does, with the real code, and dies where its
OBSCURA_FAILPOINT says.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from service.db.session import make_engine, make_session_factory
from service.main import create_app
from service.queue import TASK_RUN_JOB
from service.settings import Settings
from tests.workers.tiny_runner import TRAINERS
from workers.supervise.app import make_app
from workers.supervise.attempts import claim_next
from workers.supervise.supervisor import Patience, supervise
from workers.train import runner

LINGER_SECONDS_MAX = 60.0


def attempt(job: str, number: int) -> int:
    """Be the runner of a claimed attempt."""
    given = ["--job", job, "--attempt", str(number), "--supervisor", str(os.getppid())]
    return runner.main(given, trainers=TRAINERS)


def work(command: Sequence[str]) -> None:
    """Be the dispatcher for one training, whose runner `command` starts."""
    settings = Settings()
    factory = make_session_factory(make_engine(settings.database_url))
    claimed = claim_next(settings, factory, kind="train", worker="test", now=datetime.now(UTC))
    assert claimed is not None
    patience = Patience(grace_seconds=20, look_seconds=0.02)
    supervise(settings, factory, claimed, draining=lambda: False, command=command, patience=patience)


def message(job: str) -> None:
    """Be the Celery task for a job."""
    make_app(Settings()).tasks[TASK_RUN_JOB](job)


def request(method: str, path: str, bell: str, linger: bool = False, **sent: Any) -> None:
    """Be the web process for one request; print the answer, and write the jobs that messages are sent for to `bell`.

    With `linger`, stay until somebody was rung for.
    """
    settings, rung = Settings(), Path(bell)

    def send(name: str, args: Sequence[Any]) -> None:
        with rung.open("a") as file:
            file.write(f"{args[0]}\n")

    with TestClient(create_app(settings, send=send)) as client:
        token = settings.admin_key_path.read_text().strip()
        content = Path(sent.pop("file")).read_bytes() if "file" in sent else None
        headers = {"Authorization": f"Bearer {token}"} | sent.pop("headers", {})
        answer = client.request(method, path, headers=headers, content=content, **sent)
        sys.stdout.write(answer.text)
        until = time.monotonic() + LINGER_SECONDS_MAX
        while linger and not rung.exists() and time.monotonic() < until:
            time.sleep(0.01)


ACTS: dict[str, Callable[..., int | None]] = {act.__name__: act for act in (attempt, work, message, request)}


def main() -> int | None:
    act, given = sys.argv[1:]
    return ACTS[act](**json.loads(given))
