"""Forms that decide about accounts, sweeps and datasets: who may send them, and what they do."""

import json
import re
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

from obscura.wire.wording import FILTERS
from obscura.wire.words import JobState
from service import jobs, ledger
from service.db.access_tables import Admin, ApiKey, Decision
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.db.ledger_tables import Account
from service.db.session import transaction
from service.identity.admins import introduce
from service.identity.auth import create_key, principal_of
from service.times import to_the_hour
from tests.service.dashboard.conftest import ORIGIN, assert_shown, forms_of, submit, token_of

OPTIONS = {"teachers": 10, "top_k": 4}


def test_admins_admit_and_remove_each_other_from_browsers(site):
    alice, bob, reader = site.signed_in("admin"), site.signed_in("admin"), site.signed_in("read")
    assert reader.get("/settings/members").status_code == 403
    assert site.client().get("/settings/members").status_code == 303, "names are not for everybody on this machine"
    assert 'href="/settings/members"' in alice.get("/").text
    assert 'href="/settings/members"' not in reader.get("/").text
    introduction = introduce()[1]
    facts = {"name": "Carol <c>", "introduction": introduction, "reason": "a third"}
    assert submit(alice, "/settings/members", "POST /v1/admins", **facts).status_code == 201
    (asked,) = site.rows(Decision)
    act = f"POST /v1/decisions/{asked.id}/approve"
    for client, shown in ((alice, "Withdraw"), (bob, "Approve")):
        assert_shown(client.get("/decisions").text, introduction, "Carol &lt;c&gt;", shown)
        assert ('<span class="count">1<span' in client.get("/").text) is (client is bob)
    assert 'class="count"' not in bob.get("/nowhere", headers={"accept": "text/html"}).text
    assert act not in forms_of(alice.get("/decisions").text), "nobody approves what they asked for"
    assert submit(bob, "/decisions", act).status_code == 200
    (asked,) = site.rows(Decision)
    remove = f"POST /v1/admins/{asked.admin_id}/remove"
    assert submit(bob, "/settings/members", remove, reason="a mistake").status_code == 201
    newest = next(row for row in site.rows(Decision) if row.state.value == "pending")
    assert submit(alice, "/decisions", f"POST /v1/decisions/{newest.id}/approve").status_code == 200
    assert_shown(bob.get("/settings/members").text, "Removed")
    assert_shown(bob.get("/decisions").text, "1 key revoked")
    assert remove not in forms_of(bob.get("/settings/members").text)


def test_admins_see_who_made_a_key_when_it_was_used_and_when_it_ends(site):
    alice = site.signed_in("admin")
    with transaction(site.factory) as session:
        mine = session.scalars(select(ApiKey)).one()
        end = {"expires_at": site.now + timedelta(days=30)}
        made = create_key(session, name="nightly <b>", scopes=["read"], by=principal_of(mine), now=site.now, **end)[0]
        made.last_used_at = to_the_hour(site.now)
        old = create_key(session, name="old", scopes=["data"], now=site.now, expires_at=site.now + timedelta(minutes=1))
        old[0].created_at = site.now - timedelta(days=1)
        whose = session.get_one(Admin, mine.admin_id).name
    shown = alice.get("/settings/keys").text
    assert_shown(
        shown, "nightly &lt;b&gt;: read", f"by {whose}, with {mine.id}", "2030-01-02T03:00", "2030-02-01T03:04"
    )
    assert_shown(shown, "on the machine", "Never", "Expired")


def submit_sweep(site: Any, stock: Any, trials: list[jobs.Trial]) -> str:
    """Ask for a sweep on the usual account, without public images to measure it on."""
    asked = {"name": "thresholds", "dataset_id": stock.dataset, "recipe": "datalens", "evaluation_dataset_id": None}
    by = {"principal": "key_test", "idempotency_key": None, "now": site.now}
    return site.do(jobs.submit_sweep, **by, **asked, trials=trials).id


@pytest.fixture
def sweep(site, stock) -> str:
    return submit_sweep(site, stock, [jobs.Trial(0.2, {**OPTIONS, "beta": share}) for share in (0.2, 0.1, 0.3)])


def test_a_limit_is_raised_from_two_browsers(site, stock):
    page = f"/accounts/{stock.account}"
    alice, bob = site.signed_in("admin"), site.signed_in("admin")
    ask = partial(submit, alice, f"{page}/controls", f"POST /v1{page}/raise-limit")
    mistake = ask(epsilon=200, reason="a mistake").json()["id"]
    assert submit(alice, "/decisions", f"POST /v1/decisions/{mistake}/decline").json()["state"] == "declined"
    asked = ask(epsilon=20, reason="a second study")
    assert asked.status_code == 201
    raised = ledger.balance_of(site.read(ledger.get_account, stock.account), 20)
    now, then = (FILTERS["sure"](each.attacker_certainty_max) for each in (site.balance(stock.account), raised))
    odds = f"An attacker’s 50% can become {now} → {then}"
    for client, shown in ((alice, "Withdraw"), (bob, "Approve")):
        assert_shown(client.get("/decisions").text, "a second study", shown, odds)
        assert_shown(client.get(f"{page}/controls").text, "to ε 20", "Decide or withdraw it", odds)
    assert "Approve" not in alice.get("/decisions").text
    assert f"{page}/controls" in site.client().get("/").text, "the overview says that a request waits"
    assert submit(bob, "/decisions", f"POST /v1/decisions/{asked.json()['id']}/approve").status_code == 200
    assert_shown(bob.get(f"{page}/ledger").text, "by two admins: a second study", "Times are rounded down to the hour")
    assert odds not in alice.get("/decisions").text


def test_an_account_is_frozen_and_opened(site, stock):
    page = f"/accounts/{stock.account}"
    admin = site.signed_in("admin")
    for act, reason, frozen in (("freeze", "an audit", True), ("unfreeze", "it is over", False)):
        assert submit(admin, f"{page}/controls", f"POST /v1{page}/{act}", reason=reason).is_success
        assert ("This account is frozen" in admin.get(f"{page}/controls").text) is frozen
        assert reason in admin.get(f"{page}/ledger").text


def test_an_account_is_closed_to_new_data_and_takes_it_again(site, stock):
    page, bring = f"/accounts/{stock.account}", f'href="/datasets/new?account={stock.account}"'
    admin, choice = site.signed_in("admin"), f'<option value="{stock.account}"'
    assert_shown(admin.get(f"{page}/controls").text, "Open to new data", "Close to new data")
    for act, closed in (("close", True), ("reopen", False)):
        assert submit(admin, f"{page}/controls", f"POST /v1{page}/{act}").is_success
        assert ("Closed to new data" in admin.get(page).text) is closed
        assert (bring in admin.get(f"{page}/data").text) is not closed
        assert (choice in admin.get("/datasets/new").text) is not closed


def test_an_account_that_protects_people_says_how_somebody_withdraws(site, stock, open_account):
    people = open_account(site.factory, name="people", unit="subject")
    how = f"obscura subjects withdraw --account {people}"
    assert how in site.signed_in("data", "read").get(f"/accounts/{people}/data").text
    assert how not in site.signed_in("read").get(f"/accounts/{people}/data").text
    assert "withdraw" not in site.signed_in("data", "read").get(f"/accounts/{stock.account}/data").text


def test_a_sweep_shows_its_trials_and_is_cancelled(site, stock, sweep, trainer):
    page = f"/sweeps/{sweep}"
    for address in ("/jobs", f"/accounts/{stock.account}/jobs"):
        assert f'href="{page}"' in site.client().get(address).text
    html = site.client().get(page).text
    assert_shown(html, "thresholds", "3 trainings", "Beta 0.1", "0 of 3", "You pay for every trial")
    assert "Cancel unfinished trials" not in html
    for address in (page, f"{page}/part"):
        assert "Cancel unfinished trials" in trainer.get(address).text
    assert submit(trainer, page, f"POST /v1{page}/cancel").is_success
    for address in (page, f"{page}/part"):
        assert "Cancel unfinished trials" not in trainer.get(address).text
    assert "3 of 3" in site.client().get(f"{page}/part").text
    assert site.client().get("/sweeps/swp_x").status_code == 404


def test_a_sweep_over_epsilon_names_each_trial_by_it_and_links_its_release(site, stock):
    sweep_id = submit_sweep(site, stock, [jobs.Trial(epsilon, OPTIONS) for epsilon in (0.1, 0.2, 0.3)])
    first, *_ = (job.id for job in site.rows(Job, Job.sweep_id == sweep_id) if job.epsilon == 0.1)
    release = site.add_release(first, name="smallest")
    for address in (f"/sweeps/{sweep_id}", f"/sweeps/{sweep_id}/part"):
        shown = site.client().get(address).text
        assert re.findall(r'<a href="/jobs/\w+">([^<]+)</a>', shown) == ["ε 0.1", "ε 0.2", "ε 0.3"]
        thumbs = r'<a class="thumb" href="/releases/(\w+)"><img src="/releases/\1/tiles.png"'
        assert re.findall(thumbs, shown) == [release]


def test_a_dataset_is_deleted_with_the_trainings_that_need_it(site, stock, uploader):
    page = f"/datasets/{stock.dataset}"
    html = site.client().get(page).text
    assert "no budget returns" in html
    assert forms_of(html) == {}, "nobody is signed in"
    assert "Cancel the 2 jobs that need this dataset" in uploader.get(page).text
    assert re.findall(r'type="checkbox" required', uploader.get(page).text) == ['type="checkbox" required']
    named = re.findall(r'data-confirm="([^"]+)" required', uploader.get(page).text)
    assert named == [site.row(Dataset, stock.dataset).name]
    assert submit(uploader, page, f"DELETE /v1{page}?cancel_jobs=true").is_success
    assert site.job(stock.queued).state is JobState.CANCELLED
    assert site.job(stock.running).cancel_requested
    html = uploader.get(page).text
    assert_shown(html, "Deleting", "no copy of the images")
    assert forms_of(html) == {}
    assert site.client().get("/datasets/ds_x").status_code == 404


NEW_ACCOUNT = "/accounts/new?name=a&owner=b&epsilon=1&units=100&unit=record&review=1"
FORM_PAGES = (
    NEW_ACCOUNT,
    "/settings/members",
    "/settings/keys",
    "/settings/webhooks",
    "/decisions",
    "/settings/projects",
    "/train?epsilon=0.1&recipe=moments",
)


def test_every_form_sends_what_a_route_of_the_api_takes(site, stock, sweep):
    admin = site.signed_in("admin")
    document = admin.get("/v1/openapi.json").json()
    paths = {re.sub(r"{\w+}", "[^/?]+", path): path for path in document["paths"]}
    page = f"/accounts/{stock.account}/controls"
    submit(admin, page, f"POST /v1/accounts/{stock.account}/raise-limit", epsilon=20, reason="more")
    pages = [*FORM_PAGES, page, f"/sweeps/{sweep}", *stock.pages]
    seen: dict[str, str] = {}
    for address in pages:
        text = admin.get(address).text
        for call, (fixed, names) in forms_of(text).items():
            method, place = call.split(" ")
            path = next(
                path for pattern, path in paths.items() if re.fullmatch(rf"{pattern}(\?cancel_jobs=true)?", place)
            )
            operation = document["paths"][path][method.lower()]
            texts = [json.dumps(operation.get("requestBody", {}))]
            for name in re.findall(r"#/components/schemas/(\w+Request)", texts[0]):
                texts.append(json.dumps(document["components"]["schemas"][name]))
            schemas = [
                document["components"]["schemas"][name] for name in set(re.findall(r"(\w+Request)\"", "".join(texts)))
            ]
            assert not schemas or any(
                {*each.get("required", [])} <= {*fixed, *names} <= each.get("properties", {}).keys() for each in schemas
            ), call
            seen[f"{method} {path}"] = address
    assert len(seen) >= 15, seen


def test_the_api_takes_a_session_only_from_its_own_pages(site, stock):
    """From the same origin, with the token of the same session; each route asks for its scope as it does of keys."""
    alice, other, reader = site.signed_in("admin"), site.signed_in("admin"), site.signed_in("read")
    page, call = f"/accounts/{stock.account}/controls", f"/v1/accounts/{stock.account}/freeze"
    foreign, own = (token_of(client, page) for client in (alice, other))
    why = {"reason": "why"}
    assert site.client().post(call, json=why, headers=ORIGIN | {"X-Form-Token": own}).status_code == 401
    assert other.post(call, json=why, headers=ORIGIN).status_code == 401
    for token in ("", foreign):
        assert other.post(call, json=why, headers=ORIGIN | {"X-Form-Token": token}).status_code == 403
    for elsewhere in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        assert other.post(call, json=why, headers=elsewhere | {"X-Form-Token": own}).status_code == 403
    mine = {"X-Form-Token": token_of(reader, page)}
    assert reader.post(call, json=why, headers=ORIGIN | mine).status_code == 403
    assert not site.row(Account, stock.account).frozen
    assert other.post(call, json=why, headers=ORIGIN | {"X-Form-Token": own}).status_code == 200
    assert site.row(Account, stock.account).frozen
