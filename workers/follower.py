"""One more process of a training, started by its runner: `python -m workers.follower --job ID --attempt N ...`.

It computes its share of what looks at private records (`workers.recipes.ranks`) and nothing else: it reads the order
and the data as the runner does, and neither arms, pays, reports, keeps checkpoints nor publishes.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import torch

from service import ledger
from service.db.session import make_engine, make_session_factory, transaction
from service.errors import Conflict
from service.logs import configure_logging
from service.settings import Settings
from workers.claims import Attempt
from workers.context import Context
from workers.memory import keep_freed_memory
from workers.ordered_training import public_parts, train_as_ordered
from workers.orders import Order, read_order
from workers.parents import watch_parent
from workers.ranks import device_of, share_cores
from workers.recipes.ranks import meet, object_from_first, part
from workers.recipes.registry import TRAINERS
from workers.traces import keep_values_out, trace_of

if TYPE_CHECKING:
    from privacy.accounting.events import Event

_FAILED = 1


class RunnersBusiness:
    """The budget and the checkpoints of a process that has neither. To be asked for them is a mistake of the recipe."""

    def charge(self, event: Event, stage: str) -> None:  # noqa: ARG002 - the protocol's
        """Refuse."""
        raise AssertionError("only rank 0 pays")

    def replace(self, write: Callable[[BinaryIO], None]) -> None:  # noqa: ARG002 - the protocol's
        """Refuse."""
        raise AssertionError("only rank 0 keeps checkpoints")

    def open(self) -> BinaryIO | None:
        """Refuse."""
        raise AssertionError("only rank 0 reads checkpoints")


def main(arguments: Sequence[str] | None = None) -> int:
    """Take part in one attempt's training; returns the exit status, 0 when the training came to its end."""
    parser = argparse.ArgumentParser(prog="python -m workers.follower", description="Take part in a training.")
    parser.add_argument("--job", required=True, help="id of the job")
    parser.add_argument("--attempt", required=True, type=int, help="number of the attempt that runs")
    parser.add_argument("--rank", required=True, type=int, help="number of this process, from 1")
    parser.add_argument("--processes", required=True, type=int, help="how many train together")
    parser.add_argument("--meeting", required=True, type=Path, help="folder by which they find each other")
    parser.add_argument("--runner", required=True, type=int, help="process that is rank 0 (the parent)")
    given = parser.parse_args(arguments)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service, which then tells its runners
    settings = Settings()
    configure_logging(settings.log_level)
    keep_values_out()
    stop = threading.Event()
    watch_parent(stop, parent=given.runner, grace_seconds=0.0)
    share_cores(given.processes)
    keep_freed_memory()
    device = device_of(given.rank, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    engine = make_engine(settings.database_url, pool_size=1)
    context = Context(
        settings, make_session_factory(engine), Attempt(given.job, given.attempt), stop=stop, device=device
    )
    try:
        order = read_armed_order(context)
    finally:
        engine.dispose()
    meet(given.rank, given.processes, given.meeting, device=device, seconds=settings.job_seconds_max)
    train_as_ordered(
        context,
        order,
        TRAINERS[order.plan.recipe],
        public_parts(settings, order),
        budget=RunnersBusiness(),
        progress=_say_nothing,
        checkpoints=lambda _key: RunnersBusiness(),
        device=device,
    )
    object_from_first(None)  # the runner's farewell
    part()
    return 0


def read_armed_order(context: Context) -> Order:
    """Read what the runner reads, and see that it has armed.

    Raises:
        Conflict: the hold is not armed: no private data may be read (I4).
        StaleAttempt: another attempt has taken over.
        NotFound: the dataset's content is gone.
    """
    order = read_order(context, context.attempt.job_id)
    with transaction(context.factory, read_only=True) as session:
        if ledger.get_hold(session, order.hold_id).state is not ledger.HoldState.ARMED:
            raise Conflict("The hold of this training is not armed.", job_id=context.attempt.job_id)
    return order


def _say_nothing(*, stage: str, step: int, steps: int) -> None:
    """Report nothing: the runner does."""


if __name__ == "__main__":
    try:
        status = main()
    except Exception as error:
        sys.stderr.write(trace_of(error) + "\n")
        sys.stderr.flush()
        os._exit(_FAILED)  # at once: a process group that has lost somebody may keep an orderly exit waiting
    sys.exit(status)
