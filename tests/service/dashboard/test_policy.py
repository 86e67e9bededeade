"""Forms that decide about accounts, sweeps and datasets: who may send them, and what they do."""

import re
from datetime import timedelta
from typing import Any

import pytest
from fastapi.routing import APIRoute
from sqlalchemy import select

from obscura.wire.words import DatasetState, HoldState, JobState
from service import jobs, ledger
from service.dashboard import PARTS
from service.datasets.vault import Vault, write_key
from service.db.access_tables import Admin, ApiKey, Decision
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job
from service.db.session import transaction
from service.identity.admins import introduce
from service.identity.auth import create_key
from service.sealing import new_key
from service.storage.interface import key_of
from service.times import to_the_hour
from tests.service.dashboard.conftest import assert_shown, send, token_of
from tests.service.reading_routes import address as filled

OPTIONS = {"teachers": 10, "top_k": 4}


def account_of(site: Any, account_id: str) -> ledger.Account:
    with transaction(site.factory, read_only=True) as session:
        return ledger.get_account(session, account_id)


def test_admins_admit_and_remove_each_other_from_browsers(site):
    alice, bob, reader = site.signed_in("admin"), site.signed_in("admin"), site.signed_in("read")
    assert reader.get("/admins").status_code == 403
    assert site.client().get("/admins").status_code == 303, "names are not for everybody on this machine"
    assert 'href="/admins"' in alice.get("/").text
    assert 'href="/admins"' not in reader.get("/").text
    introduction = introduce()[1]
    facts = {"name": "Carol <c>", "introduction": introduction, "reason": "a third"}
    assert send(alice, "/admins", "/admins", **facts).status_code == 303
    (asked,) = site.rows(Decision)
    act = f"/decisions/{asked.id}/approve"
    for client, shown in ((alice, "Withdraw"), (bob, "Approve")):
        assert_shown(client.get("/decisions").text, introduction, "Carol &lt;c&gt;", shown)
    refused = send(alice, "/decisions", act)
    assert refused.status_code == 403
    assert "two people" in refused.text
    assert send(bob, "/decisions", act).status_code == 303
    (asked,) = site.rows(Decision)
    remove = f"/admins/{asked.admin_id}/remove"
    assert send(bob, "/admins", remove, reason="a mistake").status_code == 303
    newest = next(row for row in site.rows(Decision) if row.state.value == "pending")
    assert send(alice, "/decisions", f"/decisions/{newest.id}/approve").status_code == 303
    assert_shown(bob.get("/admins").text, "Removed")
    assert_shown(bob.get("/decisions").text, "1 key revoked")
    assert send(bob, "/admins", remove, reason="again").status_code == 409


def test_admins_see_who_made_a_key_when_it_was_used_and_when_it_ends(site):
    alice = site.signed_in("admin")
    with transaction(site.factory) as session:
        mine = session.scalars(select(ApiKey)).one()
        end = {"expires_at": site.now + timedelta(days=30)}
        made = create_key(session, name="nightly <b>", scopes=["read"], created_by=mine.id, now=site.now, **end)[0]
        made.last_used_at = to_the_hour(site.now)
        old = create_key(session, name="old", scopes=["data"], now=site.now, expires_at=site.now + timedelta(minutes=1))
        old[0].created_at = site.now - timedelta(days=1)
        whose = session.get_one(Admin, mine.admin_id).name
    shown = alice.get("/admins").text
    assert_shown(
        shown, "nightly &lt;b&gt;: read", f"by {whose}, with {mine.id}", "2030-01-02T03:00", "2030-02-01T03:04"
    )
    assert_shown(shown, "on the machine", "Never", "Expired")


@pytest.fixture
def sweep(site, stock) -> str:
    """Three trials on the usual account."""
    trials = [jobs.Trial(0.2, {**OPTIONS, "beta": share}) for share in (0.2, 0.1, 0.3)]
    asked = {"name": "thresholds", "dataset_id": stock.dataset, "recipe": "datalens", "evaluation_dataset_id": None}
    with transaction(site.factory) as session:
        by = {"principal": "key_test", "idempotency_key": None, "now": site.now}
        return jobs.submit_sweep(session, **by, **asked, trials=trials).id


def test_a_limit_is_raised_from_two_browsers(site, stock):
    page = f"/accounts/{stock.account}"
    alice, bob = site.signed_in("admin"), site.signed_in("admin")
    before = account_of(site, stock.account).epsilon
    asked = send(alice, f"{page}/controls", f"{page}/raise-limit", epsilon="20", reason="a second study")
    assert (asked.status_code, asked.headers["location"]) == (303, f"{page}/controls")
    (request,) = site.rows(Decision)
    act = f"/decisions/{request.id}"
    for client, shown in ((alice, "Withdraw"), (bob, "Approve")):
        assert_shown(client.get("/decisions").text, "a second study", shown)
        assert_shown(client.get(f"{page}/controls").text, "to ε 20", "Decide or withdraw it")
    assert "Approve" not in alice.get("/decisions").text
    assert f"{page}/controls" in site.client().get("/").text, "the overview says that a request waits"
    refused = send(alice, "/decisions", f"{act}/approve")
    assert refused.status_code == 403
    assert "two people" in refused.text
    assert account_of(site, stock.account).epsilon == before
    assert send(bob, "/decisions", f"{act}/approve").status_code == 303
    assert account_of(site, stock.account).epsilon == 20.0
    assert "by two admins: a second study" in bob.get(f"{page}/ledger").text


def test_a_request_is_withdrawn_or_declined(site, stock):
    page = f"/accounts/{stock.account}"
    alice, bob = site.signed_in("admin"), site.signed_in("admin")
    for client in (alice, bob):
        assert send(alice, f"{page}/controls", f"{page}/raise-limit", epsilon="20", reason="more").status_code == 303
        newest = next(request for request in site.rows(Decision) if request.state.value == "pending")
        assert send(client, "/decisions", f"/decisions/{newest.id}/decline").status_code == 303
    assert {request.state.value for request in site.rows(Decision)} == {"declined"}


def test_a_limit_is_lowered_at_once(site, stock):
    page = f"/accounts/{stock.account}"
    assert (
        send(
            site.signed_in("admin"), f"{page}/controls", f"{page}/lower-limit", epsilon="0.5", reason="less"
        ).status_code
        == 303
    )
    account = account_of(site, stock.account)
    assert (account.epsilon, account.frozen) == (0.5, True)


def test_an_account_is_frozen_and_opened(site, stock):
    page = f"/accounts/{stock.account}"
    admin = site.signed_in("admin")
    assert send(admin, f"{page}/controls", f"{page}/freeze", reason="an audit").status_code == 303
    assert account_of(site, stock.account).frozen
    assert_shown(admin.get(f"{page}/controls").text, "This account is frozen")
    assert "an audit" in admin.get(f"{page}/ledger").text
    assert send(admin, f"{page}/controls", f"{page}/unfreeze", reason="it is over").status_code == 303
    assert not account_of(site, stock.account).frozen


def test_an_account_is_closed_to_new_data_and_takes_it_again(site, stock):
    page, bring = f"/accounts/{stock.account}", f'href="/datasets/new?account={stock.account}"'
    admin, choice = site.signed_in("admin"), f'<option value="{stock.account}"'
    assert_shown(admin.get(f"{page}/controls").text, "Takes new data", "Close to new data")
    assert send(admin, f"{page}/controls", f"{page}/close").status_code == 303
    assert account_of(site, stock.account).closed
    assert "Closed to new data" in admin.get(page).text
    assert bring not in admin.get(f"{page}/data").text
    assert choice not in admin.get("/datasets/new").text
    assert send(admin, f"{page}/controls", f"{page}/reopen").status_code == 303
    assert not account_of(site, stock.account).closed
    assert bring in admin.get(f"{page}/data").text
    assert choice in admin.get("/datasets/new").text


def test_an_account_that_protects_people_says_how_somebody_withdraws(site, stock):
    with transaction(site.factory) as session:
        terms = {"owner": "clinic", "epsilon": 2.0, "delta": 1e-5, "unit": "subject", "adjacency": "add_remove"}
        people = ledger.open_account(session, name="people", now=site.now, **terms).id
    how = f"obscura subjects withdraw --account {people}"
    assert how in site.signed_in("data", "read").get(f"/accounts/{people}/data").text
    assert how not in site.signed_in("read").get(f"/accounts/{people}/data").text
    assert "withdraw" not in site.signed_in("data", "read").get(f"/accounts/{stock.account}/data").text


@pytest.mark.parametrize(
    ("action", "fields"),
    [
        ("raise-limit", {"epsilon": "20", "reason": " "}),
        ("raise-limit", {"epsilon": "20"}),
        ("raise-limit", {"epsilon": "x", "reason": "more"}),
        ("raise-limit", {"epsilon": "nan", "reason": "more"}),
        ("raise-limit", {"epsilon": "1", "reason": "more"}),
        ("raise-limit", {"epsilon": "20", "reason": "two\nlines"}),
        ("lower-limit", {"epsilon": "20", "reason": "less"}),
        ("lower-limit", {"epsilon": "-1", "reason": "less"}),
        ("freeze", {"reason": ""}),
        ("freeze", {}),
    ],
)
def test_forms_out_of_range_change_nothing(site, stock, action, fields):
    page = f"/accounts/{stock.account}"
    before = account_of(site, stock.account)
    answer = send(site.signed_in("admin"), f"{page}/controls", f"{page}/{action}", **fields)
    assert answer.status_code == 422
    assert answer.headers["content-type"].startswith("text/html")
    assert (site.rows(Decision), account_of(site, stock.account).head_hash) == ([], before.head_hash)


def test_a_sweep_shows_its_trials_and_is_cancelled(site, stock, sweep):
    page = f"/sweeps/{sweep}"
    for address in ("/jobs", f"/accounts/{stock.account}/jobs"):
        assert f'href="{page}"' in site.client().get(address).text
    html = site.client().get(page).text
    assert_shown(html, "thresholds", "3 trainings", "Beta 0.1", "0 of 3", "Every trial is paid for")
    assert "Cancel what has not ended" not in html
    trainer = site.signed_in("train", "read")
    for address in (page, f"{page}/part"):
        assert "Cancel what has not ended" in trainer.get(address).text
    assert send(trainer, page, f"{page}/cancel").status_code == 303
    for address in (page, f"{page}/part"):
        assert "Cancel what has not ended" not in trainer.get(address).text
    trials = site.rows(Job, Job.sweep_id == sweep)
    assert {trial.state for trial in trials} == {JobState.CANCELLED}
    assert {site.hold_of(trial.id).state for trial in trials} == {HoldState.RETURNED}
    assert "3 of 3" in site.client().get(f"{page}/part").text
    assert site.client().get("/sweeps/swp_x").status_code == 404


def test_a_sweep_over_epsilon_names_each_trial_by_it_and_links_its_release(site, stock):
    """Without public images to measure them on."""
    with transaction(site.factory) as session:
        by = {"principal": "key_test", "idempotency_key": None, "now": site.now}
        asked = {"name": "three", "dataset_id": stock.dataset, "recipe": "datalens", "evaluation_dataset_id": None}
        trials = [jobs.Trial(epsilon, OPTIONS) for epsilon in (0.1, 0.2, 0.3)]
        sweep_id = jobs.submit_sweep(session, **by, **asked, trials=trials).id
    first, *_ = (job.id for job in site.rows(Job, Job.sweep_id == sweep_id) if job.epsilon == 0.1)
    release = site.add_release(first, name="smallest")
    for address in (f"/sweeps/{sweep_id}", f"/sweeps/{sweep_id}/part"):
        shown = site.client().get(address).text
        assert re.findall(r'<a href="/jobs/\w+">([^<]+)</a>', shown) == ["ε 0.1", "ε 0.2", "ε 0.3"]
        assert re.findall(r'<a href="/releases/(\w+)">Open', shown) == [release]


@pytest.fixture
def sealed(site: Any, stock: Any) -> str:
    """The usual dataset with a key and files."""
    write_key(Vault.of(site.settings).key_path(stock.dataset), new_key())
    (site.settings.data_dir / key_of(stock.dataset)).mkdir(parents=True)
    return stock.dataset


def test_a_dataset_is_deleted_with_the_trainings_that_need_it(site, stock, sealed):
    page = f"/datasets/{sealed}"
    html = site.client().get(page).text
    assert "No budget returns" in html
    assert '<form class="stack' not in html, "nobody is signed in"
    uploader = site.signed_in("data", "read")
    assert "Cancel the 2 jobs that need it" in uploader.get(page).text
    assert send(uploader, page, f"{page}/delete").status_code == 422
    assert send(uploader, page, f"{page}/delete", sure="yes").status_code == 409
    assert Vault.of(site.settings).key_path(sealed).exists()
    assert send(uploader, page, f"{page}/delete", sure="yes", cancel_jobs="yes").status_code == 303
    assert not Vault.of(site.settings).key_path(sealed).exists()
    assert not (site.settings.data_dir / key_of(sealed)).exists()
    assert site.job(stock.queued).state is JobState.CANCELLED
    assert site.job(stock.running).cancel_requested
    assert site.row(Dataset, sealed).state is DatasetState.DELETING
    html = uploader.get(page).text
    assert_shown(html, "Deleting", "no copy of the images")
    assert f"{page}/delete" not in html
    assert site.client().get("/datasets/ds_x").status_code == 404


SIGNING_IN = {"/login", "/logout", "/sign-in/{secret}", "/datasets/new"}  # test_access.py, test_creating.py
FORMS = {
    route.path for part in PARTS for route in part.routes if isinstance(route, APIRoute) and "POST" in route.methods
}


def test_no_form_acts_without_a_session_or_its_own_token_or_from_another_site(site, stock, sealed, sweep):
    """Which scope each form needs is asked in tests/service/test_matrix.py."""
    alice, other, nobody = site.signed_in("admin"), site.signed_in("admin"), site.client()
    account = f"/accounts/{stock.account}"
    send(alice, f"{account}/controls", f"{account}/raise-limit", epsilon="20", reason="more")
    ids = {"account_id": stock.account, "dataset_id": sealed, "release_id": stock.release, "job_id": stock.queued}
    ids |= {"sweep_id": sweep, "request_id": site.rows(Decision)[0].id, "admin_id": site.rows(Admin)[0].id}
    fields = {"epsilon": "0.1", "reason": "why", "sure": "yes", "cancel_jobs": "yes", "name": "eve", "jobs": "1"}
    fields["introduction"] = introduce()[1]
    foreign, own = (token_of(client, f"{account}/controls") for client in (alice, other))

    def state() -> tuple[Any, ...]:
        rows = [*site.rows(Job), *site.rows(Decision)]
        account = account_of(site, stock.account)
        facts = account.head_hash, account.closed, len(site.rows(ApiKey))
        return *facts, *((row.id, row.state) for row in rows)

    before = state()
    for action in (filled(path, ids) for path in sorted(FORMS - SIGNING_IN)):
        assert nobody.post(action, data=fields).headers["location"].startswith("/login"), action
        for token in ("", foreign):
            assert other.post(action, data={**fields, "token": token}).status_code == 403, action
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert other.post(action, data={**fields, "token": own}, headers=headers).status_code == 403, action
        shown = {200} if action in ("/admins", "/jobs") else {404, 405}  # pages of that address
        assert other.get(action).status_code in shown, "nothing is done by following a link"
    assert state() == before
    assert Vault.of(site.settings).key_path(sealed).exists()
