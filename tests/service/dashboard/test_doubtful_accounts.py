"""Balances on pages are compared with the log first: a page says which account is in doubt, and shows the others."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.service.dashboard.conftest import Site, Stock
from tests.service.dashboard.test_pages import words_of

IN_DOUBT = "contradict"  # a word of every sentence that says so
# What somebody with access to the database might change, and by how much.
DAMAGES = {
    "spent": "UPDATE accounts SET spent_nano = spent_nano - 777 WHERE id = :account",
    "capacity": "UPDATE accounts SET capacity_nano = capacity_nano * 2 WHERE id = :account",
    "charged": "UPDATE holds SET charged_nano = charged_nano - 777 WHERE job_id = :running",
    "captured": "UPDATE holds SET captured_nano = 777, charged_nano = 777 WHERE job_id = :done",
}


@dataclass
class Two:
    """A damaged account, and another one beside it; both have a sweep."""

    site: Site
    stock: Stock
    sound: str
    sound_dataset: str
    sweeps: dict[str, str]

    def read(self, address: str) -> tuple[int, str]:
        answer = self.site.client().get(address)
        return answer.status_code, words_of(answer.text)

    def damage(self, which: str) -> None:
        stock = vars(self.stock)
        names = [name for name in ("account", "running", "done") if f":{name}" in DAMAGES[which]]
        self.site.execute(DAMAGES[which], **{name: stock[name] for name in names})


@pytest.fixture
def two(site: Site, stock: Stock, open_account: Callable[..., str], declare_dataset: Callable[..., str]) -> Two:
    sound = open_account(site.factory, name="passers-by")
    sound_dataset = declare_dataset(site.factory, account_id=sound, name="street")
    trained = [stock.done, stock.running]
    fresh = [site.add_job(sound, sound_dataset, epsilon=0.25) for _ in range(2)]
    sweeps = {account: site.add_sweep(*jobs) for account, jobs in ((stock.account, trained), (sound, fresh))}
    return Two(site, stock, sound, sound_dataset, sweeps)


def test_sound_pages_doubt_nothing(two):
    own = [f"/sweeps/{sweep}" for sweep in two.sweeps.values()]
    for address in [*two.stock.pages, *own, f"/train?dataset={two.sound_dataset}"]:
        status, said = two.read(address)
        assert (status, IN_DOUBT in said) == (200, False), address


@pytest.mark.parametrize("which", ["spent", "capacity"])
def test_every_page_that_shows_a_balance_says_that_it_is_in_doubt(two, which):
    two.damage(which)
    stock = two.stock
    account = [f"/accounts/{stock.account}{part}" for part in ("", "/data", "/jobs", "/ledger", "/controls")]
    own = [f"/sweeps/{two.sweeps[stock.account]}", f"/releases/{stock.release}", f"/train?dataset={stock.dataset}"]
    jobs = [f"/jobs/{job}" for job in (stock.running, stock.queued, stock.done)]
    for address in [*own, *jobs, f"/jobs/{stock.running}/part"]:
        status, said = two.read(address)
        assert (status, IN_DOUBT in said, "patients" in said) == (200, True, True), address
        assert "% of" not in said.replace("% of the planned", ""), address
    for address in account:  # there is nothing to show but that account
        status, said = two.read(address)
        assert (status, "patients" in said, IN_DOUBT in said) == (503, True, True), address
        assert stock.account not in said.replace(address, ""), "without particulars"
    for address in ("/", "/parts/budgets", "/jobs"):  # what is sound stays
        status, said = two.read(address)
        assert (status, IN_DOUBT in said, "passers-by" in said) == (200, True, True), address
    for address in (f"/accounts/{two.sound}/jobs", f"/sweeps/{two.sweeps[two.sound]}", f"/datasets/{stock.dataset}"):
        status, said = two.read(address)
        assert (status, IN_DOUBT in said) == (200, False), address


@pytest.mark.parametrize(("which", "job"), [("charged", "running"), ("captured", "done")])
def test_every_page_that_shows_a_hold_says_that_it_is_in_doubt(two, which, job):
    two.damage(which)
    stock = two.stock
    pages = [f"/jobs/{vars(stock)[job]}", f"/sweeps/{two.sweeps[stock.account]}", "/jobs"]
    pages.append(f"/accounts/{stock.account}" if which == "charged" else f"/releases/{stock.release}")
    for address in [*pages, f"/accounts/{stock.account}/jobs"]:
        status, said = two.read(address)
        assert (status, IN_DOUBT in said, "patients" in said) == (200, True, True), address
    for address in (f"/jobs/{stock.queued}", f"/sweeps/{two.sweeps[two.sound]}", f"/accounts/{two.sound}/jobs"):
        assert IN_DOUBT not in two.read(address)[1], address


def test_the_chart_of_spending_is_drawn_from_entries_that_were_checked(two):
    account = {"account": two.stock.account}
    two.site.execute("DROP TRIGGER entries_no_update")
    change = "UPDATE entries SET amount_nano = 5 WHERE account_id = :account AND kind = 'capture'"
    two.site.execute(change, **account)
    for part in ("", "/ledger", "/ledger.csv"):
        assert two.read(f"/accounts/{two.stock.account}{part}")[0] == 503
