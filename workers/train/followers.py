"""The processes of one training, one per GPU of the machine. The runner is rank 0 and starts the others.

Followers (this module's `main`) belong to the runner's process group, so a signal that ends the runner ends them, too.
They start after the hold is armed, and end before anything is evaluated or published. Only the runner accesses the
ledger.

The loss of a process never blocks the training for long. If a follower dies, the runner's next exchange fails or hangs,
and a watch thread ends a runner that does not end by itself. A follower detects the death of its runner by the change
of its parent process.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from obscura.private_files import make_private_folder
from obscura.wire.words import HoldState
from privacy.plans.plan import Recipe
from service import ledger
from service.db.session import open_sessions, transaction
from service.errors import Conflict
from service.logs import get_logger
from service.settings import Settings
from workers.recipes.ranks import meet, object_from_first, part
from workers.recipes.registry import TRAINERS
from workers.supervise.attempts import Attempt, ExitStatus, watch_parent
from workers.train.inputs import open_run, public_parts, read_dataset_key
from workers.train.orders import Context, Training, read_training
from workers.train.process import begin_process, share_cores, trace_of

FOLLOWER_COMMAND = (sys.executable, "-P", "-m", "workers.train.followers")
_LOOK_SECONDS = 0.5
_VERDICT_SECONDS = 10.0  # after a follower's death, the runner must end the training within this time
_FAREWELL_SECONDS = 20.0  # for followers to exit after the training


def processes_wanted(settings: Settings, recipe: Recipe, device: torch.device) -> int:
    """Return how many processes should train together: the configured number, by default one per GPU.

    Returns 1 if the recipe does not support several processes, and never more than the number of GPUs, if any.
    """
    if not recipe.together:
        return 1
    if device.type != "cuda":
        return settings.processes or 1
    gpus = torch.cuda.device_count()
    return min(settings.processes or gpus, gpus)


@contextmanager
def followed(context: Context, processes: int) -> Iterator[torch.device]:
    """Start the other processes, and run the `with` block as rank 0 on the yielded device. The hold must be armed.

    Raise RankLost if a follower died. The training has not failed: another attempt continues it.
    """
    if processes == 1:
        yield context.device
        return
    scratch = context.settings.work_path / context.attempt.job_id
    make_private_folder(scratch)
    meeting = Path(mkdtemp(prefix=f"meeting.{context.attempt.number}.", dir=scratch))  # readable by this user alone
    followers: list[subprocess.Popen[bytes]] = []
    over, device = threading.Event(), torch.device("cuda", 0) if context.device.type == "cuda" else context.device
    watch = threading.Thread(target=_watch, args=(context, followers, over), name="obscura-ranks-watch", daemon=True)
    try:
        for rank in range(1, processes):
            options = {
                "--job": context.attempt.job_id,
                "--attempt": context.attempt.number,
                "--rank": rank,
                "--processes": processes,
                "--meeting": meeting,
                "--runner": os.getpid(),
            }
            command = [*FOLLOWER_COMMAND, *(str(word) for pair in options.items() for word in pair)]
            follower = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # it inherits the runner's environment
            followers.append(follower)
            job_id = context.attempt.job_id
            get_logger(__name__).info("follower_started", job_id=job_id, rank=rank, pid=follower.pid)
        watch.start()
        share_cores(processes)
        meet(0, processes, meeting, device=device, seconds=context.settings.job_seconds_max)
        yield device
        object_from_first(None)  # no process leaves before all have received the data
        part()
        deadline = time.monotonic() + _FAREWELL_SECONDS
        for process in followers:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
    finally:
        for process in followers:
            process.kill()
        for process in followers:
            process.wait()
        part()
        over.set()
        share_cores(1)
        shutil.rmtree(meeting, ignore_errors=True)


def _watch(
    context: Context,
    followers: Sequence[subprocess.Popen[bytes]],
    over: threading.Event,
    look_seconds: float = _LOOK_SECONDS,
    verdict_seconds: float = _VERDICT_SECONDS,
) -> None:
    """End this process if a follower died and the training does not end, for example because an exchange hangs."""
    while not over.wait(look_seconds):
        lost = [process.returncode for process in followers if process.poll()]
        if not lost:
            continue
        get_logger(__name__).warning("follower_lost", job_id=context.attempt.job_id, status=lost[0])
        if not over.wait(verdict_seconds):
            os._exit(ExitStatus.LOST)
        return


class RankZeroOnly:
    """Placeholder for a follower's budget and checkpoints. A recipe that uses it on a follower has a bug."""

    def __getattr__(self, verb: str) -> Any:
        if verb.startswith("__"):
            raise AttributeError(verb)
        raise AssertionError(f"only rank 0 pays and keeps checkpoints: {verb}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Take part in one attempt's training; return the exit status, 0 if the training was completed.

    A follower computes only its share of the computation on private records (`workers.recipes.ranks`). It reads the
    job and the data like the runner, but does not arm the hold, pay, report, save checkpoints or publish.
    """
    parser = argparse.ArgumentParser(prog="python -m workers.train.followers", description="Take part in a training.")
    parser.add_argument("--job", required=True, help="id of the job")
    parser.add_argument("--attempt", required=True, type=int, help="number of the attempt that runs")
    parser.add_argument("--rank", required=True, type=int, help="number of this process, from 1")
    parser.add_argument("--processes", required=True, type=int, help="number of processes that train together")
    parser.add_argument("--meeting", required=True, type=Path, help="folder through which the processes connect")
    parser.add_argument("--runner", required=True, type=int, help="process id of rank 0 (the parent)")
    given = parser.parse_args(arguments)

    settings = begin_process(given.processes)
    stop = threading.Event()
    watch_parent(stop, parent=given.runner, grace_seconds=0.0)
    device = torch.device("cuda", given.rank) if torch.cuda.is_available() else torch.device("cpu")
    with open_sessions(settings.database_url) as factory:
        context = Context(settings, factory, Attempt(given.job, given.attempt), stop, device)
        training = read_armed_training(context)
        dataset_key = read_dataset_key(context, training.dataset)
    meet(given.rank, given.processes, given.meeting, device=device, seconds=settings.job_seconds_max)
    public = public_parts(context, training.plan, training.anchors)
    none: Any = RankZeroOnly()
    run = open_run(context, training, dataset_key, public, none, lambda **_: None)
    TRAINERS[training.plan.recipe](replace(run, checkpoints=none))
    object_from_first(None)  # the runner's final message
    part()
    return 0


def read_armed_training(context: Context) -> Training:
    """Read the training; raise Conflict unless its hold is armed, because private data must not be read before."""
    with transaction(context.factory, read_only=True) as session:
        training = read_training(session, context.attempt)
        if ledger.get_hold(session, training.hold_id).state is not HoldState.ARMED:
            raise Conflict("The hold of this training is not armed.", job_id=context.attempt.job_id)
    return training


if __name__ == "__main__":
    try:
        status = main()
    except Exception as error:
        sys.stderr.write(trace_of(error) + "\n")
        sys.stderr.flush()
        os._exit(1)  # exit at once: an orderly exit may hang in a process group that has lost a member
    sys.exit(status)
