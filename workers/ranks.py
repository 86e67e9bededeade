"""The processes of one training, one for each GPU of the machine: the runner is rank 0 and starts the others.

Followers (`workers.follower`) live in the runner's process group, so whoever ends the runner ends them. They are
started after arming and are gone before anything is evaluated or published. The runner alone talks to the ledger.

Whoever is lost, nobody waits for long. A follower that died makes the runner's next exchange fail, or never end; a
thread here looks after the followers, and takes the runner out when it does not come to an end by itself. A follower
whose runner died sees that its parent has changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

import torch

from service.logs import get_logger
from service.settings import Settings
from workers.context import Context
from workers.exits import ExitStatus
from workers.recipes.interface import Trainer
from workers.recipes.ranks import meet, object_from_first, part
from workers.recipes.registry import TOGETHER
from workers.supervisor import runner_environment

FOLLOWER_COMMAND = (sys.executable, "-m", "workers.follower")
_LOOK_SECONDS = 0.5
_VERDICT_SECONDS = 10.0  # from a follower's death until the runner must have ended the training itself
_FAREWELL_SECONDS = 20.0  # for followers to leave after the training


def processes_wanted(settings: Settings, trainer: Trainer, device: torch.device) -> int:
    """Return how many processes should train together: as many as were set, by default one for each GPU.

    One where the recipe is not made for several, and never more than there are GPUs, where there are any.
    """
    if trainer not in TOGETHER:
        return 1
    if device.type != "cuda":
        return settings.processes or 1
    gpus = torch.cuda.device_count()
    return min(settings.processes or gpus, gpus)


def device_of(rank: int, device: torch.device) -> torch.device:
    """Return the device of one rank, where `device` is the kind that the runner trains on."""
    return torch.device("cuda", rank) if device.type == "cuda" else device


def share_cores(processes: int) -> None:
    """Give this process its part of the cores, unless the environment says how many threads it should have."""
    if "OMP_NUM_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores // processes))


@contextmanager
def followed(context: Context, processes: int, work: Path) -> Iterator[torch.device]:
    """Let the training in the block be that of rank 0 of so many processes, on the device that it is given.

    Args:
        context: of the attempt, whose hold is armed.
        processes: from `processes_wanted`.
        work: the job's work folder. The processes find each other by a file in a new folder there.

    Raises:
        RankLost: a follower died. No error of this training, and no verdict about it: another attempt goes on.
    """
    if processes == 1:
        yield context.device
        return
    meeting = Path(mkdtemp(prefix=f"meeting.{context.attempt.number}.", dir=work))  # readable by this user alone
    followers: list[subprocess.Popen[bytes]] = []
    over, device = threading.Event(), device_of(0, context.device)
    watch = threading.Thread(target=_watch, args=(context, followers, over), name="obscura-ranks-watch", daemon=True)
    try:
        for rank in range(1, processes):
            followers.append(_start(context, rank, processes, meeting))
        watch.start()
        share_cores(processes)
        meet(0, processes, meeting, device=device, seconds=context.settings.job_seconds_max)
        yield device
        object_from_first(None)  # nobody leaves before everybody has what was sent
        part()
        _await(followers, _FAREWELL_SECONDS)
    finally:
        _end(followers)
        part()
        over.set()
        share_cores(1)
        shutil.rmtree(meeting, ignore_errors=True)


def _start(context: Context, rank: int, processes: int, meeting: Path) -> subprocess.Popen[bytes]:
    attempt = context.attempt
    given = {
        "--job": attempt.job_id,
        "--attempt": attempt.number,
        "--rank": rank,
        "--processes": processes,
        "--meeting": meeting,
        "--runner": os.getpid(),
    }
    process = subprocess.Popen(
        [*FOLLOWER_COMMAND, *(str(word) for pair in given.items() for word in pair)],
        env=runner_environment(context.settings, os.environ),
        stdin=subprocess.DEVNULL,
    )
    get_logger(__name__).info("follower_started", job_id=attempt.job_id, rank=rank, pid=process.pid)
    return process


def _watch(context: Context, followers: Sequence[subprocess.Popen[bytes]], over: threading.Event) -> None:
    """Take this process out when a follower died and the training does not end for it, as where an exchange hangs."""
    while not over.wait(_LOOK_SECONDS):
        lost = [process.returncode for process in followers if process.poll()]
        if not lost:
            continue
        get_logger(__name__).warning("follower_lost", job_id=context.attempt.job_id, status=lost[0])
        if not over.wait(_VERDICT_SECONDS):
            os._exit(ExitStatus.LOST)
        return


def _await(followers: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in followers:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(0.0, deadline - time.monotonic()))


def _end(followers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Leave no follower behind. They keep nothing, so there is nothing to wait for."""
    for process in followers:
        process.kill()
    for process in followers:
        process.wait()
