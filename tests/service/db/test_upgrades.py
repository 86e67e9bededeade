"""A database of an earlier version, brought up to date: what was there keeps its meaning, on the safe side."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

from alembic import command
from obscura.wire.words import DecisionAction, EntryKind
from privacy.accounting.events import GaussianEvent, PoissonGaussianEvent
from privacy.accounting.filter import open_filter
from service import auth, ledger
from service.audit.verify import verify
from service.db.access_tables import Admin, ApiKey, Decision
from service.db.base import new_id
from service.db.project_tables import DEFAULT_PROJECT
from service.db.schema import migration_config, upgrade_schema
from service.db.session import make_engine, make_session_factory, transaction
from service.errors import Forbidden, InvalidInput
from service.ledger.chain import GENESIS_HASH, Entry, canonical_json
from tests.conftest import NOW
from tests.service.people import approve_raise

BEFORE = "0001"
AT = NOW.replace(tzinfo=None).isoformat(" ")
STORED_AT = NOW.replace(tzinfo=None).isoformat(" ", timespec="microseconds")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def old_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database as it was before admins were people."""
    url = f"sqlite:///{tmp_path}/old.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("empty_postgres")
    command.upgrade(migration_config(url), BEFORE)
    return url


@pytest.fixture
def database(old_url: str) -> Iterator[Engine]:
    engine = make_engine(old_url)
    yield engine
    engine.dispose()


def insert(connection: Connection, table: str, **row: Any) -> None:
    names, values = ", ".join(row), ", ".join(f":{name}" for name in row)
    connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({values})"), row)


def open_account_of_before(engine: Engine, filter_name: str = "gdp", name: str = "people") -> str:
    """An account of a time when accounts had a filter each."""
    terms = {"name": name, "owner": "clinic", "epsilon": 2.0, "delta": 1e-5, "unit": "record"}
    terms |= {"adjacency": "add_remove", "filter": filter_name, "filter_order": None}
    capacity_nano = open_filter(2.0, 1e-5, 0.0).capacity_nano
    balances = {"capacity_nano": capacity_nano, "spent_nano": 0, "held_nano": 0}
    facts = {"account_id": new_id("acc"), "sequence": 1, "amount_nano": capacity_nano, "previous_hash": GENESIS_HASH}
    of_nothing = {"hold_id": None, "job_id": None}
    opening = Entry(**facts, **balances, **of_nothing, kind=EntryKind.OPEN, details=terms, created_at=NOW).hashed()
    head = {"frozen": False, "head_sequence": 1, "head_hash": opening.hash, "created_at": STORED_AT}
    entry = {"kind": "open", "details": canonical_json(terms).decode(), "hash": opening.hash, "created_at": STORED_AT}
    with engine.begin() as connection:
        insert(connection, "accounts", id=opening.account_id, **terms, **balances, **head)
        insert(connection, "entries", **facts, **balances, **entry)
    return opening.account_id


@pytest.fixture
def filled(database: Engine) -> Engine:
    """Three admins' keys, one reader's, an account, a raise that was approved and one that waits."""
    scopes = {"alice": "admin", "bob": "admin", "gone": "admin", "reader": "read"}
    account_id = open_account_of_before(database)
    raised = {"account_id": account_id, "epsilon_before": 2.0, "epsilon": 3.0, "reason": "more"}
    raised |= {"requested_by": "key_alice", "requested_at": AT}
    decided = {"decided_by": "key_bob", "decided_at": AT}
    with database.begin() as connection:
        for name, scope in scopes.items():
            key = {"id": f"key_{name}", "name": name, "scopes": json.dumps([scope]), "hash": name, "created_at": AT}
            insert(connection, "api_keys", **key)
        connection.execute(text("UPDATE api_keys SET revoked_at = created_at WHERE id = 'key_gone'"))
        insert(connection, "limit_requests", id="lim_old", state="approved", **raised, **decided)
        insert(connection, "limit_requests", id="lim_waiting", state="pending", **raised)
    return database


def test_admin_keys_of_before_are_one_person(filled, old_url):
    upgrade_schema(old_url)
    with transaction(make_session_factory(filled)) as session:
        (first,) = session.query(Admin).all()
        assert (first.name, first.admission.value) == ("first admin", "machine")
        owners = {key.id: key.admin_id for key in session.query(ApiKey)}
        assert owners == {"key_alice": first.id, "key_bob": first.id, "key_gone": first.id, "key_reader": None}
        requests = {row.id: (row.asked_by, row.decided_by) for row in session.query(Decision)}
        assert requests == {"lim_old": (first.id, None), "lim_waiting": (first.id, None)}
        with pytest.raises(Forbidden, match="two people"):
            approve_raise(session, "lim_waiting", "key_bob", NOW)
        with pytest.raises(InvalidInput, match="belongs to a person"):
            auth.create_key(session, name="nobody's", scopes=["admin"], now=NOW)
        account_id = session.query(Decision).first().account_id
        ledger.record_fact(session, account_id=account_id, fact={"table": "x"}, now=NOW)
        assert ledger.entries(session, account_id, 0, 10)[-1].kind is EntryKind.FACT


def test_entries_stay_append_only_and_the_way_back_works(filled, old_url):
    def assert_append_only(*statements: str) -> None:
        for statement in statements:
            with pytest.raises(Exception, match="append-only"), filled.begin() as connection:
                connection.execute(text(statement))

    upgrade_schema(old_url)
    assert_append_only("UPDATE entries SET amount_nano = 0", "DELETE FROM entries")
    filled.dispose()
    command.downgrade(migration_config(old_url), BEFORE)
    with filled.connect() as connection:
        tables = ("api_keys", "limit_requests", "entries")
        assert [connection.scalar(text(f"SELECT count(*) FROM {name}")) for name in tables] == [4, 2, 1]
    assert_append_only("DELETE FROM entries")


def test_an_account_with_the_gdp_filter_goes_on_as_one_with_rate_0(database, old_url):
    """Its log verifies, its Gaussian jobs cost what they did, and its capacity is the same, also under other limits."""
    account_id = open_account_of_before(database)
    upgrade_schema(old_url)
    factory, votes = make_session_factory(database), GaussianEvent(1.0, 100.0, 10)
    with transaction(factory) as session:
        account = ledger.get_account(session, account_id)
        assert (account.rate, account.base, ledger.filter_of(account).capacity_nano) == (0, 0, account.capacity_nano)
        price_nano = ledger.filter_of(account).price_nano(votes)
        assert price_nano == 10 * 100_000
        stages = [{"name": "votes", "event": votes.to_json(), "price_nano": price_nano}]
        facts = {"account_id": account_id, "job_id": new_id("job"), "amount_nano": price_nano, "now": NOW}
        before = ledger.filter_of(account)
        held = ledger.hold(session, **facts, priced_by=before, details={"stages": stages})
        lowered = ledger.lower_limit(session, account_id=account_id, epsilon=1.0, reason="less", now=NOW)
        assert ledger.filter_of_hold(session, held.id) == before != ledger.filter_of(lowered)
        sampled = PoissonGaussianEvent(0.01, 2.0, 4)
        assert ledger.filter_of(account).price_nano(sampled) >= 4 / 4 * 10**9
    with transaction(factory, read_only=True, snapshot=True) as session:
        findings = verify(session, trusted={}).findings
        assert [finding.code for finding in findings if finding.account_id] == []
    database.dispose()
    command.downgrade(migration_config(old_url), BEFORE)
    upgrade_schema(old_url)


def test_a_database_with_accounts_of_the_other_filter_is_left_as_it_is(database, old_url):
    open_account_of_before(database, "rdp")
    with pytest.raises(RuntimeError, match="1 accounts have the rdp filter"):
        upgrade_schema(old_url)
    with database.connect() as connection:
        assert connection.scalar(text("SELECT filter FROM accounts")) == "rdp"


def test_there_is_no_way_back_from_an_account_with_a_rate(database, old_url):
    upgrade_schema(old_url)
    with transaction(make_session_factory(database)) as session:
        facts = {"owner": "clinic", "epsilon": 2.0, "delta": 1e-5, "unit": "record", "adjacency": "add_remove"}
        ledger.open_account(session, name="new", **facts, now=NOW)
    database.dispose()
    with pytest.raises(RuntimeError, match="1 accounts were opened since"):
        command.downgrade(migration_config(old_url), BEFORE)


LIMIT_ROWS = "SELECT * FROM limit_requests ORDER BY id"
ADMIN_ROWS = "SELECT * FROM admin_requests ORDER BY id"


def test_requests_of_two_tables_are_decisions_and_go_back_as_they_were(filled, old_url):
    """Every state and action, with what only raises and only requests about admins say."""
    command.upgrade(migration_config(old_url), "0013")
    with filled.begin() as connection:
        first = connection.scalar(text("SELECT id FROM admins"))
        for name in ("bob", "carol"):
            alone = {"id": f"adm_{name}", "name": name, "admission": "machine", "admitted_at": AT}
            insert(connection, "admins", **alone)
        connection.execute(text("UPDATE api_keys SET admin_id = 'adm_bob' WHERE id = 'key_bob'"))
        account_id = connection.scalar(text("SELECT id FROM accounts"))
        raised = {"account_id": account_id, "epsilon_before": 3.0, "epsilon": 4.0, "reason": "more", "requested_at": AT}
        raised |= {"requested_by": "key_alice", "requested_by_admin": first}
        by_bob = {"decided_by": "key_bob", "decided_by_admin": "adm_bob", "decided_at": STORED_AT}
        insert(connection, "limit_requests", id="lim_new", state="approved", **raised, **by_bob)
        insert(connection, "limit_requests", id="lim_no", state="declined", **raised, **by_bob)
        asked = {"reason": "why", "asked_by": first, "asked_at": AT}
        decided = {"decided_by": "adm_bob", "decided_at": STORED_AT}
        key = {"key_id": "key_dan", "key_hash": "0" * 64}
        for id, state, facts in (
            ("adr_admit", "pending", {"action": "admit", "name": "dan"} | key),
            ("adr_no", "declined", {"action": "admit", "name": "eve"} | key | decided),
            ("adr_yes", "approved", {"action": "admit", "name": "carol", "admin_id": "adm_carol"} | key | decided),
            ("adr_gone", "pending", {"action": "remove", "name": "carol", "admin_id": "adm_carol"}),
            (
                "adr_key",
                "approved",
                {"action": "revoke", "name": "carol", "admin_id": "adm_carol", "key_id": "key_gone", "keys_revoked": 1}
                | decided,
            ),
        ):
            insert(connection, "admin_requests", id=id, state=state, **asked, **facts)
        before = [connection.execute(text(query)).mappings().all() for query in (LIMIT_ROWS, ADMIN_ROWS)]
    assert [len(rows) for rows in before] == [4, 5]

    command.upgrade(migration_config(old_url), "head")
    with transaction(make_session_factory(filled)) as session:
        rows = {row.id: row for row in session.query(Decision)}
        assert {row.project_id for row in rows.values() if row.account_id is not None} == {DEFAULT_PROJECT}
        assert len(rows) == 9
        old, new, admission = rows["lim_old"], rows["lim_new"], rows["adr_yes"]
        assert (old.action, old.asked_by, old.decided_by) == (DecisionAction.RAISE, first, None)
        assert (new.asked_with, new.decided_with, new.decided_by) == ("key_alice", "key_bob", "adm_bob")
        assert (admission.asked_by, admission.asked_with, admission.decided_with) == (first, None, None)
        assert rows["adr_key"].keys_revoked == 1
        assert {row.asked_at for row in rows.values()} == {NOW}
    filled.dispose()
    command.downgrade(migration_config(old_url), "0013")
    with filled.connect() as connection:
        after = [connection.execute(text(query)).mappings().all() for query in (LIMIT_ROWS, ADMIN_ROWS)]
    assert [[dict(row) for row in rows] for rows in after] == [[dict(row) for row in rows] for rows in before]
    upgrade_schema(old_url)


def test_jobs_get_the_project_of_their_account_and_owners_and_foreign_drawings_stop_the_way_back(filled, old_url):
    """From before releases were shared, and from before there were owners."""
    command.upgrade(migration_config(old_url), "0024")
    job = {"kind": "sample", "recipe": "moments", "options": "{}", "plan": "{}", "state": "queued", "attempt": 0}
    job |= {"attempts_lost": 0, "cancel_requested": False, "progress": "{}", "progress_version": 0, "secret": "0" * 64}
    with filled.begin() as connection:
        insert(connection, "projects", id="prj_x", name="heart", created_at=AT)
        account_id = connection.scalar(text("SELECT id FROM accounts"))
        connection.execute(text("UPDATE accounts SET project_id = 'prj_x'"))
        for id, payer in (("job_paid", account_id), ("job_free", None)):
            insert(connection, "jobs", id=id, account_id=payer, created_at=AT, **job)
    filled.dispose()
    for _ in range(2):
        upgrade_schema(old_url)
        with filled.begin() as connection:
            found = dict(connection.execute(text("SELECT id, project_id FROM jobs")).all())
        assert found == {"job_paid": "prj_x", "job_free": DEFAULT_PROJECT}
        filled.dispose()
        command.downgrade(migration_config(old_url), "0024")
    upgrade_schema(old_url)
    with filled.begin() as connection:
        connection.execute(text("UPDATE jobs SET release_id = 'rel_x' WHERE id = 'job_free'"))
    filled.dispose()
    with pytest.raises(RuntimeError, match="1 jobs on shared releases"):
        command.downgrade(migration_config(old_url), "0024")
    with filled.begin() as connection:
        connection.execute(text("UPDATE jobs SET release_id = NULL"))
        connection.execute(text("UPDATE accounts SET project_id = 'prj_default'"))
        connection.execute(text("DELETE FROM projects WHERE id = 'prj_x'"))
        connection.execute(text("UPDATE admins SET project_id = 'prj_default'"))
    filled.dispose()
    with pytest.raises(RuntimeError, match="1 owners"):
        command.downgrade(migration_config(old_url), "0018")
