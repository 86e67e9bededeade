"""A database and single calls of production code on it: alone, crashing, or beside another call."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import Engine, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service import jobs, ledger
from service.audit.signing import SigningKey, make_signing_key
from service.db.session import SessionFactory, make_session_factory, transaction
from service.errors import ObscuraError
from service.identity import decisions
from service.jobs import kinds
from service.settings import Settings
from tests.service.ledger.model_jobs import LEASE_SECONDS
from tests.service.steps import hold_amount
from tests.together import at_once
from workers.supervise.attempts import Attempt, drop_lease

KEY = SigningKey(Ed25519PrivateKey.generate())
OF_LEDGER = frozenset(
    {"hold", "fence", "arm", "charge", "capture", "return_hold", "settle", "lower_limit"}
    | {"set_frozen", "request_raise"}
)


class Crash(Exception):
    """The process dies here, without a commit."""


@dataclass(frozen=True)
class Command:
    """A call of a production function, which may be repeated at any time."""

    name: str
    args: dict[str, Any]


Outcome = tuple[str, Any]  # ("ok", what was returned), ("refused", code), ("crashed", None), ("broken", type)


@dataclass
class Place:
    """A database that is used by one example after another.

    Args:
        engine: of a migrated database.
        settings: for the reconciler.
        empty: removes every row.
    """

    engine: Engine
    settings: Settings
    empty: Callable[[Engine], None]
    factory: SessionFactory = field(init=False)
    fuse: threading.local = field(init=False, default_factory=threading.local)

    def __post_init__(self) -> None:
        self.factory = make_session_factory(self.engine)
        (self.settings.keys_path / "datasets").mkdir(parents=True, exist_ok=True)
        make_signing_key(self.settings.ledger_key_path)  # else jobs wait for the disk of the keys

        @event.listens_for(self.engine, "before_cursor_execute")
        def burn(*_: Any) -> None:
            left = getattr(self.fuse, "left", None)
            if left is not None:
                if left == 0:
                    raise Crash
                self.fuse.left = left - 1

    @contextmanager
    def dying_after(self, statements: int | None) -> Iterator[None]:
        """Make this thread crash after a number of statements; None: never."""
        self.fuse.left = statements
        try:
            yield
        finally:
            self.fuse.left = None

    def run(self, command: Command, now: datetime, *, crash_after: int | None = None) -> Outcome:
        """Run a command in a transaction of its own; a crash comes before the commit at the latest."""
        try:
            with self.dying_after(crash_after), transaction(self.factory) as session:
                value = perform(session, command, now)
                if crash_after is not None:
                    raise Crash
        except Crash:
            return "crashed", None
        except ObscuraError as error:
            return "refused", error.code
        except SQLAlchemyError as error:
            return "broken", f"{type(error).__name__}: {error}"
        return "ok", value

    def run_together(self, commands: list[Command], now: datetime) -> list[Outcome]:
        """Run commands at once, each in a thread of its own."""
        ends = at_once(*(partial(self.run, command, now) for command in commands))
        return [("broken", repr(end)) if isinstance(end, Exception) else end for end in ends]


def perform(session: Session, command: Command, now: datetime) -> Any:
    """Call the production function that a command names, and return a value to compare with the model."""
    name, args = command.name, command.args
    if name in OF_LEDGER:
        acts = ledger.limits if hasattr(ledger.limits, name) else ledger
        step = hold_amount if name == "hold" else getattr(acts, name)
        value = step(session, **args, now=now)
        return value.id if name in ("hold", "request_raise") else value if name == "charge" else None
    if name in ("approve_raise", "decline_raise"):
        approved = name == "approve_raise"
        decisions.decide(session, **args, now=now, effects=ledger.limits.LIMIT_EFFECTS, approved=approved)
        return None
    if name in ("submit_training", "submit_sample"):
        kind = {"submit_training": "train", "submit_sample": "sample"}[name]
        job = jobs.submit(session, jobs.KINDS[kind], **args, now=now)
        return job.id, job.hold_id
    if name == "claim":
        attempt = jobs.claim(session, **args, now=now, lease_seconds=LEASE_SECONDS)
        return None if attempt is None else (args["job_id"], attempt)
    if name == "heartbeat":
        return jobs.heartbeat(session, **args, now=now, lease_seconds=LEASE_SECONDS)
    if name == "drop_lease":
        return drop_lease(session, Attempt(args["job_id"], args["attempt"]), now=now)
    if name == "secret_of":
        jobs.secret_of(session, **args)
        return None
    if name == "report_progress":
        return jobs.report_progress(session, **args)
    if name == "finish_sample":
        kinds.sample.KIND.finish(session, **args, now=now)
        return None
    if name == "publish":
        args = {**args, "key": KEY}
    getattr(jobs, name)(session, **args, now=now)
    return None
