"""The API's benchmark: it asks for every route and page there is, on what it has laid in, and says what it missed."""

from sqlalchemy import func, select

from benchmarks.api import CPU_MS_MAX, PAGE_KB_MAX, PAGE_MS_MAX, UPLOAD_MB_PER_SECOND_MIN, filled, missed, routes
from benchmarks.api_stock import Stock, lay_in
from service.audit.findings import FindingCode
from service.audit.verify import verify
from service.db.job_tables import Job, Release
from service.db.ledger_tables import Account, Entry
from service.db.session import transaction

STOCK = Stock("acc_a", "ds_a", "job_a", "swp_a", "rel_a", "smp_a", "dec_a", "prv_a", "token")


def test_every_route_has_an_address():
    found = {path: filled(path, STOCK) for path in routes()}
    assert len(found) > 40
    assert {"/", "/jobs", "/v1/jobs", "/v1/health/live", "/accounts/{account_id}"} <= set(found)
    assert all(addresses and "{" not in "".join(addresses) for addresses in found.values())
    assert found["/parts/{name}"] == ["/parts/budgets", "/parts/jobs", "/parts/releases"]


def test_what_is_laid_in_is_as_much_as_was_asked_for_and_its_logs_are_sound(factory, tmp_path):
    stock = lay_in(factory, tmp_path, accounts=4, jobs=100, entries=1200)
    with transaction(factory, read_only=True, snapshot=True) as session:
        tables = (Account, Job, Entry)
        counts = {table: session.scalar(select(func.count()).select_from(table)) for table in tables}
        report = verify(session, trusted={})
        assert session.get(Release, stock.release_id) is not None
    assert (counts[Account], counts[Job]) == (4, 100)
    assert 1000 <= (counts[Entry] or 0) <= 1300
    chains = {"entry_missing", "hash_mismatch", "chain_broken", "balance_mismatch"}
    assert chains <= set(FindingCode)
    assert not chains & {finding.code.value for finding in report.findings}


def test_it_says_what_it_missed():
    row = {"database": "sqlite", "route": "/", "clients": 1, "cpu_ms": CPU_MS_MAX + 1, "p50_ms": 10.0, "kb": 20.0}
    upload = {
        "route": "PUT /v1/datasets/{dataset_id}/content",
        "clients": 1,
        "database": "sqlite",
        "megabytes": 1.0,
        "megabytes_per_second": UPLOAD_MB_PER_SECOND_MIN - 1,
    }
    assert len(missed([row, upload])) == 2
    quick = row | {"cpu_ms": CPU_MS_MAX}
    assert missed([quick, upload | {"megabytes_per_second": UPLOAD_MB_PER_SECOND_MIN}]) == []
    for slow in ({"p50_ms": PAGE_MS_MAX + 1}, {"kb": PAGE_KB_MAX + 1}):
        assert len(missed([quick | slow])) == 1
        assert missed([quick | slow | {"route": "/v1/jobs"}]) == missed([quick | slow | {"clients": 8}]) == []
