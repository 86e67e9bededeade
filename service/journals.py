"""Journals: what the runners of a job have released, in their own words, in files beside the database.

A line is on the disk after its charge was committed and before the noise that it pays for is drawn. So every release
stands in the journal, and every line of it in the ledger; a ledger that shows less has lost something, as one restored
from an old backup has. The lines hold planned numbers only.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from obscura.private_files import flush_directory

FOLDER = "journals"


@dataclass(frozen=True)
class Line:
    """One charge whose releases may exist: `count` of them, for `price_nano` of the account's budget together.

    Lines from before they named an account have none.
    """

    attempt: int
    stage: str
    count: int
    price_nano: int
    account_id: str | None = None


class Journal:
    """The journal of one job, kept open by one attempt.

    Args:
        data_dir: of the service.
        job_id: of the training.
        attempt: that writes.
        account_id: that pays.
    """

    def __init__(self, data_dir: Path, job_id: str, attempt: int, account_id: str | None = None) -> None:
        path = journal_path(data_dir, job_id)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._attempt, self._account_id = attempt, account_id
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        flush_directory(path.parent)

    def write(self, *, stage: str, count: int, price_nano: int) -> None:
        """Append a line; it is on the disk when this returns.

        Raises:
            OSError: the disk is full or failing; nothing may be released.
        """
        line = json.dumps(asdict(Line(self._attempt, stage, count, price_nano, self._account_id))).encode()
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
