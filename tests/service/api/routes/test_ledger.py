"""The state of the ledger over HTTP, the receipt, and what the service does with a broken ledger when it starts."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from service.audit.receipts import check_receipt, kept_receipts
from service.audit.signing import trusted_keys
from service.audit.verify import verify
from service.db.session import make_engine, make_session_factory, transaction
from service.inspection import sign_heads
from service.main import create_app
from service.settings import Settings
from tests.service.api.conftest import Served, _broker_that_is_away, running
from tests.service.audit.book import LedgerBook
from tests.service.people import make_key


def test_a_new_service_has_verified_its_ledger(served: Served) -> None:
    record = served.client().get("/v1/ledger").json()
    assert (record["trainings"], record["stops"], record["checkpoint"]) == ("open", [], None)
    (verified,) = (entry for entry in record["verifications"] if entry["kind"] == "full")
    assert (verified["entries"], verified["findings"]) == (0, 0)
    assert served.client(None).get("/v1/health/ready").json()["trainings"] == "open"


def test_the_state_of_the_ledger_is_for_admins(served: Served) -> None:
    for scope, status in (("read", 403), ("train", 403), (None, 401), ("admin", 200)):
        assert served.client(scope).get("/v1/ledger").status_code == status


def test_the_newest_checkpoint_is_shown(served: Served) -> None:
    served.account()
    settings = served.app.state.settings
    with transaction(served.factory, read_only=True) as session:
        report = verify(session, trusted={})
    sequence = sign_heads(settings, served.factory, report, now=datetime.now(UTC))
    checkpoint = served.client().get("/v1/ledger").json()["checkpoint"]
    assert (checkpoint["sequence"], [checkpoint["key_id"]]) == (sequence, list(trusted_keys(settings.ledger_key_path)))


def test_a_receipt_is_served_as_it_was_signed(
    served: Served, released: Callable[[], tuple[dict[str, Any], str]]
) -> None:
    account, release_id = released()
    answer = served.client("read").get(f"/v1/releases/{release_id}/receipt")
    statement = check_receipt(answer.json(), trusted_keys(served.data_dir / "keys" / "ledger.pem"))
    assert (statement["release_id"], statement["account"]["id"]) == (release_id, account["id"])
    assert served.client(None).get(f"/v1/releases/{release_id}/receipt").status_code == 401
    assert served.client("read").get("/v1/releases/rel_none/receipt").status_code == 404


# --- at start-up ----------------------------------------------------------------------------------------------------


@pytest.fixture
def book(settings: Settings) -> Iterator[LedgerBook]:
    """The ledger of a service that is not running yet, with a release."""
    engine = make_engine(settings.database_url)
    made = LedgerBook(make_session_factory(engine), settings.data_dir, datetime.now(UTC))
    made.open("patients")
    made.train("patients")
    yield made
    engine.dispose()


def _state_after_start(settings: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Start the service; return the ledger's state and readiness."""
    app = create_app(settings, send=_broker_that_is_away)
    with running(app) as url:
        with transaction(app.state.factory) as session:
            token = make_key(session, name="a", scopes=["admin"], now=datetime.now(UTC))[1]
        served = Served(app, url, settings.data_dir, app.state.factory, {"admin": token})
        answers = served.client().get("/v1/ledger"), served.client().get("/v1/health/ready")
        served.client().close()
    assert [answer.status_code for answer in answers] == [200, 200]  # what was published stays readable
    return answers[0].json(), answers[1].json()


def test_a_sound_ledger_starts_open_and_is_signed(book: LedgerBook, settings: Settings) -> None:
    ledger, ready = _state_after_start(settings)
    assert (ledger["trainings"], ready["trainings"]) == ("open", "open")


def test_a_changed_entry_stops_its_account_at_the_start(book: LedgerBook, settings: Settings) -> None:
    book.corrupt("UPDATE entries SET amount_nano = amount_nano + 1 WHERE sequence = 4")
    ledger, ready = _state_after_start(settings)
    assert (ledger["trainings"], ready["trainings"]) == ("stopped", "stopped")
    assert [(stop["account_id"], stop["code"], stop["sequence"]) for stop in ledger["stops"]] == [
        (book.accounts["patients"], "hash_mismatch", 4)
    ]
    assert ledger["verifications"][0]["findings"] >= 1


def test_an_older_database_stops_its_account_at_the_start(book: LedgerBook, settings: Settings, tmp_path: Path) -> None:
    backup = tmp_path / "backup.db"
    with sqlite3.connect(settings.data_dir / "obscura.db") as source, sqlite3.connect(backup) as target:
        source.backup(target)
    newer = book.train("patients")["statement"]["entry"]["sequence"]
    (kept,) = kept_receipts(settings.data_dir)
    assert json.loads(kept.read_text())["statement"]["entry"]["sequence"] == newer
    older = settings.model_copy(update={"database_url": f"sqlite:///{backup}"})
    ledger, _ = _state_after_start(older)
    assert [(stop["code"], stop["sequence"]) for stop in ledger["stops"]] == [("older_than_receipt", newer)]


def test_another_database_than_the_one_that_was_signed_stops_everything(
    book: LedgerBook, settings: Settings, sqlite_template: Path
) -> None:
    report = book.verify()
    assert sign_heads(settings, book.factory, report, now=book.tick()) == 1
    empty = settings.model_copy(update={"database_url": f"sqlite:///{sqlite_template.with_name('other.db')}"})
    ledger, _ = _state_after_start(empty)
    assert (None, "checkpoint_missing") in [(stop["account_id"], stop["code"]) for stop in ledger["stops"]]
