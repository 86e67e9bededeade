"""Journals: what the runners of a job have released, in their own words, in files beside the database.

A line is on the disk after its charge was committed and before the noise that it pays for is drawn. So every release
stands in the journal, and every line of it in the ledger; a ledger that shows less has lost something, as one restored
from an old backup has. The lines hold planned numbers only. Beside them stands who has withdrawn from an account.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass

from service.errors import NotFound
from service.storage.interface import Storage

_SHELF, _SUFFIX = "journals", ".jsonl"
_WITHDRAWN = "withdrawn."  # begins the names of lists of who has withdrawn
_UPLOADED = "uploaded."  # begins the names of lists of accepted uploads


@dataclass(frozen=True)
class Line:
    """One charge whose releases may exist: `count` of them, for `price_nano` of the account's budget together."""

    attempt: int
    stage: str
    count: int
    price_nano: int
    account_id: str


class Journal:
    """The journal of one job, written by one attempt. It is there, durably, once this was made.

    Args:
        attempt: that writes.
        account_id: that pays.
    """

    def __init__(self, storage: Storage, job_id: str, attempt: int, account_id: str) -> None:
        self._storage, self._key = storage, f"{_SHELF}/{job_id}{_SUFFIX}"
        self._attempt, self._account_id = attempt, account_id
        storage.append(self._key, b"")

    def write(self, *, stage: str, count: int, price_nano: int) -> None:
        """Append a line; it is on the disk when this returns.

        Raises:
            OSError: the disk is full or failing; nothing may be released.
        """
        line = json.dumps(asdict(Line(self._attempt, stage, count, price_nano, self._account_id))).encode()
        # A newline on both sides: a line that a crash tore apart cannot spoil the next one.
        self._storage.append(self._key, b"\n" + line + b"\n")


def read_journal(storage: Storage, job_id: str) -> Iterator[Line]:
    """Yield the lines of a job's journal; none when it never charged.

    A line that was torn by a crash is passed over: its writer died before anything was released for it.
    """
    try:
        yield from _lines(storage.read(_SHELF, f"{job_id}{_SUFFIX}"))
    except NotFound:
        return


def _lines(text: bytes) -> Iterator[Line]:
    for line in text.split(b"\n"):
        with suppress(ValueError, TypeError):
            yield Line(**json.loads(line))


@dataclass(frozen=True)
class Journalled:
    """The sum of a journal: nano-units, releases by stage, and the account that pays (None in an empty journal)."""

    price_nano: int
    counts: Counter[str]
    account_id: str | None


def journalled(storage: Storage, job_id: str) -> Journalled:
    """Add up the lines of a job's journal."""
    return _added_up(list(read_journal(storage, job_id)))


def all_journalled(storage: Storage) -> dict[str, Journalled]:
    """Add up the lines of every job's journal, by job.

    Raises:
        NotFound: one cannot be read, so what its job charged is not known.
    """
    return {job_id: _added_up(list(_lines(text))) for job_id, text in _texts(storage, "job_")}


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
    own = next((line.account_id for line in lines), None)
    return Journalled(sum(line.price_nano for line in lines), counts, own)


def write_withdrawn(storage: Storage, account_id: str, numbers: Iterable[int]) -> None:
    """Note who withdraws from an account, by their stored numbers: random to whoever lacks the installation's secret.

    Durable before anything is destroyed, so a database that was restored from a backup of before is told.

    Raises:
        OSError: the disk is full or failing.
    """
    line = json.dumps({"withdrawn": sorted(numbers)}).encode()
    storage.append(f"{_SHELF}/{_WITHDRAWN}{account_id}{_SUFFIX}", b"\n" + line + b"\n")


def read_withdrawn(storage: Storage, account_id: str) -> set[int]:
    """Return the numbers of those who were noted as having withdrawn from an account."""
    try:
        text = storage.read(_SHELF, f"{_WITHDRAWN}{account_id}{_SUFFIX}")
    except NotFound:
        return set()
    found: set[int] = set()
    for line in text.split(b"\n"):
        with suppress(ValueError, TypeError, KeyError):  # torn by a crash: it is written again
            found.update(int(number) for number in json.loads(line)["withdrawn"])
    return found


def accounts_withdrawn_from(storage: Storage) -> list[str]:
    """Return the ids of the accounts from which somebody was noted as having withdrawn."""
    names = (name for name in storage.list(_SHELF) if name.startswith(_WITHDRAWN) and name.endswith(_SUFFIX))
    return [name.removeprefix(_WITHDRAWN).removesuffix(_SUFFIX) for name in names]


@dataclass(frozen=True)
class Uploaded:
    """One accepted upload of a private dataset: the account that pays for it, and whether its subjects are recognised,
    under a key with which check value.
    """

    account_id: str
    recognised: bool
    check: str | None


def write_uploaded(storage: Storage, dataset_id: str, upload: Uploaded) -> None:
    """Append that an upload was accepted. Call it after the commit; idempotent.

    Raises:
        OSError: the disk is full or failing.
    """
    line = json.dumps({"dataset": dataset_id, "recognised": upload.recognised, "check": upload.check}).encode()
    storage.append(f"{_SHELF}/{_UPLOADED}{upload.account_id}{_SUFFIX}", b"\n" + line + b"\n")


def read_uploaded(storage: Storage) -> dict[str, Uploaded]:
    """Return the accepted uploads by dataset.

    Raises:
        NotFound: one of their lists cannot be read.
    """
    found: dict[str, Uploaded] = {}
    for name, text in _texts(storage, _UPLOADED):
        for line in text.split(b"\n"):
            with suppress(ValueError, TypeError, KeyError):  # torn by a crash: the next start writes it again
                said = json.loads(line)
                found[str(said["dataset"])] = Uploaded(name.removeprefix(_UPLOADED), said["recognised"], said["check"])
    return found


def journalled_jobs(storage: Storage) -> list[str]:
    """Return the ids of the jobs that have a journal."""
    names = storage.list(_SHELF)
    return [name.removesuffix(_SUFFIX) for name in names if name.startswith("job_") and name.endswith(_SUFFIX)]
