"""How a training pays. Each charge is a transaction, committed before the release that it pays for.

What the runners of a job have released stands, in their own words, in its journal: a file beside the database, written
by them alone. A line is on the disk after its charge was committed and before the noise that it pays for is drawn. So
every release stands in the journal, and every line of it in the ledger; a ledger that shows less has lost something, as
one restored from an old backup has. The lines hold planned numbers only.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from privacy.accounting.events import Event
from privacy.errors import BudgetExceeded, EventRefused
from service import ledger
from service.db.session import transaction
from service.errors import HoldExhausted
from service.failpoints import failpoint
from service.private_files import flush_directory
from workers.train.orders import Training


class HeldBudget:
    """The hold of one job, as its recipe sees it (`workers.recipes.interface.Budget`).

    A recipe may only release what its plan announced: an event with other noise or sensitivity is refused.

    It is closed from the start where this attempt is there to publish what was paid for.

    Args:
        training: whose hold was armed by its attempt. Its journal gets a line for every charge before anything is
            released for it.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._journal = Journal(training.settings.data_dir, training.job.id, training.attempt.number)
        self.charged_nano = training.charged_nano
        self.closed = training.job.ended_early is not None

    def close(self) -> None:
        """Refuse every further charge: the training ends early, with what it has."""
        self.closed = True

    def charge(self, event: Event, stage: str) -> None:
        """Pay for `event.count` releases; durable when this returns.

        Raises:
            BudgetExceeded: the hold does not cover the event, or the budget is closed; nothing was charged.
            EventRefused: the plan has no such stage, or announced it with another event.
            StaleAttempt: another attempt has taken over.
            OSError: the journal cannot be written; nothing may be released.
        """
        training, planned = self._training, self._training.plan.stage(stage)
        if planned is None or not planned.announces(event):
            raise EventRefused(stage, event)
        amount_nano = planned.price_of(event.count)
        if self.closed:
            raise BudgetExceeded(amount_nano, 0)
        before_nano = self.charged_nano
        try:
            with transaction(training.factory) as session:
                self.charged_nano = ledger.charge(
                    session,
                    hold_id=training.hold_id,
                    attempt=training.attempt.number,
                    amount_nano=amount_nano,
                    stage=stage,
                    event=event.to_json(),
                    paid_as_whole=planned.paid_as_whole,
                    now=datetime.now(UTC),
                )
                failpoint("charge.before")
        except HoldExhausted as error:
            left_nano = error.numbers.get("left_nano")
            raise BudgetExceeded(amount_nano, left_nano if isinstance(left_nano, int) else 0) from None
        failpoint("charge.after")
        self._journal.write(stage=stage, count=event.count, price_nano=self.charged_nano - before_nano)
        failpoint("journal.after")

    def in_numbers(self) -> dict[str, float]:
        """Return what was charged and what is planned, as reports show it."""
        charged_nano, planned_nano = self.charged_nano, self._training.plan.price_nano
        return {
            "charged_nano": charged_nano,
            "planned_nano": planned_nano,
            "charged_epsilon": self._training.privacy_filter.epsilon_of(charged_nano),
            "planned_epsilon": self._training.privacy_filter.epsilon_of(planned_nano),
        }


FOLDER = "journals"


@dataclass(frozen=True)
class Line:
    """One charge whose releases may exist: `count` of them, for `price_nano` together."""

    attempt: int
    stage: str
    count: int
    price_nano: int


class Journal:
    """The journal of one job, kept open by one attempt.

    Args:
        data_dir: of the service.
        job_id: of the training.
        attempt: that writes.
    """

    def __init__(self, data_dir: Path, job_id: str, attempt: int) -> None:
        path = journal_path(data_dir, job_id)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._attempt = attempt
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        flush_directory(path.parent)

    def write(self, *, stage: str, count: int, price_nano: int) -> None:
        """Append a line; it is on the disk when this returns.

        Raises:
            OSError: the disk is full or failing; nothing may be released.
        """
        line = json.dumps(asdict(Line(self._attempt, stage, count, price_nano))).encode()
        # A newline on both sides: a line that a crash tore apart cannot spoil the next one.
        written = b"\n" + line + b"\n"
        if os.write(self._file, written) != len(written):
            raise OSError("a line of the journal was cut short")
        os.fsync(self._file)

    def close(self) -> None:
        """Give the file back."""
        os.close(self._file)


def journal_path(data_dir: Path, job_id: str) -> Path:
    """Return where the journal of a job lies."""
    return data_dir / FOLDER / f"{job_id}.jsonl"


def read_journal(data_dir: Path, job_id: str) -> Iterator[Line]:
    """Yield the lines of a job's journal; none when it never charged.

    A line that was torn by a crash is passed over: its writer died before anything was released for it.
    """
    try:
        text = journal_path(data_dir, job_id).read_bytes()
    except FileNotFoundError:
        return
    for line in text.split(b"\n"):
        try:
            yield Line(**json.loads(line))
        except (ValueError, TypeError):
            continue


def journalled(data_dir: Path, job_id: str) -> tuple[int, Counter[str]]:
    """Return what a job's releases cost together in nano-units, and how many there are by stage, by its journal."""
    price_nano, counts = 0, Counter[str]()
    for line in read_journal(data_dir, job_id):
        price_nano += line.price_nano
        counts[line.stage] += line.count
    return price_nano, counts


def journalled_jobs(data_dir: Path) -> list[str]:
    """Return the ids of the jobs that have a journal."""
    return sorted(path.stem for path in (data_dir / FOLDER).glob("job_*.jsonl"))
