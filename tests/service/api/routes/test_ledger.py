"""The state of the ledger over HTTP, the receipt, and what the service does with a broken ledger when it starts."""

from datetime import UTC, datetime

from service.audit.proofs import check_receipt
from service.audit.signing import trusted_keys
from service.audit.verify import verify
from service.db.session import make_engine, make_session_factory
from service.inspection import sign_heads
from tests.service.api.conftest import OwnSettings, serving
from tests.service.audit.book import LedgerBook
from tests.together import ready


def test_a_new_service_has_verified_its_ledger(served):
    record = served.read("ledger", scope="admin")
    assert (record["trainings"], record["stops"], record["checkpoint"]) == ("open", [], None)
    (verified,) = (entry for entry in record["verifications"] if entry["kind"] == "full")
    assert (verified["entries"], verified["findings"]) == (0, 0)
    assert ready(served.client(None))["trainings"] == "open"


def test_the_newest_checkpoint_is_shown(served):
    served.account()
    settings = served.app.state.settings
    report = served.do(verify, trusted={})
    sequence = sign_heads(settings, served.factory, report, now=datetime.now(UTC))
    checkpoint = served.read("ledger", scope="admin")["checkpoint"]
    assert (checkpoint["sequence"], [checkpoint["key_id"]]) == (sequence, list(trusted_keys(settings.ledger_key_path)))


def test_a_receipt_is_served_as_it_was_signed(served, released):
    account, release_id = released()
    receipt = served.read(f"releases/{release_id}/receipt")
    statement = check_receipt(receipt, trusted_keys(served.data_dir / "keys" / "ledger.pem"))
    assert (statement["release_id"], statement["account"]["id"]) == (release_id, account["id"])


def test_a_changed_entry_stops_its_account_at_the_start(own_settings: OwnSettings):
    """What was published stays readable."""
    settings = own_settings()
    engine = make_engine(settings.database_url)
    book = LedgerBook(make_session_factory(engine), settings.data_dir, datetime.now(UTC))
    book.open("patients")
    book.train("patients")
    book.corrupt("UPDATE entries SET amount_nano = amount_nano + 1 WHERE sequence = 4")
    engine.dispose()
    with serving(settings, "admin") as served:
        ledger, readiness = served.read("ledger", scope="admin"), ready(served.client(None))
    assert (ledger["trainings"], readiness["trainings"]) == ("stopped", "stopped")
    assert [(stop["account_id"], stop["code"], stop["sequence"]) for stop in ledger["stops"]] == [
        (book.accounts["patients"], "hash_mismatch", 4)
    ]
    assert ledger["verifications"][0]["findings"] >= 1
