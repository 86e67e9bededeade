"""Paying for a noisy count of records over HTTP: once for each request, and before anything could be drawn."""

import pytest

from obscura.cli.onboarding import counted_bound
from obscura.client import Client
from obscura.errors import BudgetError, RequestError
from privacy.accounting.filter import open_filter
from privacy.mechanisms import noise
from privacy.mechanisms.noise import SecureNoise
from privacy.mechanisms.record_count import STDDEV, count_event
from service.audit.arming import stop_arming
from service.audit.findings import Finding, FindingCode
from service.audit.verify import verify
from service.db.session import transaction
from service.main import utc_now
from service.storage.journals import counted
from tests.together import at_once


def count(served, account_id, *, key="once", scope="data", status=201):
    return served.send(f"accounts/{account_id}/counts", {}, key=key, scope=scope, status=status)


def test_a_count_is_an_entry_whose_price_is_spent_at_once(served):
    account = served.account()
    paid = count(served, account["id"])
    assert paid["noise_stddev"] == STDDEV
    (_, entry) = served.everything(f"accounts/{account['id']}/entries")
    assert (entry["kind"], entry["sequence"], entry["amount_nano"]) == ("count", paid["sequence"], paid["price_nano"])
    assert entry["details"] == {"event": count_event(STDDEV).to_json(), "noise_stddev": STDDEV}
    assert entry["spent_nano"] == paid["price_nano"] == served.balance(account["id"])["spent_nano"] > 0
    with transaction(served.factory, read_only=True, snapshot=True) as session:
        assert verify(session, trusted={}, full=True).findings == ()


def test_a_retry_pays_once_and_another_request_pays_again(served):
    account_id = served.account()["id"]
    first = count(served, account_id)
    assert count(served, account_id) == first
    assert count(served, account_id, key="other")["sequence"] == first["sequence"] + 1
    assert served.balance(account_id)["spent_nano"] == 2 * first["price_nano"]
    assert counted(served.app.state.service.storage) == {account_id: 2 * first["price_nano"]}, "beside the database"
    assert count(served, served.account()["id"], status=422)["code"] == "idempotency_mismatch"
    served.send(f"accounts/{account_id}/counts", {}, scope="data", status=422)  # no key


def test_retries_at_the_same_moment_pay_once(served):
    account_id = served.account()["id"]
    answers = at_once(*[lambda: count(served, account_id)] * 4)
    assert len({answer["sequence"] for answer in answers}) == 1
    assert served.balance(account_id)["spent_nano"] == answers[0]["price_nano"]


@pytest.mark.parametrize("scope", ["read", "train"])
def test_only_who_brings_data_may_have_it_counted(served, scope):
    count(served, served.account()["id"], scope=scope, status=403)


def test_accounts_that_cannot_have_their_records_counted(served):
    assert "subjects" in count(served, served.account(unit="subject")["id"], status=422)["detail"]
    frozen = served.account()["id"]
    served.send(f"accounts/{frozen}/freeze", {"reason": "look"})
    count(served, frozen, status=409)
    poor = served.account(epsilon=0.001)["id"]
    assert count(served, poor, status=409)["left_nano"] < count_price()
    count(served, "acc_nobody", status=404)


def test_nothing_is_drawn_where_nothing_was_paid(served, monkeypatch):
    """The charge is committed before any key for noise exists; where it fails no key is made."""
    drawn = []

    def watched(key):
        drawn.append(served.balance(account_id)["spent_nano"])
        return SecureNoise(key)

    monkeypatch.setattr(noise, "SecureNoise", watched)
    with Client(served.url, served.tokens["admin"]) as client:
        account_id = served.account(epsilon=0.001)["id"]
        with pytest.raises(BudgetError):
            counted_bound(client, account_id, 1400)
        account_id = served.account(unit="subject")["id"]
        with pytest.raises(RequestError, match="State the most records"):
            counted_bound(client, account_id, 1400)
        assert drawn == []
        account_id = served.account()["id"]
        assert counted_bound(client, account_id, 1400) >= 1400
        assert drawn == [count_price()]


def count_price():
    return open_filter(1.0, 1e-5).price_nano(count_event(STDDEV))


def test_nothing_is_counted_while_trainings_are_stopped(served):
    account_id = served.account()["id"]
    finding = Finding(FindingCode.OVERSPENT, "more was spent than there is", account_id)
    with transaction(served.factory) as session:
        stop_arming(session, [finding], now=utc_now())
    refused = count(served, account_id, status=409)
    assert (refused["code"], "an operator" in refused["detail"]) == ("arming_stopped", True)
    assert served.balance(account_id)["spent_nano"] == 0
