"""Accounts, limits and the freeze switch over HTTP; the state of the ledger and its receipt."""

from datetime import UTC, datetime

import pytest

from obscura.wire.budgets import usual_delta
from obscura.wire.words import EntryKind
from service.audit.proofs import check_receipt
from service.audit.signing import trusted_keys
from service.audit.verify import verify
from service.db.ledger_tables import Entry
from service.db.session import make_engine, make_session_factory
from service.inspection import sign_heads
from service.ledger.chain import GENESIS_HASH, entry_hash
from tests.service.api.conftest import ACCOUNT, DATASET, OwnSettings, npz, problem, serving
from tests.service.audit.book import LedgerBook
from tests.together import ready


def test_nothing_that_changes_privacy_has_a_default(served):
    for missing in ("epsilon", "delta", "unit", "adjacency"):
        body = {"name": "p", **ACCOUNT}
        del body[missing]
        served.send("accounts", body, status=422)


@pytest.mark.parametrize(("delta", "odds"), [(0.05, "1 in 20"), (1.1e-4, "1 in 9,091"), (0.1, "1 in 10")])
def test_a_large_delta_is_confirmed(served, delta, odds):
    """The account keeps its delta forever, and the guarantee may fail with that probability."""
    body = {"name": "p", **ACCOUNT, "delta": delta}
    for unconfirmed in (body, body | {"accept_large_delta": False}):
        problem = served.send("accounts", unconfirmed, status=422)
        assert (problem["code"], problem["delta"], problem["delta_usual_most"]) == ("large_delta", delta, 1e-4)
        assert odds in problem["detail"]
        assert "1 / (10 x number of images)" in problem["detail"]
    assert served.read("accounts")["items"] == []
    assert served.send("accounts", body | {"accept_large_delta": True}, status=201)["delta"] == pytest.approx(delta)


def test_a_usual_delta_needs_no_confirmation(served):
    for number, delta in enumerate((1e-4, 1e-5, 1e-12)):
        assert served.account(name=f"p {number}", delta=delta)["delta"] == pytest.approx(delta)
    assert all(usual_delta(images) <= min(1e-4, 0.1 / images) for images in (1, 9, 99, 100, 2000, 10_000, 60_000))


def test_an_etag_saves_the_second_transfer(served):
    path = f"/v1/accounts/{served.account()['id']}"
    first = served.client().get(path)
    again = served.client().get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    other = served.client().get(path, headers={"If-None-Match": '"something-else"'})
    assert other.status_code == 200


def test_pages_go_through_all_accounts_once_and_are_never_longer_than_the_service_allows(served):
    made = [served.account(name=f"a{number}")["id"] for number in range(7)]
    assert [item["id"] for item in served.everything("accounts", limit=3)] == made
    assert len(served.read("accounts", limit=3)["items"]) == 3
    page = served.read("accounts", limit=1000)
    assert len(page["items"]) == served.app.state.settings.page_size_max == 5
    assert page["next_cursor"]
    served.read("accounts", limit=0, status=422)


def test_entries_show_enough_to_verify_the_chain(served):
    account = served.account()
    dataset = served.ready_dataset(account["id"])
    for _ in range(3):
        answer = served.train(dataset["id"], epsilon=0.2)
        assert answer.status_code == 202, answer.text
    entries = served.everything(f"accounts/{account['id']}/entries", limit=2)
    assert [entry["kind"] for entry in entries] == ["open", "hold", "hold", "hold"]
    previous = GENESIS_HASH
    for entry in entries:
        assert entry["previous_hash"] == previous
        as_read = {"kind": EntryKind(entry["kind"]), "created_at": datetime.fromisoformat(entry["created_at"])}
        assert entry_hash(Entry(**entry | as_read)) == entry["hash"]
        previous = entry["hash"]


def ask(served, account_id: str, *, by: str = "admin", status: int = 201):
    body = {"epsilon": 5.0, "reason": "a second study"}
    return served.send(f"accounts/{account_id}/raise-limit", body, scope=by, status=status)


def test_a_raise_passes_through_two_hands(served):
    """What the log says of it: tests/service/ledger/test_limits.py."""
    served.named("bob", "admin")
    account = served.account(epsilon=2.0)
    request = ask(served, account["id"])
    assert (request["state"], request["epsilon_before"], request["epsilon"]) == ("pending", 2.0, 5.0)
    assert request["decided_by"] is None
    assert "Two people" in served.approve(request["id"], by="admin", status=403)["detail"]
    approved = served.approve(request["id"], by="bob")
    assert approved["state"] == "approved"
    assert approved["decided_with"] != approved["requested_with"]
    assert approved["decided_by"] != approved["requested_by"]
    assert served.read(f"decisions/{request['id']}") == approved
    after = served.read(f"accounts/{account['id']}")
    assert (after["epsilon"], after["balance"]["limit_epsilon"]) == (5.0, 5.0)


def test_requests_are_listed_and_declined(served):
    served.named("bob", "admin")
    accounts = [served.account()["id"] for _ in range(3)]
    made = [ask(served, account_id)["id"] for account_id in accounts]
    ask(served, accounts[0], by="bob", status=409)
    assert served.send(f"decisions/{made[0]}/decline", scope="bob")["state"] == "declined"
    served.approve(made[0], by="bob", status=409)
    assert [item["id"] for item in served.everything("decisions", limit=2)] == made[::-1]
    of_one = served.read("decisions", account_id=accounts[0])
    assert [item["state"] for item in of_one["items"]] == ["declined"]


def test_a_frozen_account_takes_no_jobs_until_it_is_opened(served):
    account = served.account()
    dataset, path = served.ready_dataset(account["id"]), f"accounts/{account['id']}"
    for _ in range(2):
        assert served.send(f"{path}/freeze", {"reason": "an audit"})["frozen"] is True
    problem(served.train(dataset["id"]), 409, "account_frozen")
    served.send(f"{path}/unfreeze", {}, status=422)
    assert served.send(f"{path}/unfreeze", {"reason": "it is over"})["frozen"] is False
    assert served.train(dataset["id"]).status_code == 202
    assert [item["kind"] for item in served.everything(f"{path}/entries")] == ["open", "freeze", "freeze", "hold"]


def test_a_closed_account_takes_no_data_and_goes_on_training(served):
    account = served.account()
    private = DATASET | {"visibility": "private", "account_id": account["id"]}
    dataset, path = served.ready_dataset(account["id"]), f"accounts/{account['id']}"
    waiting = served.send("datasets", private, status=201)["id"]
    before = served.read(path)
    for _ in range(2):
        assert served.send(f"{path}/close") == before | {"closed": True}
    assert served.send("datasets", private, status=409)["code"] == "account_closed"
    problem(served.upload(waiting, npz(10)), 409, "account_closed")
    assert served.train(dataset["id"]).status_code == 202
    assert served.send(f"{path}/reopen") == served.read(path)
    assert "closed" not in served.read(path)
    kinds = [item["kind"] for item in served.everything(f"{path}/entries")]
    assert kinds == ["open", "hold"], "the log says nothing of it"


# --- the ledger -------------------------------------------------------------------------------------------------------


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
