"""The API's benchmark: it asks for every route and page there is, on what it has laid in, and says what it missed."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import func, select

from benchmarks.api import CPU_MS_MAX, UPLOAD_MB_PER_SECOND_MIN, filled, missed, routes
from benchmarks.api_stock import Stock, lay_in
from service.audit.findings import FindingCode
from service.audit.verify import verify
from service.db.job_tables import Job, Release
from service.db.ledger_tables import AccountRow, EntryRow
from service.db.session import SessionFactory, transaction

STOCK = Stock("acc_a", "ds_a", "job_a", "swp_a", "rel_a", "smp_a", "lim_a", "token")


def test_every_route_has_an_address() -> None:
    found = {path: filled(path, STOCK) for path in routes()}
    assert len(found) > 40
    assert {"/", "/jobs", "/v1/jobs", "/v1/health/live", "/accounts/{account_id}"} <= set(found)
    assert all(addresses and "{" not in "".join(addresses) for addresses in found.values())
    assert found["/parts/{name}"] == ["/parts/budgets", "/parts/jobs", "/parts/releases"]


def test_what_is_laid_in_is_as_much_as_was_asked_for_and_its_logs_are_sound(
    factory: SessionFactory, tmp_path: Path
) -> None:
    stock = lay_in(factory, tmp_path, accounts=4, jobs=100, entries=1200)
    with transaction(factory, read_only=True, snapshot=True) as session:
        tables = (AccountRow, Job, EntryRow)
        counts = {table: session.scalar(select(func.count()).select_from(table)) for table in tables}
        report = verify(session, trusted={})
        assert session.get(Release, stock.release_id) is not None
    assert counts[AccountRow] == 4
    assert counts[Job] == 100
    assert 1000 <= (counts[EntryRow] or 0) <= 1300
    chains = {
        FindingCode.ENTRY_MISSING,
        FindingCode.HASH_MISMATCH,
        FindingCode.CHAIN_BROKEN,
        FindingCode.BALANCE_MISMATCH,
    }
    assert not chains & {finding.code for finding in report.findings}


def test_it_says_what_it_missed() -> None:
    row = {"database": "sqlite", "route": "/", "clients": 1, "cpu_ms": CPU_MS_MAX + 1}
    upload = {"database": "sqlite", "megabytes": 1.0, "megabytes_per_second": UPLOAD_MB_PER_SECOND_MIN - 1}
    assert len(missed([row, upload])) == 2
    assert missed([row | {"cpu_ms": CPU_MS_MAX}, upload | {"megabytes_per_second": UPLOAD_MB_PER_SECOND_MIN}]) == []
