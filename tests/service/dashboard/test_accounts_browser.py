"""Opening an account, changing it and reading its ledger in a real browser, by clicks and keys."""

import pytest

from privacy.accounting.filter import attacker_certainty_max, open_filter
from service.db.ledger_tables import Account, Entry
from service.wording import FILTERS
from tests.browser import a_page, barriers, in_chromium, sign_in

pytestmark = in_chromium


def sure(epsilon: float, delta: float) -> str:
    return str(FILTERS["sure"](attacker_certainty_max(open_filter(epsilon, delta))))


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_an_account_is_opened_by_the_keyboard_with_odds_that_follow(site, live, browser, width, scheme):
    from playwright.sync_api import expect  # not without a browser

    window = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with a_page(browser, base_url=live, **window) as (page, said):
        sign_in(page, site.key("admin"))
        page.goto("/accounts/new")
        expect(page.locator("#odds-2")).to_have_text(sure(1.0, 1e-5))
        page.focus("#name")
        for keys in ("people", "Tab", "clinic", "Tab", "Space", "Tab", "60000"):
            page.keyboard.press(keys) if keys in ("Tab", "Space") else page.keyboard.type(keys)
        expect(page.locator("#delta-words")).to_contain_text("1 in 1,000,000")
        expect(page.locator("#odds-2")).to_have_text(sure(1.0, 1e-6))
        expect(page.locator("#odds-words")).to_contain_text("a person’s images were")
        page.focus("#other_epsilon")
        page.keyboard.type("2.5")
        expect(page.locator("#odds-other")).to_have_text(sure(2.5, 1e-6))
        expect(page.locator("#epsilon-other")).to_be_checked()
        page.get_by_text("Use another δ").click()
        page.fill("#other_delta", "0.05")
        expect(page.locator("#delta-words")).to_contain_text("You must confirm it")
        assert barriers(page) == []
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Review the account").wait_for()
        assert barriers(page) == []
        button = page.get_by_role("button", name="Open account")
        button.click()
        assert page.evaluate("document.activeElement.id") == "accept_large_delta", "nothing is sent before the tick"
        page.keyboard.press("Space")
        button.click()
        page.wait_for_url("**/accounts/acc_*")
    (account,) = site.rows(Account)
    assert (account.name, account.epsilon, account.delta, account.unit.value) == ("people", 2.5, 0.05, "subject")
    assert said == []


def test_a_limit_is_lowered_once_its_effect_is_shown_and_the_name_is_typed(site, stock, live, browser):
    from playwright.sync_api import expect

    with a_page(browser, base_url=live) as (page, said):
        sign_in(page, site.key("admin"))
        page.goto(f"/accounts/{stock.account}/controls")
        page.fill("#lower-epsilon", "6")
        expect(page.locator("#lower-effect")).to_contain_text("Limit ε 8.0 → 6.0.")
        expect(page.locator("#raise-effect")).to_be_empty()
        page.fill("#lower-reason", "less is enough")
        for typed in ("", "patient", "patients "):
            page.fill("#lower-name", typed)
            assert site.row(Account, stock.account).epsilon == 8.0
            page.get_by_role("button", name="Lower limit").click()
        page.get_by_text("ε 6.0", exact=False).first.wait_for()
        assert site.row(Account, stock.account).epsilon == 6.0
    assert said == []


def test_images_are_deleted_only_after_the_name_is_typed(site, stock, live, browser):
    with a_page(browser, base_url=live) as (page, said):
        sign_in(page, site.key("admin"))
        page.goto(f"/datasets/{stock.dataset}")
        page.locator("#cancel-jobs").check()
        button = page.get_by_role("button", name="Delete images")
        page.fill("#delete-name", "other")
        button.click()
        assert page.evaluate("document.activeElement.id") == "delete-name"
        assert page.evaluate("document.activeElement.validationMessage") == "Type “pictures” to confirm."
        page.fill("#delete-name", "pictures")
        button.click()
        page.wait_for_url("**/datasets")
    assert said == []


def test_a_hash_of_the_ledger_is_copied_whole(site, stock, live, browser):
    with a_page(browser, base_url=live, permissions=["clipboard-read", "clipboard-write"]) as (page, said):
        page.goto(f"/accounts/{stock.account}/ledger")
        page.locator("tr", has_text="Account opened").get_by_text("Entry 1").click()
        page.get_by_role("button", name="Copy SHA-256 of entry 1", exact=True).click()
        page.get_by_text("Copied").wait_for()
        (first,) = site.rows(Entry, (Entry.account_id == stock.account) & (Entry.sequence == 1))
        assert page.evaluate("navigator.clipboard.readText()") == first.hash
        with page.expect_download() as download:
            page.get_by_role("link", name="Export CSV").click()
        assert first.hash in download.value.path().read_text()
    assert said == []
