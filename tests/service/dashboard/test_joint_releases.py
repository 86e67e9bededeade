"""A release of several accounts says on its page whom it was trained on; another project is not told."""

import re

import pytest

from service import auth, decisions, jobs, ledger, projects
from service.access import Principal, Scope, on_behalf
from service.db.job_tables import FurtherDataset
from service.db.session import transaction
from service.views import releases
from tests.service.dashboard.conftest import Site, Stock, assert_shown
from tests.service.holds import hold_at_present_rate
from tests.service.people import make_key

NANO = 30_000_000


@pytest.fixture
def joint(site: Site, stock: Stock, open_account, declare_dataset) -> tuple[str, str, str]:
    """A release of the usual account and of another one, and the ids of that account and of its dataset."""
    account = open_account(site.factory, name="patients of 2026", delta=5e-6)
    second = declare_dataset(site.factory, account_id=account, name="scans of 2026", records_declared=20_000)
    job_id = site.add_job(stock.account, stock.dataset, epsilon=1.0, state="succeeded")
    with transaction(site.factory) as session:
        hold = hold_at_present_rate(session, account_id=account, job_id=job_id, amount_nano=NANO, now=site.now)
        attempt = {"hold_id": hold.id, "attempt": 1, "now": site.now}
        ledger.fence(session, **attempt)
        ledger.arm(session, **attempt)
        ledger.charge(session, **attempt, amount_nano=NANO // 2, stage="votes")
        ledger.capture(session, **attempt, artifact_sha256=None, reason="succeeded")
        session.add(FurtherDataset(job_id=job_id, position=2, dataset_id=second, account_id=account))
    return site.add_release(job_id, name="two years"), account, second


def test_the_page_of_a_release_names_every_account_that_it_was_trained_on(site, stock, joint):
    release, account, second = joint
    page = site.signed_in("read").get(f"/releases/{release}").text
    terms = re.findall(
        r'<dd><a href="/datasets/(\w+)">([^<]+)</a><span class="under">of <a href="/accounts/(\w+)">([^<]+)</a>, which '
        r"paid ε ([\d.]+) at δ ([^:]+): ([\d.]+)% of its lifetime budget",
        page,
    )
    assert [(found[0], found[2], found[3]) for found in terms] == [
        (stock.dataset, stock.account, "patients"),
        (second, account, "patients of 2026"),
    ]
    assert terms[1][1] == "scans of 2026"
    with transaction(site.factory, read_only=True) as session:
        spent = ledger.filter_of(ledger.get_account(session, account)).epsilon_of(NANO // 2)
        assert releases.view(session, release).release.further_dataset_ids == [second]
    assert spent <= float(terms[1][4]) < spent + 0.001, "what was charged, not what was held"
    assert_shown(page, "Trained on images of 2 accounts", "of this release, for patients")
    alone = site.signed_in("read").get(f"/releases/{stock.release}").text
    assert_shown(alone, "<dt>Account</dt>", "It used")
    assert "Trained on" not in alone
    site.execute("UPDATE accounts SET spent_nano = spent_nano - 777 WHERE id = :account", account=account)
    doubtful = site.signed_in("read").get(f"/releases/{release}").text
    assert_shown(doubtful, f'The figures of <a href="/accounts/{account}">patients of 2026</a> contradict its log')


def test_another_project_is_told_of_none_of_them(site, stock, joint):
    release, account, second = joint
    with transaction(site.factory) as session:
        asking, approving = (make_key(session, name=name, scopes=["admin"], now=site.now)[0].id for name in "ab")
        terms = {"release_id": release, "project_id": None, "reason": "a test", "asked_with": asking}
        asked = jobs.ask_share(session, **terms, now=site.now)
        decisions.decide(session, asked.id, approving, site.now, jobs.SHARE_EFFECTS, approved=True)
        other = projects.create(session, name="heart", now=site.now).id
        theirs = {"name": "theirs", "scopes": [Scope.READ], "now": site.now, "project_id": other}
        key, token = auth.create_key(session, **theirs)
        their_key = Principal(key.id, frozenset({Scope.READ}), project_id=other)
    client = site.client()
    client.post("/login", data={"key": token})
    page = client.get(f"/releases/{release}")
    assert page.status_code == 200
    assert_shown(page.text, "which shares it with you")
    for told in (account, second, "2026", "Trained on", stock.account, stock.dataset):
        assert told not in page.text
    with transaction(on_behalf(site.factory, lambda: their_key), read_only=True) as session:
        shared = releases.view(session, release)
    assert "further_dataset_ids" not in shared.release.model_dump()
    assert shared.cohorts == []
