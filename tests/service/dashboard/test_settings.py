"""Settings in a real browser: invitations, two admins, keys, projects and their views, webhooks, navigation."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from service.db.access_tables import Admin, ApiKey
from tests.browser import WINDOWS, a_page, barriers, chromium, in_chromium, served, sign_in
from tests.service.webhooks.receiver import receiving

pytestmark = in_chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture
def site(make_site) -> Any:
    return make_site()


@pytest.fixture
def live(site) -> Iterator[str]:
    with served(site.app) as address:
        yield address


@contextmanager
def pages(browser: Any, address: str, count: int) -> Iterator[list[Any]]:
    """Pages of browser contexts that share no cookies, without an error in any console."""
    with a_page(browser, base_url=address) as (first, said):
        others = [browser.new_page(base_url=address) for _ in range(count - 1)]
        for page in others:
            page.on("pageerror", lambda error: said.append(str(error)))
        yield [first, *others]
        for page in others:
            page.close()
    assert said == []


def invited_by(page: Any, role: str) -> str:
    """Create a link on the page of members, and return it."""
    page.goto("/settings/members")
    page.select_option("#role", role)
    page.get_by_role("button", name="Create link").click()
    link = page.locator("[data-answer] code")
    link.wait_for()
    return str(link.text_content())


def test_an_analyst_is_invited_by_link_trains_and_cannot_raise_a_limit(site, stock, live, browser):
    with pages(browser, live, 3) as (admin, ana, thief):
        sign_in(admin, site.key("admin"))
        link = invited_by(admin, "analyst")
        ana.goto(link)
        ana.reload()  # looking uses nothing
        ana.fill("#name", "Ana Silva")
        ana.get_by_role("button", name="Accept invitation").click()
        ana.get_by_role("heading", name="Welcome, Ana Silva").wait_for()
        token = ana.locator("pre code").text_content()
        ana.get_by_role("link", name="Continue").click()
        ana.get_by_role("link", name="Ana Silva").wait_for()
        assert ana.get_by_role("navigation", name="Main").all_inner_texts() == ["Budgets\nDatasets\nJobs\nPlan\nReleases"]
        ana.goto(f"/train?dataset={stock.dataset}&recipe=datalens&epsilon=0.2")
        ana.get_by_role("button", name="Train for ε").click()
        ana.wait_for_url("**/jobs/job_*")
        ana.goto(f"/accounts/{stock.account}/controls")
        assert ana.get_by_role("button", name=re.compile("raise|limit", re.IGNORECASE)).count() == 0
        refused = ana.request.get("/settings/members")
        assert refused.status == 403
        thief.goto(link)
        thief.get_by_text("was used or revoked, or has expired").wait_for()
        sign_in(thief, token)  # the key signs in elsewhere, until the admin ends the access
        admin.goto("/settings/members")
        admin.get_by_role("button", name="End access of Ana Silva").click()
        admin.get_by_text("Access ended").wait_for()
        ana.goto("/")
        ana.wait_for_url("**/login?next=*")


def test_a_second_admin_is_admitted_by_link_and_two_admins_raise_a_limit(site, stock, live, browser):
    with pages(browser, live, 2) as (alice, bob):
        sign_in(alice, site.key("admin"))
        bob.goto(invited_by(alice, "admin"))
        bob.fill("#name", "Bob")
        bob.get_by_role("button", name="Accept invitation").click()
        code = bob.locator("[data-code]").text_content()
        token = bob.locator("[data-token] code").text_content()
        assert re.fullmatch(r"[0-9a-f]{4}-[0-9a-f]{4}", code)
        bob.get_by_role("button", name="Sign in").click()
        bob.get_by_text("You are not admitted yet").wait_for()
        assert len(site.rows(Admin)) == 1, "the link alone admits nobody"
        assert all(token[25:] not in str(vars(row)) for row in site.rows(ApiKey))

        alice.get_by_role("link", name="Decisions", exact=True).click()
        alice.get_by_text(f"Continue only if it is {code}").wait_for()
        alice.get_by_role("button", name="Admit").click()
        alice.wait_for_url("**/settings/members")
        bob.get_by_role("button", name="Sign in").click()
        bob.get_by_role("link", name="Settings").wait_for()

        alice.goto(f"/accounts/{stock.account}/controls")
        form = alice.locator("form[data-call$='/raise-limit']")
        form.locator("[name=epsilon]").fill("20")
        form.locator("[name=reason]").fill("a second study")
        form.get_by_role("button").click()
        bob.goto("/decisions")
        bob.get_by_role("button", name=re.compile("^Approve")).click()
        bob.get_by_text("Approved").wait_for()
        bob.goto(f"/accounts/{stock.account}/ledger")
        bob.get_by_text("by two admins: a second study").wait_for()
