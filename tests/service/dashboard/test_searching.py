"""A search is started by a form: its whole price is shown before, held once, and refused beside the field at fault."""

import html
import re
from urllib.parse import urlencode

import pytest

from service import ledger
from service.db.job_tables import Job, Sweep
from service.db.ledger_tables import Account
from tests.service.dashboard.conftest import Stock, assert_shown, forms_of, submit


def asked(stock: Stock, *tried: tuple[str, str], **fields: str) -> str:
    """The query of a search for values of options."""
    usual = [("dataset", stock.dataset), ("recipe", "datalens"), ("epsilon", "0.2"), ("shown", "datalens")]
    pairs = [pair for option, values in tried for pair in (("vary", option), ("values", values))]
    return "?" + urlencode([*{**dict(usual), **fields}.items(), *pairs])


def test_a_search_is_priced_as_a_whole_then_held_once(site, stock, trainer):
    query = asked(stock, ("teachers", "100, 300"), ("", ""), ("epsilon", "0.1,0.2,0.3"), options="top_k = 7")
    page = trainer.get("/train" + query).text
    assert_shown(
        page,
        "Cost of all 6 trials",
        "Train 6 times for ε",
        "Every trial is paid for",
        "you cannot tell which trial is best",
    )
    assert re.findall(r'rowheader">(Teachers [^<]+)</th><td[^>]*>([\d.]+)<', page) == [
        (f"Teachers {teachers}", epsilon) for teachers in (100, 300) for epsilon in ("0.1", "0.2", "0.3")
    ]
    command = f"obscura sweep {stock.dataset} --recipe datalens --epsilon 0.2 --option top_k=7"
    assert_shown(html.unescape(page), f"{command} --grid 'teachers=100, 300' --grid epsilon=0.1,0.2,0.3 --wait")
    price, before = float(re.findall(r"<dd>ε ([\d.]+)", page)[0]), site.balance(stock.account)
    part = trainer.get("/train/price" + query).text
    assert float(re.findall(r"<dd>ε ([\d.]+)", part)[0]) == price
    assert site.rows(Sweep) == []
    first, second = (submit(trainer, "/train" + query, "POST /v1/sweeps", once="c" * 32).json() for _ in range(2))
    (sweep,) = site.rows(Sweep)
    assert first["id"] == second["id"] == sweep.id
    trials = sorted(site.rows(Job, Job.sweep_id == sweep.id), key=lambda job: job.created_at)
    assert [(job.options, job.epsilon) for job in trials] == [
        ({"top_k": 7, "teachers": teachers}, epsilon) for teachers in (100, 300) for epsilon in (0.1, 0.2, 0.3)
    ]
    reserved_nano = site.balance(stock.account).reserved_nano - before.reserved_nano
    assert reserved_nano == sweep.cost_nano
    held = ledger.filter_of(site.row(Account, stock.account)).epsilon_of(reserved_nano)
    assert held <= price < held + 0.001, "what was shown is what is held, rounded up"
    assert sweep.name == "teachers=100, 300; epsilon=0.1,0.2,0.3"
    assert "6 trainings with" in trainer.get(f"/sweeps/{sweep.id}").text


@pytest.mark.parametrize(
    ("tried", "place", "said"),
    [
        ([("teachers", "100,0.5")], "values-1", "Trial 2: .*an integer between 1 and 100000"),
        ([("epsilon", "0.1,many")], "values-1", "This is a number"),
        ([("top_k", "7,8"), ("epsilon", "0.1,-1")], "values-2", "greater than or equal to"),
        ([("", "7,8")], "values-1", "which option"),
        ([("top_k", "7,8"), ("top_k", "9")], "values-2", "there already"),
        ([("top_k", "7")], "grids", "1 trial; a search has 2 to 64"),
        ([("nothing", "7,8")], "options", "Trial 1: .*nothing"),
    ],
)
def test_a_search_that_cannot_be_planned_is_explained_where_it_stands(site, stock, tried, place, said, trainer):
    for address in ("/train", "/train/price"):
        answer = trainer.get(address + asked(stock, *tried))
        assert answer.status_code == 422
        wrong = re.findall(r'data-wrong="([\w-]+)" hidden>([^<]+)<', answer.text)
        assert [name for name, _ in wrong] == [place]
        assert re.search(said, wrong[0][1])
        assert "Train 2 times" not in answer.text
    whole = trainer.get("/train" + asked(stock, *tried)).text
    assert re.search(said, dict(re.findall(r'data-fault="([\w-]+)">([^<]+)<', whole))[place])
    assert all(html.escape(values) in whole for _, values in tried), "what was written is still there"
    assert site.rows(Sweep) == []


def test_a_search_that_the_account_cannot_pay_for_says_what_would_fit(site, stock, trainer):
    left = site.balance(stock.account).affordable_epsilon
    page = trainer.get("/train" + asked(stock, ("teachers", "100,300"), epsilon=str(left))).text
    fitting = re.search(r"too little left for all 2 trials. At most ε ([\d.]+) of each fits", page)
    assert fitting
    assert forms_of(page) == {}
    assert "Train 2 times" in trainer.get("/train" + asked(stock, ("teachers", "100,300"), epsilon=fitting[1])).text


def test_only_who_may_train_sees_the_form(site, stock):
    query = asked(stock, ("teachers", "100,300"))
    for client in (site.client(), site.signed_in("read"), site.signed_in("data", "read")):
        page = client.get("/train" + query).text
        assert 'name="vary"' not in page
        assert "Cost of all" not in page


def test_a_recipe_is_searched_by_its_own_options(site, stock, trainer):
    page = trainer.get("/train" + asked(stock, ("teachers", "100,300"), recipe="dpgan")).text
    assert "Cost of all" not in page, "the values were another recipe's"
    (offered,) = set(re.findall(r'<select id="vary-\d" name="vary">(.*?)</select>', page))
    assert_shown(offered, '<option value="epsilon">', '<option value="clip">')
    assert "teachers" not in offered
