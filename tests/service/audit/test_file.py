"""Changed bytes of the SQLite file are found: in rows, headers and indexes."""

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from sqlalchemy.exc import DBAPIError

from service.audit.findings import Finding, FindingCode
from service.db.session import make_engine, make_session_factory, open_sessions
from service.inspection import inspect_at_start, inspect_ledger
from service.settings import Settings
from tests.conftest import NOW
from tests.service.audit.book import LedgerBook

TABLES = ("entries", "accounts", "holds")
FLIPS = 25  # of each kind
Rows = dict[tuple[str, ...], tuple[bytes, ...]]


class LedgerFile:
    """A ledger in a file that is not open.

    Args:
        path: of the database.
        data_dir: of the service.
    """

    def __init__(self, path: Path, data_dir: Path) -> None:
        self.path, self.content = path, path.read_bytes()
        self.settings = Settings(data_dir=data_dir, database_url=f"sqlite:///{path}")
        self.factory = make_session_factory(make_engine(self.settings.database_url))
        self.columns: dict[str, list[str]] = {}
        self.rows = self.read() or {}
        with sqlite3.connect(path) as connection:
            self.page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
            self.roots = dict(
                connection.execute("SELECT name, rootpage FROM sqlite_master WHERE rootpage > 0").fetchall()
            )

    def read(self) -> Rows | None:
        """Return the rows of the tables as SQL literals, by table and key; None if they cannot be read."""
        connection = sqlite3.connect(self.path)
        connection.text_factory = bytes
        rows: Rows = {}
        try:
            for table in TABLES:
                columns = [name.decode() for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
                self.columns[table] = columns
                key = "account_id, sequence" if table == "entries" else "id, 0"
                spelt = ", ".join(f"quote({name})" for name in columns)
                for row in connection.execute(f"SELECT {key}, {spelt} FROM {table} NOT INDEXED"):
                    rows[table, str(row[0], "utf-8", "replace"), str(row[1])] = row[2:]
            return rows
        except (sqlite3.DatabaseError, TypeError):
            return None
        finally:
            connection.close()

    def flip(self, offset: int, mask: int) -> None:
        raw = bytearray(self.content)
        raw[offset] ^= mask
        self.path.write_bytes(raw)

    def find(self, value: bytes, tree: str) -> int:
        """Return the offset at which a tree of the file first holds a value."""
        for page in self.pages(self.roots[tree]):
            start = (page - 1) * self.page_bytes
            at = self.content.find(value, start, start + self.page_bytes)
            if at >= 0:
                return at
        raise AssertionError(f"{tree} does not hold {value!r}")

    def findings(self) -> tuple[Finding, ...] | None:
        """Verify as `obscura ledger verify` does; None if the file is too broken."""
        try:
            return inspect_ledger(self.settings, self.factory, thorough=True).findings
        except DBAPIError:
            return None
        finally:
            self.factory.kw["bind"].dispose()  # whoever reads next opens the file anew

    def pages(self, root: int) -> Iterator[int]:
        """Yield the page numbers of a tree of the file."""
        yield root
        page = self.content[(root - 1) * self.page_bytes : root * self.page_bytes]
        if page[0] in (2, 5):  # an interior page
            cells = int.from_bytes(page[3:5], "big")
            for at in range(12, 12 + 2 * cells, 2):
                cell = int.from_bytes(page[at : at + 2], "big")
                yield from self.pages(int.from_bytes(page[cell : cell + 4], "big"))
            yield from self.pages(int.from_bytes(page[8:12], "big"))


@pytest.fixture(scope="module")
def stored(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> LedgerFile:
    folder = tmp_path_factory.mktemp("file")
    path = folder / "obscura.db"
    shutil.copyfile(sqlite_template, path)
    with open_sessions(f"sqlite:///{path}") as factory:
        book = LedgerBook(factory, folder / "var", NOW).fill()
        book.checkpoint()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for receipt in book.releases():
        (folder / "var" / "releases" / receipt.id).mkdir(parents=True)
    return LedgerFile(path, folder / "var")


@pytest.fixture
def file(stored: LedgerFile) -> Iterator[LedgerFile]:
    yield stored
    stored.path.write_bytes(stored.content)


def changed_entries(file: LedgerFile) -> list[tuple[str, int]]:
    """Return account and sequence of the changed entries; none if nothing can be read."""
    now = file.read()
    return [
        (account_id, int(sequence))
        for (table, account_id, sequence), row in file.rows.items()
        if table == "entries" and now is not None and now.get((table, account_id, sequence)) != row
    ]


def test_a_file_as_it_was_has_no_findings_but_the_missing_artifacts(file):
    """The control of this file."""
    assert len(file.rows) > 30
    assert {finding.code for finding in file.findings() or ()} == {FindingCode.ARTIFACT_MISMATCH}


def test_a_byte_changed_in_a_row_names_the_entry(file):
    dice, named_entries = Random(3), 0
    places = [(key, row) for key, row in sorted(file.rows.items()) if key[0] == "entries"]
    for _ in range(FLIPS):
        _, row = dice.choice(places)
        details = next(value[1:-1] for value in row if value.startswith(b"'{"))
        offset = file.find(details, "entries") + dice.randrange(-250, len(details))  # or in a column before it
        file.flip(offset, dice.randrange(1, 256))
        changed, found = changed_entries(file), file.findings()
        named = {(finding.account_id, finding.sequence) for finding in found or ()}
        assert found is None or not changed or changed[0] in named, offset
        named_entries += found is not None and bool(changed)
    assert named_entries > FLIPS / 2


@pytest.mark.parametrize(
    ("column", "index"),
    [("account_id", "sqlite_autoindex_entries_1"), ("job_id", "ix_entries_job_id"), ("hold_id", "uq_entries_one_hold")],
)
def test_a_row_that_differs_from_its_index_is_found(file, column, index):
    """SQLite takes a value from an index, not from the row, unless the query demands the row."""
    place = file.columns["entries"].index
    entries = (row for key, row in sorted(file.rows.items()) if key[0] == "entries")
    row = next(row for row in entries if row[place("kind")] == b"'hold'")
    value, usual = row[place(column)][1:-1], file.findings()
    for tree in ("entries", index):
        file.flip(file.find(value, tree) + len(value) - 1, 1)
        found, changed = file.findings(), changed_entries(file)
        assert found != usual
        assert bool(changed) == (tree == "entries")
        assert set(changed) <= {(finding.account_id, finding.sequence) for finding in found or ()}


@pytest.mark.parametrize("table", TABLES)
def test_a_byte_changed_anywhere_in_a_table_is_found(file, table):
    dice, pages, usual = Random(5), list(file.pages(file.roots[table])), file.findings()
    for _ in range(FLIPS):
        offset = (dice.choice(pages) - 1) * file.page_bytes + dice.randrange(file.page_bytes)
        file.flip(offset, dice.randrange(1, 256))
        if file.read() != file.rows:
            assert file.findings() != usual, offset


def test_a_broken_file_stops_arming_or_cannot_be_written_to(file):
    file.flip((file.roots["accounts"] - 1) * file.page_bytes, 0xFF)
    assert file.findings() is None or FindingCode.DATABASE_DAMAGED in {f.code for f in file.findings() or ()}
    inspect_at_start(file.settings, file.factory, now=NOW)
    file.factory.kw["bind"].dispose()
    with sqlite3.connect(file.path) as connection:
        assert connection.execute("SELECT scope, code FROM arming_stops").fetchall() == [("*", "not_verifiable")]
