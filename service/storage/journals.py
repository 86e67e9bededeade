"""Journals outside the database: releases of jobs, withdrawals, and accepted uploads.

A job writes a line to its journal after its charge is committed, and before the noise of the release is generated. So
every release is in the journal, and every line of the journal is in the ledger. A ledger that lacks a line was restored
from an old backup. The lines contain only planned numbers.
"""

from __future__ import annotations

import fnmatch
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from service.errors import NotFound
from service.storage.interface import Storage

_SHELF, _SUFFIX = "journals", ".jsonl"
_WITHDRAWN = "withdrawn."  # prefix of the lists of withdrawn subjects
_UPLOADED = "uploaded."  # prefix of the lists of accepted uploads
T = TypeVar("T")


@dataclass(frozen=True)
class Line:
    """One charge: up to `count` releases may exist, which together cost `cost_nano` nano-units of the account."""

    attempt: int
    stage: str
    count: int
    cost_nano: int
    account_id: str


class Journal:
    """The journal of one job, as one of its attempts writes it. The constructor creates the file durably."""

    def __init__(self, storage: Storage, job_id: str, attempt: int, account_id: str) -> None:
        self._storage, self._job_id, self._attempt, self._account_id = storage, job_id, attempt, account_id
        storage.append(f"{_SHELF}/{job_id}{_SUFFIX}", b"")

    def write(self, *, stage: str, count: int, cost_nano: int) -> None:
        """Append a line durably. After an OSError, nothing may be released."""
        line = Line(self._attempt, stage, count, cost_nano, self._account_id)
        _append(self._storage, self._job_id, asdict(line))


def read_journal(storage: Storage, job_id: str) -> list[Line]:
    """Return the lines of a job's journal; empty if the job never charged."""
    return _parsed(_text(storage, job_id), lambda record: Line(**record))


@dataclass(frozen=True)
class Journalled:
    """The totals of a journal: nano-units, releases by stage, and the paying account (None for an empty journal)."""

    cost_nano: int
    counts: Counter[str]
    account_id: str | None


def journalled(storage: Storage, job_id: str) -> Journalled:
    return _added_up(read_journal(storage, job_id))


def all_journalled(storage: Storage) -> dict[str, Journalled]:
    """Return the totals of all journals by job; raise NotFound if one is unreadable: its charges are unknown."""
    texts = _texts(storage, "job_")
    return {job_id: _added_up(_parsed(text, lambda record: Line(**record))) for job_id, text in texts}


def journalled_jobs(storage: Storage) -> list[str]:
    return [name.removesuffix(_SUFFIX) for name in fnmatch.filter(storage.list(_SHELF), f"job_*{_SUFFIX}")]


def note_withdrawn(storage: Storage, account_id: str, numbers: set[int]) -> None:
    """Append withdrawn subjects, by their stored numbers, to an account's journal. Call it before destroying anything.

    The numbers look random to anyone without the installation's secret.
    """
    if missing := numbers - read_withdrawn(storage, account_id):
        _append(storage, f"{_WITHDRAWN}{account_id}", {"withdrawn": sorted(missing)})


def read_withdrawn(storage: Storage, account_id: str) -> set[int]:
    """Return the subject numbers in an account's withdrawal journal."""
    text = _text(storage, f"{_WITHDRAWN}{account_id}")
    return set[int]().union(*_parsed(text, lambda record: [int(number) for number in record["withdrawn"]]))


def accounts_withdrawn_from(storage: Storage) -> list[str]:
    """Return the ids of the accounts with a withdrawal journal."""
    names = fnmatch.filter(storage.list(_SHELF), f"{_WITHDRAWN}*{_SUFFIX}")
    return [name.removeprefix(_WITHDRAWN).removesuffix(_SUFFIX) for name in names]


@dataclass(frozen=True)
class Uploaded:
    """One accepted upload of a private dataset."""

    account_id: str  # that pays for it
    recognised: bool  # whether its subjects are
    check: str | None  # value of their key


def write_uploaded(storage: Storage, dataset_id: str, upload: Uploaded) -> None:
    """Append an accepted upload to its account's list. Call it after the commit. Idempotent."""
    record = {"dataset": dataset_id, "recognised": upload.recognised, "check": upload.check}
    _append(storage, f"{_UPLOADED}{upload.account_id}", record)


def read_uploaded(storage: Storage) -> dict[str, Uploaded]:
    """Return the accepted uploads by dataset; raise NotFound if one of the lists is unreadable."""
    uploads: dict[str, Uploaded] = {}
    for name, text in _texts(storage, _UPLOADED):
        facts = _parsed(text, lambda record: (str(record["dataset"]), record["recognised"], record["check"]))
        for dataset_id, recognised, check in facts:
            uploads[dataset_id] = Uploaded(name.removeprefix(_UPLOADED), recognised, check)
    return uploads


def _append(storage: Storage, name: str, record: dict[str, Any]) -> None:
    # A newline on both sides, so that a line truncated by a crash cannot corrupt the next line.
    storage.append(f"{_SHELF}/{name}{_SUFFIX}", b"\n" + json.dumps(record).encode() + b"\n")


def _parsed(text: bytes, build: Callable[[dict[str, Any]], T]) -> list[T]:
    """Return the records of a list. Ignores lines truncated by a crash, because nothing was released after them."""
    records: list[T] = []
    for line in text.split(b"\n"):
        with suppress(ValueError, TypeError, KeyError):
            records.append(build(json.loads(line)))
    return records


def _text(storage: Storage, name: str) -> bytes:
    with suppress(NotFound):
        return storage.read(_SHELF, f"{name}{_SUFFIX}")
    return b""


def _texts(storage: Storage, prefix: str) -> Iterator[tuple[str, bytes]]:
    for name, text in storage.read_all(_SHELF, prefix).items():
        if name.endswith(_SUFFIX):
            if text is None:
                raise NotFound(f"The journal {name} cannot be read.")
            yield name.removesuffix(_SUFFIX), text


def _added_up(lines: list[Line]) -> Journalled:
    counts = Counter[str]()
    for line in lines:
        counts[line.stage] += line.count
    return Journalled(sum(line.cost_nano for line in lines), counts, lines[0].account_id if lines else None)
