"""A search is started by a form: its whole price is shown before, held once, and refused beside the field at fault."""

import html
import re
from urllib.parse import urlencode

import pytest

from service import ledger
from service.db.job_tables import Job, Sweep
from service.db.session import transaction
from tests.service.dashboard.conftest import Site, Stock, assert_shown, send
from tests.service.reading_routes import TestClient


def asked(stock: Stock, *tried: tuple[str, str], **fields: str) -> str:
    """The query of a search for values of options."""
    usual = [("dataset", stock.dataset), ("recipe", "datalens"), ("epsilon", "0.2"), ("shown", "datalens")]
    pairs = [pair for option, values in tried for pair in (("vary", option), ("values", values))]
    return "?" + urlencode([*{**dict(usual), **fields}.items(), *pairs])


def form_of(page: str) -> dict[str, str]:
    """The hidden fields of the form that starts the search."""
    form = page[page.index('action="/sweeps"') :]
    found = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form[: form.index("</form>")])
    return {name: html.unescape(value) for name, value in found}


def faults(page: str) -> dict[str, str]:
    return dict(re.findall(r'data-fault="([\w-]+)">([^<]+)<', page))


def balance(site: Site, account_id: str) -> ledger.Balance:
    with transaction(site.factory, read_only=True) as session:
        return ledger.balance(session, account_id)


def test_a_search_is_priced_as_a_whole_then_held_once(site, stock):
    trainer = site.signed_in("train", "read")
    query = asked(stock, ("teachers", "100, 300"), ("", ""), ("epsilon", "0.1,0.2,0.3"), options="top_k = 7")
    page = trainer.get("/train" + query).text
    assert_shown(page, "Price of all 6 trials", "Train 6 times for ε", "Every trial is paid for", "Nothing would say")
    assert re.findall(r'rowheader">(Teachers [^<]+)</th><td[^>]*>([\d.]+)<', page) == [
        (f"Teachers {teachers}", epsilon) for teachers in (100, 300) for epsilon in ("0.1", "0.2", "0.3")
    ]
    command = f"obscura sweep {stock.dataset} --recipe datalens --epsilon 0.2 --option top_k=7"
    assert_shown(html.unescape(page), f"{command} --grid 'teachers=100, 300' --grid epsilon=0.1,0.2,0.3 --wait")
    price, before = float(re.findall(r"<dd>ε ([\d.]+)", page)[0]), balance(site, stock.account)
    part = trainer.get("/train/price" + query).text
    assert float(re.findall(r"<dd>ε ([\d.]+)", part)[0]) == price
    assert site.rows(Sweep) == []
    fields = form_of(page)
    first, second = (send(trainer, "/train", "/sweeps", **fields) for _ in range(2))
    assert first.headers["location"] == second.headers["location"]
    (sweep,) = site.rows(Sweep)
    assert first.headers["location"] == f"/sweeps/{sweep.id}"
    trials = sorted(site.rows(Job, Job.sweep_id == sweep.id), key=lambda job: job.created_at)
    assert [(job.options, job.epsilon) for job in trials] == [
        ({"top_k": 7, "teachers": teachers}, epsilon) for teachers in (100, 300) for epsilon in (0.1, 0.2, 0.3)
    ]
    held_nano = balance(site, stock.account).held_nano - before.held_nano
    assert held_nano == sweep.price_nano
    with transaction(site.factory, read_only=True) as session:
        held = ledger.filter_of(ledger.get_account(session, stock.account)).epsilon_of(held_nano)
    assert held <= price < held + 0.001, "what was shown is what is held, rounded up"
    assert sweep.name == "teachers=100, 300; epsilon=0.1,0.2,0.3"
    assert "6 trainings with" in trainer.get(f"/sweeps/{sweep.id}").text


@pytest.mark.parametrize(
    ("tried", "place", "said"),
    [
        ([("teachers", "100,0.5")], "values-1", "Trial 2: .*an integer between 1 and 100000"),
        ([("epsilon", "0.1,many")], "values-1", "This is a number"),
        ([("top_k", "7,8"), ("epsilon", "0.1,-1")], "values-2", "greater than or equal to"),
        ([("top_k", "7,8"), ("teachers", "")], "values-2", "Write the values of teachers"),
        ([("", "7,8")], "values-1", "which option"),
        ([("top_k", "7,8"), ("top_k", "9")], "values-2", "there already"),
        ([("top_k", "7")], "grids", "1 trial; a search has 2 to 64"),
        ([("top_k", "7," * 40), ("teachers", "7," * 40)], "grids", "1,681 trials"),
        ([("nothing", "7,8")], "options", "Trial 1: .*nothing"),
    ],
)
def test_a_search_that_cannot_be_planned_is_explained_where_it_stands(site, stock, tried, place, said):
    trainer = site.signed_in("train", "read")
    for address in ("/train", "/train/price"):
        answer = trainer.get(address + asked(stock, *tried))
        assert answer.status_code == 422
        wrong = re.findall(r'data-wrong="([\w-]+)" hidden>([^<]+)<', answer.text)
        assert [name for name, _ in wrong] == [place]
        assert re.search(said, wrong[0][1])
        assert "Train 2 times" not in answer.text
    whole = trainer.get("/train" + asked(stock, *tried)).text
    assert re.search(said, faults(whole)[place])
    assert all(html.escape(values) in whole for _, values in tried), "what was written is still there"
    form = {"dataset": stock.dataset, "recipe": "datalens", "epsilon": "0.2", "once": "c" * 32}
    form["grids"] = "\n".join(f"{option}={values}" for option, values in tried)
    refused = send(trainer, "/train", "/sweeps", **form)
    assert (refused.status_code, re.search(said, faults(refused.text)[place]) is not None) == (422, True)
    assert site.rows(Sweep) == []


def test_a_search_that_the_account_cannot_pay_for_says_what_would_fit(site, stock):
    trainer = site.signed_in("train", "read")
    left = balance(site, stock.account).affordable_epsilon
    page = trainer.get("/train" + asked(stock, ("teachers", "100,300"), epsilon=str(left))).text
    fitting = re.search(r"too little left for all 2 trials. At most ε ([\d.]+) of each fits", page)
    assert fitting
    assert 'action="/sweeps"' not in page
    assert "Train 2 times" in trainer.get("/train" + asked(stock, ("teachers", "100,300"), epsilon=fitting[1])).text
    form = {"dataset": stock.dataset, "recipe": "datalens", "epsilon": str(left), "grids": "teachers=100,300"}
    refused = send(trainer, "/train", "/sweeps", **form, once="c" * 32)
    assert (refused.status_code, site.rows(Sweep)) == (422, [])
    assert_shown(refused.text, 'role="alert"', "trials")


def test_only_who_may_train_sees_the_form_which_is_sent_whole(site, stock):
    query = asked(stock, ("teachers", "100,300"))
    for client in (site.client(), site.signed_in("read"), site.signed_in("data", "read")):
        page = client.get("/train" + query).text
        assert 'name="vary"' not in page
        assert "Price of all" not in page
    trainer = site.signed_in("train", "read")
    fields = form_of(trainer.get("/train" + query).text)
    assert send(trainer, "/train", "/sweeps", **fields | {"once": ""}).status_code == 422
    assert site.rows(Sweep) == []
    assert send(trainer, "/train", "/sweeps", **fields | {"dataset": "ds_nothing"}).status_code == 404


def test_a_recipe_is_searched_by_its_own_options(site, stock):
    trainer: TestClient = site.signed_in("train", "read")
    page = trainer.get("/train" + asked(stock, ("teachers", "100,300"), recipe="dpgan")).text
    assert "Price of all" not in page, "the values were another recipe's"
    (offered,) = set(re.findall(r'<select id="vary-\d" name="vary">(.*?)</select>', page))
    assert_shown(offered, '<option value="epsilon">', '<option value="clip">')
    assert "teachers" not in offered
