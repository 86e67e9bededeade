"""Pages of accounts: spending by job, the ledger and its export, opening, effects of changes; and error pages."""

import csv
import html
import io
import json
import math
import re
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from obscura.wire.budgets import DELTA_USUAL_MOST, usual_delta
from obscura.wire.words import DatasetState, EntryKind
from privacy.accounting.filter import attacker_certainty_max, open_filter
from service import ledger
from service.dashboard import accounts as pages
from service.dashboard.accounts import write_csv
from service.dashboard.charts import HEIGHT, WIDTH, spend_chart
from service.db.base import new_id
from service.db.dataset_tables import Dataset
from service.db.ledger_tables import Account, Entry
from service.views import accounts as views
from service.views.accounts import JobCost
from service.wording import FILTERS
from tests.service.dashboard.conftest import assert_shown, forms_of, submit
from tests.service.dashboard.test_pages import Page, words_of
from tests.service.steps import charge, hold_amount

TERMS = {"name": "the people", "owner": "Dr. O'Hara", "epsilon": "3", "units": "60000", "unit": "record"}


def cost(number: int, share: float, ended: EntryKind | None = EntryKind.CAPTURE) -> JobCost:
    return JobCost(f"job_{number}", "Training Moments on digits", ended, datetime(2030, 1, 1, tzinfo=UTC), share)


# --- spending ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.0001, 0.7), max_size=20), st.floats(0, 1.2))
@example([], 0.0)
def test_bars_are_stacked_in_order_and_stay_in_the_box(shares, earlier):
    chart = spend_chart([cost(number, share) for number, share in enumerate(shares)], earlier)
    if chart is None:
        assert not shares
        return
    assert [bar.label for bar in chart.bars if bar.cost] == [str(number + 1) for number in range(len(shares))]
    for bar in chart.bars:
        assert 0 <= bar.x <= bar.x + chart.thick <= WIDTH
        assert 0 <= bar.y <= bar.y + bar.tall <= HEIGHT
    for before, after in pairwise(chart.bars):
        assert after.x > before.x + chart.thick
        assert after.y + after.tall == pytest.approx(before.y, abs=0.2), "on top of the bar before it"
    (_, zero), _, (_, limit) = chart.percents
    last = chart.bars[-1]
    assert last.y == pytest.approx(zero - (zero - limit) * last.total, abs=0.2 + 0.1 * last.total)


def test_an_account_shows_a_bar_and_a_row_for_each_job_in_the_order_of_requests(site, stock):
    page = site.client().get(f"/accounts/{stock.account}").text
    balance, words = site.balance(stock.account), words_of(page)
    rows = [f'href="/jobs/{job}">Training DataLens on' for job in (stock.done, stock.running, stock.queued)]
    places = [page.index(row) for row in rows]
    assert places == sorted(places)
    chart = next(svg for svg in Page(page).all("svg") if svg.get("class") == "chart spending")
    assert "against the limit" in chart["aria-label"]
    show = FILTERS["percent_up"]
    total = (balance.spent_nano + balance.reserved_nano) / balance.capacity_nano
    assert_shown(words, f"2. Training DataLens on {site.row(Dataset, stock.dataset).name}", show(total))
    assert page.count("% reserved</td>") == 2


def test_what_older_jobs_spent_is_one_bar(site, stock, monkeypatch):
    monkeypatch.setattr(views, "BARS_MAX", 2)
    costs, earlier = site.do(views.recent_costs, stock.account)
    balance = site.balance(stock.account)
    assert [each.job_id for each in costs] == [stock.running, stock.queued]
    assert earlier == balance.spent_nano / balance.capacity_nano > 0
    assert "Earlier spending" in site.client().get(f"/accounts/{stock.account}").text


def test_the_next_step_of_an_account_follows_from_what_it_has(site, open_account, declare_dataset):
    account = open_account(site.factory)
    page = f"/accounts/{account}"

    def step(client: Any = None) -> list[str]:
        return re.findall(r'class="button" href="([^"]+)"', (client or site.client()).get(page).text)

    declare_dataset(site.factory, account_id=account, state=DatasetState.DECLARED)
    assert step() == step(site.signed_in("data", "read")) == [f"/datasets/new?account={account}"]
    assert step(site.signed_in("train", "read")) == []
    site.change(Account, account, closed=True)
    assert step() == []
    dataset = declare_dataset(site.factory, account_id=account)
    assert step() == step(site.signed_in("train", "read")) == [f"/train?dataset={dataset}"]
    assert step(site.signed_in("data", "read")) == []
    rest = {"job_id": new_id("job"), "amount_nano": site.balance(account).left_nano, "now": site.now}
    site.do(hold_amount, account_id=account, **rest)
    assert step() == [f"/releases?account={account}"]
    site.do(ledger.limits.set_frozen, account_id=account, frozen=True, reason="an audit", now=site.now)
    assert step() == [f"{page}/controls"]


# --- ledger -----------------------------------------------------------------------------------------------------------


def test_the_ledger_has_a_sentence_for_each_job_and_each_change(site, stock):
    cancelled = site.hold_of(site.add_job(stock.account, stock.dataset, epsilon=0.1))
    site.do(ledger.return_hold, hold_id=cancelled.id, reason="cancelled", now=site.now)
    site.do(ledger.limits.lower_limit, account_id=stock.account, epsilon=7.5, reason="less", now=site.now)
    capacity = site.balance(stock.account).capacity_nano
    shares = [FILTERS["percent_up"](site.hold_of(job).amount_nano / capacity) for job in (stock.done, stock.running)]
    shown = words_of(site.client().get(f"/accounts/{stock.account}/ledger").text)
    name = site.row(Dataset, stock.dataset).name
    assert_shown(
        shown,
        "Limit changed from ε 8.0 to ε 7.5: less",
        f"Training DataLens on {name}: nothing was spent",
        f"Training DataLens on {name}: {shares[1]} reserved",
        f"Training DataLens on {name}: {shares[0]} spent, nothing published",
        "Account opened with ε 8.0",
    )


def test_every_entry_is_in_the_row_of_its_job_once(site, stock):
    hold = {"hold_id": site.job(stock.running).hold_id, "attempt": 1, "now": site.now}
    for _ in range(6):
        site.do(charge, **hold, amount_nano=1000, stage="votes")
    text = site.client().get(f"/accounts/{stock.account}/ledger").text
    assert "7 charges in a row" in text
    (row,) = [row for row in text.split("<tr ") if f'href="/jobs/{stock.running}"' in row]
    of_job = site.rows(Entry, Entry.job_id == stock.running)
    assert set(re.findall(r'data-copy="([0-9a-f]{64})"', row)) == {entry.hash for entry in of_job}
    found = re.findall(r'data-copy="([0-9a-f]{64})"', text)
    assert sorted(found) == sorted(entry.hash for entry in site.rows(Entry, Entry.account_id == stock.account))


@pytest.mark.parametrize(("groups", "entries"), [(2, 1000), (1000, 6), (1000, 1)])
def test_pages_of_the_ledger_are_bounded_and_skip_nothing(site, stock, monkeypatch, groups, entries):
    monkeypatch.setattr(views, "GROUPS_A_PAGE", groups)
    monkeypatch.setattr(views, "ENTRIES_A_PAGE", entries)
    seen: list[int] = []
    before, count = None, 0
    while count == 0 or before is not None:
        page, before = site.do(views.log_groups, stock.account, before)
        sequences = [[entry.sequence for run in group.runs for entry in run] for group in page]
        assert len(page) <= groups
        assert len(page) == 1 or sum(map(len, sequences)) <= entries
        seen += [number for group in sequences for number in group]
        count += 1
    assert count > 1
    assert sorted(seen) == list(range(1, site.row(Account, stock.account).head_sequence + 1))


def test_jobs_of_a_hidden_project_are_not_named_in_the_ledger(make_site, open_account, declare_dataset):
    site = make_site()
    account = open_account(site.factory, name="patients")
    job = site.add_job(account, declare_dataset(site.factory, account_id=account, name="hidden"), epsilon=1.0)
    admin = site.signed_in("admin")
    assert "Training DataLens on hidden" in admin.get(f"/accounts/{account}/ledger").text
    site.execute("INSERT INTO projects (id, name, created_at) SELECT 'prj_other', 'other', created_at FROM accounts")
    for part in ("", "/ledger"):
        shown = admin.get(f"/accounts/{account}{part}").text
        assert_shown(shown, "A training in another project")
        assert "hidden<" not in shown
        assert f'href="/jobs/{job}">Training' not in shown


def test_the_ledger_is_exported_as_the_api_returns_it(site, stock, monkeypatch):
    monkeypatch.setattr(pages, "ENTRIES_A_BLOCK", 3)
    answer = site.client().get(f"/accounts/{stock.account}/ledger.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"] == f'attachment; filename="{stock.account}-ledger.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    token = {"Authorization": f"Bearer {site.key('read')}"}
    items = site.client().get(f"/v1/accounts/{stock.account}/entries", headers=token).json()["items"]
    assert len(items) > 3
    expected = [{name: "" if value is None else value for name, value in item.items()} for item in items]
    assert [row | {"details": json.loads(row["details"])} for row in rows] == [
        {name: value if name == "details" else str(value) for name, value in item.items()} for item in expected
    ]
    assert site.client().get("/accounts/acc_x/ledger.csv").status_code == 404


def test_an_export_holds_one_block_and_no_connection(site, stock, monkeypatch):
    monkeypatch.setattr(pages, "ENTRIES_A_BLOCK", 3)
    pool, used = site.factory.kw["bind"].pool, []

    async def read() -> list[str]:
        parts = []
        async for part in pages.ledger_csv(site.app.state.service, stock.account).body_iterator:
            used.append(pool.checkedout())
            parts.append(str(part))
        return parts

    blocks = [part.count("\n") for part in anyio.run(read)]
    assert blocks[0] == 1
    assert sum(blocks) - 1 == site.row(Account, stock.account).head_sequence
    assert max(blocks) <= 3 < sum(blocks)
    assert set(used) == {0}


def test_the_export_needs_what_the_page_needs(make_site, open_account):
    site = make_site()
    address = f"/accounts/{open_account(site.factory)}/ledger.csv"
    assert site.client().get(address).status_code == 303
    assert site.signed_in("read").get(address).status_code == 200


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_cells_that_a_spreadsheet_would_run_are_quoted(text):
    (row,) = csv.reader(io.StringIO(write_csv([[text, 5, None, {"a": text}]]), newline=""))
    assert row[:3] == [f"'{text}", "5", ""]
    assert json.loads(row[3]) == {"a": text}


# --- opening ----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 2**31 - 1))
@example(1000)
@example(1001)
def test_the_proposed_delta_is_the_largest_power_of_ten_that_the_rule_permits(units):
    delta = usual_delta(units)
    assert delta <= min(1 / (10 * units) * (1 + 1e-12), DELTA_USUAL_MOST)
    assert delta == DELTA_USUAL_MOST or delta * 10 > 1 / (10 * units) * (1 + 1e-12)
    assert delta == float(f"{delta:.0e}") == 10.0 ** round(math.log10(delta))


def opening(client: Any, **fields: str) -> str:
    answer = client.get(f"/accounts/new?{urlencode(TERMS | fields)}")
    assert answer.status_code == 200
    return str(answer.text)


def test_the_odds_of_each_budget_are_those_of_the_ledger(site):
    admin = site.signed_in("admin")
    for units, delta in (("", 1e-5), ("60000", 1e-6), ("3", 1e-4)):
        shown = opening(admin, units=units, epsilon="other", other_epsilon="2.5")
        offered = (0.5, 1.0, 3.0, 8.0, 2.5)
        odds = [FILTERS["sure"](attacker_certainty_max(open_filter(epsilon, delta))) for epsilon in offered]
        assert re.findall(r'id="odds-(?:\d|other)" data-part>([^<]+)<', shown) == odds
    assert '<span class="share" id="odds-other" data-part>–' in opening(admin, other_epsilon="nan")


def test_an_account_is_opened_only_from_a_review_of_the_permanent_choice(site):
    admin = site.signed_in("admin")
    assert forms_of(opening(admin)) == {}
    review = opening(admin, review="1")
    sure = FILTERS["sure"](attacker_certainty_max(open_filter(3.0, 1e-6)))
    said = "This choice is permanent", "each image", f"An attacker’s 50% becomes at most {sure}.", "1 in 1,000,000"
    assert_shown(words_of(review), *said)
    assert "accept_large_delta" not in review
    assert_shown(
        html.unescape(review),
        "create 'the people' --owner 'Dr. O'\"'\"'Hara' --epsilon 3.0 --delta 1e-06 --unit record",
    )
    (change,) = re.findall(r'<a href="(\?[^"]+)">Change', review)
    assert 'name="name" type="text" value="the people"' in admin.get(f"/accounts/new{html.unescape(change)}").text
    address = f"/accounts/new?{urlencode(TERMS | {'review': '1'})}"
    account = site.row(Account, submit(admin, address, "POST /v1/accounts").json()["id"])
    assert (account.name, account.owner, account.epsilon) == ("the people", "Dr. O'Hara", 3.0)
    assert (account.delta, account.unit.value) == (1e-6, "record")


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"name": ""}, "name"),
        ({"unit": ""}, "unit"),
        ({"units": "many"}, "units"),
        ({"other_delta": "1"}, "other_delta"),
    ]
    + [({"epsilon": "other", "other_epsilon": value}, "epsilon") for value in ("", "x", "5000")],
)
def test_an_incomplete_account_is_not_reviewed_but_marked(site, fields, place):
    admin = site.signed_in("admin")
    page = opening(admin, **fields, review="1")
    assert re.findall(r'data-fault="(\w+)">[^<]', page) == [place]
    assert not re.search(r'data-fault="\w+">[^<]', opening(admin, **fields)), "not before it is sent"


def test_a_large_delta_is_warned_of_and_confirmed(site):
    admin = site.signed_in("admin")
    assert "You must confirm it" in opening(admin, other_delta="0.05")
    assert "You must confirm it" not in opening(admin, other_delta="1e-4")
    review = opening(admin, other_delta="0.05", review="1")
    assert_shown(review, "1 in 20", 'name="accept_large_delta" type="checkbox" required')
    address = f"/accounts/new?{urlencode(TERMS | {'other_delta': '0.05', 'review': '1'})}"
    assert submit(admin, address, "POST /v1/accounts").json()["code"] == "large_delta"
    assert submit(admin, address, "POST /v1/accounts", accept_large_delta=True).status_code == 201


# --- changes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "form"), [(20, "raise"), (6, "lower"), (0.5, "lower")])
def test_a_new_limit_shows_the_effect_that_it_then_has(site, stock, epsilon, form):
    admin, page = site.signed_in("admin"), f"/accounts/{stock.account}/controls"
    before = site.balance(stock.account)
    texts = dict(
        re.findall(r'id="(\w+)-effect" role="status" data-part>(.*?)</p>', admin.get(f"{page}?epsilon={epsilon}").text)
    )
    assert [name for name, text in texts.items() if text] == [form]
    change = {"epsilon": epsilon, "reason": "why"}
    done = submit(admin, page, f"POST /v1/accounts/{stock.account}/{form}-limit", **change).json()
    if form == "raise":
        assert submit(site.signed_in("admin"), "/decisions", f"POST /v1/decisions/{done['id']}/approve").is_success
    after = site.balance(stock.account)
    shown = words_of(texts[form])
    down, sure = FILTERS["percent_down"], FILTERS["sure"]
    assert f"Left {down(before.left_fraction)} → {down(after.left_fraction)}." in shown
    assert f"can become {sure(before.attacker_certainty_max)} → {sure(after.attacker_certainty_max)}." in shown
    assert ("This freezes the account" in shown) is site.row(Account, stock.account).frozen
    assert after.limit_epsilon == epsilon


@pytest.mark.parametrize("epsilon", ["8", "-1", "0", "1e9", "nan"])
def test_a_limit_that_changes_nothing_or_cannot_be_has_no_effect(site, stock, epsilon):
    page = site.signed_in("admin").get(f"/accounts/{stock.account}/controls?epsilon={epsilon}")
    assert page.status_code == 200
    assert "→" not in page.text


def test_freezing_closing_and_lowering_tell_what_they_stop_and_ask_for_the_name(site, stock, declare_dataset):
    admin, page = site.signed_in("admin"), f"/accounts/{stock.account}/controls"
    named = r"data-call=\"POST /v1/accounts/\w+/([\w-]+)\"(?:(?!</form>).)*data-confirm=\"patients\" required"
    shown = admin.get(page).text
    assert set(re.findall(named, shown, re.DOTALL)) == {"lower-limit", "freeze", "close"}
    assert_shown(
        words_of(shown), "1 job must wait until it is opened again", "1 job that opened the data will continue"
    )
    assert "No declared dataset waits" in shown
    declare_dataset(site.factory, account_id=stock.account, state=DatasetState.DECLARED)
    assert "1 declared dataset without images" in admin.get(page).text


# --- home and errors --------------------------------------------------------------------------------------------------


def test_first_steps_offer_only_what_the_role_may_do(site):
    shown = site.signed_in("train", "read").get("/").text
    assert re.findall(r'class="button" href="(/[\w/]+)"', shown) == ["/train"]
    assert_shown(words_of(shown), "This needs a key with the scope admin.", "This needs a key with the scope data.")
    assert 'href="/accounts/new"' not in shown


def test_error_pages_keep_the_menu_and_say_what_to_do(site, stock):
    browser = {"Accept": "text/html"}
    reader = site.signed_in("read")
    for client, address, status, title in (
        (reader, "/nothing", 404, "Not found"),
        (reader, "/jobs/job_x", 404, "Not found"),
        (reader, "/settings/members", 403, "Permission denied"),
        (reader, "/jobs?state=asleep", 422, "Invalid request"),
        (reader, "/logout", 405, "Invalid request"),
    ):
        answer = client.get(address, headers=browser)
        assert (answer.status_code, f"<h1>{title}</h1>" in answer.text) == (status, True), address
        assert_shown(answer.text, 'aria-label="Main"', "Sign out", f"<code>{answer.headers['X-Request-Id']}</code>")
    assert 'href="/docs/reference/errors/#not_found"' in reader.get("/jobs/job_x").text


def test_an_unknown_address_reveals_no_menu_to_strangers(make_site):
    answer = make_site().client().get("/nothing", headers={"Accept": "text/html"})
    assert (answer.status_code, 'aria-label="Main"' in answer.text) == (404, False)


def test_an_unexpected_error_is_a_page_with_a_request_id(site, stock, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(pages.admins, "pending_raises", fail)
    client = site.client()
    client._transport.raise_server_exceptions = False
    answer = client.get("/", headers={"Accept": "text/html"})
    assert (answer.status_code, "<h1>Internal error</h1>" in answer.text, "secret" in answer.text) == (500, True, False)
    assert f"<code>{answer.headers['X-Request-Id']}</code>" in answer.text
    assert client.get("/").json()["code"] == "internal"
